"""The page with its data inside: packed columns by hand, its size, hostile texts."""

import base64
import json
import random
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from fedgmr.cli.main import main
from fedgmr.pages.report import pack, page_with_data

from .conftest import row


def unpack(text: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return data


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_packed_columns_by_hand() -> None:
    columns = {
        "rows": 3,
        "columns": {"tick": [5, 10, 12], "loss": [2.0, None, 1.5]},
        "clients": {"staleness": [[None, 1], [4, None], [3, 7]], "density": [[0.5, 1.0], [0.5, 1.0], [1.0, 1.0]]},
    }
    found = unpack(pack(columns))
    assert found["columns"] == {"tick": [5, 5, 2], "loss": [2.0, None, 1.5]}
    assert found["clients"] == {
        "staleness": [[None, 4, -1], [1, None, 6]],
        "density": [[0.5, 0.5, 1.0], [1.0, 1.0, 1.0]],
    }
    assert {"tick", "staleness"} <= set(found["differences"])
    assert not {"loss", "density"} & set(found["differences"])


def test_the_verb_makes_one_page_of_all_runs(make_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "</script><script>alert(1)</script>"
    make_run(tmp_path / "runs" / "one")
    make_run(tmp_path / "runs" / "<img src=x onerror=alert(2)>", 0, title=hostile)
    output = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "runs"), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"Report: {output}\n"
    page = output.read_text()
    assert "alert(1)</script>" not in page
    assert "<img src=x" not in page
    assert str(tmp_path) not in page
    data = data_of(page)
    runs = {run["name"]: run for run in data["state"]["runs"]}
    assert runs["<img src=x onerror=alert(2)>"]["method"] == hostile
    assert (runs["one"]["status"], runs["one"]["rows"]) == ("interrupted", 3)
    found = unpack(data["columns"][str(runs["one"]["id"])])
    assert found["columns"]["seconds"] == [0.0, 60.0, 120.0]
    assert found["clients"]["bytes_up"] == [[0, 500, 500], [0, 2000, 2000]]
    assert not list((tmp_path / "runs").rglob("*.html")), "nothing is written into the runs"


def test_without_runs_there_is_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--output", str(tmp_path / "page.html")]) == 2
    assert "There are no runs below" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_2000_evaluations_of_ten_clients_stay_under_a_megabyte(make_run: Any, tmp_path: Path, write_rows: Any) -> None:
    run, draw = make_run(tmp_path / "run"), random.Random(0)
    counts, rows = [0] * 10, []
    for number in range(2000):
        counts = [count + draw.randrange(9) for count in counts]
        rows.append(
            row(
                number,
                seconds=137.26 * number + draw.random(),
                accuracy=draw.randrange(10_000) / 10_000,
                loss=draw.random(),
                density=[1.0] * 10,
                level=[1] * 10,
                staleness=[draw.randrange(40) for _ in range(10)],
                updates=counts,
                bytes_down=[4_022_208 * count for count in counts],
                bytes_up=[4_022_208 * count for count in counts],
                views={name: {"accuracy": draw.random(), "loss": 1.0} for name in "abcdef"},
                wall=round(2.5 * number + draw.random(), 3),
            )
        )
    write_rows(run, rows)
    page = page_with_data([run])
    assert len(page) < 1_000_000
    assert unpack(data_of(page)["columns"]["0"])["rows"] == 2000
