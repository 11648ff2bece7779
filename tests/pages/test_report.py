"""The page with its data inside: packed columns by hand, its size, hostile texts."""

import base64
import json
import os
import random
import re
import zlib
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from reporting.conftest import evaluation, write_curve, write_realistic, write_run

from fedgmr.cli.main import main
from fedgmr.pages.report import pack, page_with_data, write_report
from fedgmr.reporting import compare_runs

from .conftest import row

MARKS = {
    "stand_in": ("EMNIST stands in for FEMNIST", "Stand-in data: EMNIST stands in for FEMNIST."),
    "short": (True, "Short run: a shortened recipe, good for trying things out, not for conclusions."),
    "decides_on_test": (True, "Decides on the test set: nothing is held out, so its accuracy is optimistic."),
    "advice": ("Give a longer period.", "Give a longer period."),
}


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


def entry_of(directory: Path) -> dict[str, Any]:
    path = write_report(directory)
    assert path == directory / "report.html"
    (entry,) = data_of(path.read_text())["state"]["runs"]
    found: dict[str, Any] = entry
    return found


def test_a_run_leaves_a_page_that_asks_nobody(tmp_path: Path) -> None:
    path = write_report(write_realistic(tmp_path, "FedGMR", 0))
    page = path.read_text()
    assert "default-src 'none'" in unescape(page)
    assert "connect-src" not in page
    assert "prefers-color-scheme: dark" in page
    assert set(re.findall(r'(?:src|href|action|data)="([^"]*)"', page.partition("<script")[0])) == {"data:,"}
    data = data_of(page)
    assert unpack(data["columns"]["0"])["rows"] == 31
    found = unpack(data["provenance"]["0"])
    assert "<b>not bold</b> & http://example.org" in found["recipe"], "as text, packed"
    assert found["facts"] == {"device": "cpu", "fedgmr": "0.1.0", "python": "3.11.9", "torch": "2.7.0"}
    assert "<b>" not in page


@pytest.mark.parametrize("field", MARKS)
def test_doubtful_runs_carry_a_mark(field: str, tmp_path: Path) -> None:
    value, sentence = MARKS[field]
    entry = entry_of(write_realistic(tmp_path, "FedGMR", 0, **{field: value}))
    assert (entry["marks"], entry["notices"]) == ([sentence], [])


def test_a_running_run_is_marked_by_its_recipe(make_run: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with (run / "recipe.yaml").open("a") as file:
        file.write("short: true\nevaluation: {validation: test}\n")
    entry = entry_of(run)
    assert entry["marks"] == [MARKS["short"][1], MARKS["decides_on_test"][1]]


@pytest.mark.parametrize(
    ("fields", "notices"),
    [
        ({"status": "diverged", "problem": "Loss of client 3."}, ["diverged", "Loss of client 3."]),
        ({"status": "out-of-memory"}, ["out-of-memory"]),
        ({"stopped": {"by": "Patience", "reason": "enough"}}, ["by Patience: enough."]),
    ],
)
def test_how_a_run_ended_is_told(fields: dict[str, Any], notices: list[str], tmp_path: Path) -> None:
    broken = evaluation(50.0, float("nan"), loss=float("nan"))
    entry = entry_of(write_run(tmp_path / "run", [evaluation(0.0, 0.1), broken], fields))
    assert len(entry["notices"]) == len(notices)
    assert all(words in text for words, text in zip(notices, entry["notices"], strict=True))


def test_what_the_server_did_about_clients_is_on_the_page(tmp_path: Path) -> None:
    events = [{"event": "held", "tick": 6, "client": 2, "until": 16}]
    entry = entry_of(write_realistic(tmp_path / "one", "FedGMR", 0, events=events, refused={"non-finite": 3}))
    assert (entry["summary"]["events"], entry["summary"]["refused"]) == (events, {"non-finite": 3})
    with pytest.raises(ValueError, match="'events' is not what it should be"):
        write_report(write_realistic(tmp_path / "three", "FedGMR", 0, events=[5]))


def test_an_unfinished_run_has_a_page(tmp_path: Path) -> None:
    entry = entry_of(write_run(tmp_path / "half-way", [evaluation(0.0, 0.1), evaluation(120.0, 0.4)], None))
    assert (entry["name"], entry["status"], entry["rows"], entry["summary"]) == ("half-way", "interrupted", 2, None)
    with pytest.raises(ValueError, match="no complete evaluation"):
        write_report(write_run(tmp_path / "none", [], None))


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_curve(tmp_path / "run", {0.0: 0.1, 50.0: 0.5})
    before = write_report(run).read_bytes()

    def refuse(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_report(run)
    assert (run / "report.html").read_bytes() == before
    assert {path.name for path in run.iterdir()} == {"recipe.yaml", "metrics.jsonl", "summary.json", "report.html"}


def test_methods_side_by_side_with_links_to_their_runs(tmp_path: Path) -> None:
    study = tmp_path / "study"
    runs = [write_realistic(study, title, seed) for title in ("FedGMR", "FedAvg") for seed in (0, 1)]
    state = data_of(write_report(study).read_text())["state"]
    comparison = compare_runs(runs)
    table = state["table"]
    assert [table["header"], *table["rows"]] == comparison.table()
    assert (table["title"], table["text"]) == (comparison.title, comparison.heading())
    assert sorted(run["page"] for run in state["runs"]) == [
        f"./{method}-{seed}/report.html" for method in ("fedavg", "fedgmr") for seed in (0, 1)
    ]
    assert data_of((study / "fedgmr-0" / "report.html").read_text())["state"]["table"] is None
    asked = data_of(write_report(study, comparison=compare_runs(runs, target=0.5)).read_text())
    assert asked["state"]["table"]["header"][4] == "time to 50.0 %"
    assert state["table"]["notes"] == []
    for run in runs:
        shortened = json.loads((run / "summary.json").read_text()) | {"short": True}
        (run / "summary.json").write_text(json.dumps(shortened))
    notes = data_of(page_with_data([study]))["state"]["table"]["notes"]
    assert notes == ["Short run: a shortened recipe, good for trying things out, not for conclusions."]
    elsewhere = data_of(page_with_data([study], folder=tmp_path / "other"))
    assert {run["page"] for run in elsewhere["state"]["runs"]} == {None}, "no way up and out of the page's folder"


def test_a_run_that_was_changed_does_not_keep_the_others_from_their_page(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_realistic(tmp_path / "study", "FedGMR", seed)
    (tmp_path / "study" / "fedgmr-1" / "summary.json").write_text("{}")
    state = data_of(write_report(tmp_path / "study").read_text())["state"]
    assert [run["status"] for run in state["runs"]] == ["finished", "unknown"]
    assert [run["page"] for run in state["runs"]] == ["./fedgmr-0/report.html", None]


def test_settings_of_a_sweep_have_a_table(tmp_path: Path) -> None:
    for place, (rate, seed) in enumerate([(0.2, 0), (0.1, 0), (0.1, 1)]):
        run = write_curve(
            tmp_path / "runs" / str(place), {0.0: 0.1, 200.0: rate}, final_accuracy=rate, seed=seed, short=True
        )
        (run / "recipe.yaml").write_text(f"seed: {seed}\nmethod: {{name: a}}\ntraining: {{learning_rate: {rate}}}\n")
    table = data_of(page_with_data([tmp_path / "runs"]))["state"]["table"]
    assert table["header"][:3] == ["training.learning_rate", "method", "runs"]
    assert table["notes"] == ["short runs (3 of 3), not for conclusions."]
    assert [row[:4] for row in table["rows"]] == [["0.1", "a", "2", "10.00 ± 0.00"], ["0.2", "a", "1", "20.00 ± -"]]


def test_figures_for_print_are_made_on_request(
    make_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_realistic(tmp_path / "study", "FedGMR", 0)
    assert main(["report", str(tmp_path / "study"), "--figures", str(tmp_path / "print")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Figures: {tmp_path / 'print'} (accuracy, density, bytes)"
    names = [f"{name}.{kind}" for name in ("accuracy", "bytes", "density") for kind in ("pdf", "png")]
    assert sorted(path.name for path in (tmp_path / "print").iterdir()) == names
    assert not list((tmp_path / "study").rglob("*.png"))


def test_without_runs_there_is_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--output", str(tmp_path / "page.html")]) == 2
    assert "There are no runs below" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def trip(draw: random.Random, client: int, left: float) -> list[Any]:
    ready = left + 40 * draw.random()
    computed = ready + 2.5
    return [client, 1, left, ready, computed, computed + 80 * draw.random(), 4_022_208, 4_022_208]


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
                checks_left=[draw.randrange(6) for _ in range(10)],
                trips=[trip(draw, client, 137.26 * number) for client in range(10)],
                away=[[draw.randrange(10), 137.26 * number, 137.26 * number + 50.0]],
                rates=[[[draw.random() for _ in range(10)] for _ in range(2)] for _ in range(10)],
                views={name: {"accuracy": draw.random(), "loss": 1.0} for name in "abcdef"},
                wall=round(2.5 * number + draw.random(), 3),
            )
        )
    write_rows(run, rows)
    page = page_with_data([run])
    assert len(page) < 1_000_000
    assert unpack(data_of(page)["columns"]["0"])["rows"] == 2000
