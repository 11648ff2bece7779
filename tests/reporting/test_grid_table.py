"""The table of a grid: means over seeds, and everything that is not a finished run said so."""

import csv
import io
from pathlib import Path
from typing import Any

from fedgmr.reporting.grid_table import grid_table

COLUMNS = ["training.learning_rate", "method"]


def _run(rate: str, method: str, **summary: Any) -> tuple[list[str], dict[str, Any]]:
    base = {"status": "finished", "seconds": 600.0, "short": False, "stand_in": None}
    return [rate, method], {**base, **summary} if summary else {}


def test_means_spreads_and_what_is_missing() -> None:
    runs = [
        _run("0.1", "FedGMR", final_accuracy=0.8, validation_accuracy=0.7),
        _run("0.1", "FedGMR", final_accuracy=0.9, validation_accuracy=0.8),
        _run("0.1", "FedAvg", final_accuracy=0.5, seconds=1200.0),
        _run("0.1", "FedAvg", final_accuracy=0.1, status="diverged"),
        _run("0.25", "FedGMR"),
    ]
    assert grid_table(COLUMNS, runs).text().splitlines() == [
        "training.learning_rate  method           runs  accuracy (%)       at  validation (%)",
        "------------------------------------------------------------------------------------",
        "0.1                     FedGMR              2  85.00 ± 7.07    600 s      75.00 best",
        "0.1                     FedAvg  1, 1 diverged     50.00 ± -  1,200 s               -",
        "0.25                    FedGMR   1 unfinished             -        -               -",
    ]


def test_the_best_of_a_method_is_by_validation_of_what_it_hands_out() -> None:
    views = {"merged": {"validation": 0.5}, "padded": {"validation": 0.9}}
    runs = [
        _run("0.1", "HeteroFL", final_accuracy=0.4, views=views, best_view="padded"),
        _run("0.2", "HeteroFL", final_accuracy=0.8, validation_accuracy=0.8, best_view="merged"),
        _run("0.1", "FedAvg", final_accuracy=0.6, validation_accuracy=0.5),
        _run("0.2", "FedAvg", final_accuracy=0.9, validation_accuracy=0.9, decides_on_test=True),
    ]
    ends = [line.split()[-2:] for line in grid_table(COLUMNS, runs).text().splitlines()[2:]]
    assert ends == [["90.00", "best"], ["s", "80.00"], ["50.00", "best"], ["s", "-"]]


def test_the_smallest_error_is_best() -> None:
    error = {"metric": "MAE", "readings": [{"name": "MAE", "unit": "", "higher_is_better": False, "digits": 1}]}
    runs = [
        _run("0.1", "FedGMR", final_accuracy=4.0, validation_accuracy=4.25, **error),
        _run("0.2", "FedGMR", final_accuracy=3.0, validation_accuracy=5.5, **error),
    ]
    header, _, *rows = grid_table(COLUMNS, runs).text().splitlines()
    assert header.split() == [*COLUMNS, "runs", "MAE", "at", "validation"]
    assert [row.split()[3:] for row in rows] == [
        ["4.0", "±", "-", "600", "s", "4.2", "best"],
        ["3.0", "±", "-", "600", "s", "5.5"],
    ]


def test_a_run_without_a_finite_value_leaves_no_mean() -> None:
    runs = [_run("0.1", "FedGMR", final_accuracy=value, validation_accuracy=0.5) for value in (0.8, None)]
    assert grid_table(COLUMNS, runs).text().splitlines()[2].split()[2:6] == ["2", "-", "±", "-"]


def test_a_grid_over_leading_metrics() -> None:
    error = {"metric": "MAE", "readings": [{"name": "MAE", "unit": "s", "higher_is_better": False, "digits": 1}]}
    runs = [
        _run("MAE", "FedGMR", final_accuracy=4.0, validation_accuracy=4.25, **error),
        _run("accuracy", "FedGMR", final_accuracy=0.5, validation_accuracy=0.5),
    ]
    lines = grid_table(["evaluation.metric", "method"], runs).text().splitlines()
    assert "leading metric" in lines[0]
    assert ["4.0 ± - MAE (s)" in lines[2], "50.00 ± - accuracy (%)" in lines[3]] == [True, True]
    assert [line.endswith("best") for line in lines[2:]] == [True, True]


def test_short_runs_and_stand_ins_are_named() -> None:
    one = _run("0.1", "FedGMR", final_accuracy=0.8, short=True, stand_in="A stands in for B")
    two = _run("0.2", "FedGMR", final_accuracy=0.8, stand_in="A stands in for B")
    assert grid_table(COLUMNS, [one, two]).text().splitlines()[-2:] == [
        "note: short runs (1 of 2), not for conclusions",
        "note: stand-in data: A stands in for B",
    ]


def test_the_files_have_every_run_unrounded(tmp_path: Path) -> None:
    runs = [
        _run("0.1", "A|B", final_accuracy=0.812345, validation_accuracy=0.7, seed=4),
        _run("0.1", "A|B"),
    ]
    table = grid_table(COLUMNS, runs)
    table.write(tmp_path)
    assert (tmp_path / "sweep.csv").read_text() == table.csv()
    first, second = csv.DictReader(io.StringIO(table.csv()))
    assert (first["training.learning_rate"], first["seed"], first["final_accuracy"]) == ("0.1", "4", "0.812345")
    assert (first["validation"], second["method"], second["status"]) == ("0.7", "A|B", "")
    assert r"| 0.1 | A\|B | 1, 1 unfinished | 81.23 ± - |" in (tmp_path / "sweep.md").read_text()
