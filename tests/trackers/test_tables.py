"""CSV tables: every value of metrics.jsonl, for one run and for many; the command around them."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedgmr.cli.main import main


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_values_equal_the_rows(run: Path, read: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--to", "csv"]) == 0
    assert "evaluations.csv" in capsys.readouterr().out
    rows, lines = read(run), table(run / "tables" / "evaluations.csv")
    assert [float(line["accuracy"]) for line in lines] == [row["accuracy"] for row in rows]
    assert [int(line["bytes_server"]) for line in lines] == [row["bytes_server"] for row in rows]
    assert float(lines[-1]["views.level 0.1.loss"]) == rows[-1]["views"]["level 0.1"]["loss"]
    assert lines[0]["views.level 0.1.loss"] == "", "nothing was merged yet"
    clients = table(run / "tables" / "clients.csv")
    assert len(clients) == 5 * len(rows)
    assert [float(line["density"]) for line in clients[-5:]] == rows[-1]["density"]
    assert [line["staleness"] for line in clients[:5]] == [""] * 5
    (about,) = table(run / "tables" / "runs.csv")
    assert (about["run"], about["recipe.training.steps"], about["summary.status"]) == ("first", "2", "finished")
    assert float(about["summary.final_accuracy"]) == rows[-1]["accuracy"]


def test_all_runs_below_a_directory(run: Path, read: Any, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "deep" / "second")
    (tmp_path / "deep" / "second" / "summary.json").unlink()
    assert main(["export", str(tmp_path), "--to", "csv", "--output", str(tmp_path / "out")]) == 0
    lines = table(tmp_path / "out" / "runs.csv")
    assert [(line["run"], line["summary.status"]) for line in lines] == [("deep/second", ""), ("first", "finished")]
    assert len(table(tmp_path / "out" / "evaluations.csv")) == 2 * len(read(run))


def test_words(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "nothing"), "--to", "csv"]) == 2
    assert "There are no runs below" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()
    monkeypatch.setattr("fedgmr.trackers.tracker.find_spec", lambda name: None)
    assert main(["export", str(run), "--to", "wandb"]) == 2
    assert "wandb must be installed" in capsys.readouterr().err
    (run / "summary.json").unlink()
    assert main(["export", str(run), "--to", "csv", "--follow", "--patience", "0"]) == 1
    assert "was interrupted: resume it" in capsys.readouterr().err
