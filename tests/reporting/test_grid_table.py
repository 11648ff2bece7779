"""The table of a grid: means over seeds, and everything that is not a finished run said so."""

import json
from pathlib import Path
from typing import Any

from fedgmr.reporting.grid_table import grid_table

COLUMNS = ["training.learning_rate", "method"]


def _run(folder: Path, rate: str, method: str, **summary: Any) -> tuple[list[str], Path]:
    folder.mkdir()
    if summary:
        data = {
            "schema_version": 1,
            "status": "finished",
            "seconds": 600.0,
            "short": False,
            "stand_in": None,
            **summary,
        }
        (folder / "summary.json").write_text(json.dumps(data))
    return [rate, method], folder


def test_means_spreads_and_what_is_missing(tmp_path: Path) -> None:
    runs = [
        _run(tmp_path / "a", "0.1", "FedGMR", final_accuracy=0.8, validation_accuracy=0.7),
        _run(tmp_path / "b", "0.1", "FedGMR", final_accuracy=0.9, validation_accuracy=0.8),
        _run(tmp_path / "c", "0.1", "FedAvg", final_accuracy=0.5, seconds=1200.0),
        _run(tmp_path / "d", "0.1", "FedAvg", final_accuracy=0.1, status="diverged"),
        _run(tmp_path / "e", "0.25", "FedGMR"),
    ]
    assert grid_table(COLUMNS, runs).splitlines() == [
        "training.learning_rate  method           runs  accuracy (%)       at  validation (%)",
        "------------------------------------------------------------------------------------",
        "0.1                     FedGMR              2  85.00 ± 7.07    600 s      75.00 best",
        "0.1                     FedAvg  1, 1 diverged     50.00 ± -  1,200 s               -",
        "0.25                    FedGMR   1 unfinished             -        -               -",
    ]


def test_the_best_of_a_method_is_by_validation_of_what_it_hands_out(tmp_path: Path) -> None:
    views = {"merged": {"validation": 0.5}, "padded": {"validation": 0.9}}
    runs = [
        _run(tmp_path / "a", "0.1", "HeteroFL", final_accuracy=0.4, views=views, best_view="padded"),
        _run(tmp_path / "b", "0.2", "HeteroFL", final_accuracy=0.8, validation_accuracy=0.8, best_view="merged"),
        _run(tmp_path / "c", "0.1", "FedAvg", final_accuracy=0.6, validation_accuracy=0.5),
        _run(tmp_path / "d", "0.2", "FedAvg", final_accuracy=0.9, validation_accuracy=0.9, decides_on_test=True),
    ]
    ends = [line.split()[-2:] for line in grid_table(COLUMNS, runs).splitlines()[2:]]
    assert ends == [["90.00", "best"], ["s", "80.00"], ["50.00", "best"], ["s", "-"]]


def test_the_smallest_error_is_best(tmp_path: Path) -> None:
    error = {"metric": "MAE", "readings": [{"name": "MAE", "unit": "", "higher_is_better": False, "digits": 1}]}
    runs = [
        _run(tmp_path / "a", "0.1", "FedGMR", final_accuracy=4.0, validation_accuracy=4.25, **error),
        _run(tmp_path / "b", "0.2", "FedGMR", final_accuracy=3.0, validation_accuracy=5.5, **error),
    ]
    header, _, *rows = grid_table(COLUMNS, runs).splitlines()
    assert header.split() == [*COLUMNS, "runs", "MAE", "at", "validation"]
    assert [row.split()[3:] for row in rows] == [
        ["4.0", "±", "-", "600", "s", "4.2", "best"],
        ["3.0", "±", "-", "600", "s", "5.5"],
    ]


def test_a_grid_over_leading_metrics(tmp_path: Path) -> None:
    error = {"metric": "MAE", "readings": [{"name": "MAE", "unit": "s", "higher_is_better": False, "digits": 1}]}
    runs = [
        _run(tmp_path / "a", "MAE", "FedGMR", final_accuracy=4.0, validation_accuracy=4.25, **error),
        _run(tmp_path / "b", "accuracy", "FedGMR", final_accuracy=0.5, validation_accuracy=0.5),
    ]
    lines = grid_table(["evaluation.metric", "method"], runs).splitlines()
    assert "leading metric" in lines[0]
    assert ["4.0 ± - MAE (s)" in lines[2], "50.00 ± - accuracy (%)" in lines[3]] == [True, True]
    assert [line.endswith("best") for line in lines[2:]] == [True, True]


def test_short_runs_and_stand_ins_are_named(tmp_path: Path) -> None:
    one = _run(tmp_path / "a", "0.1", "FedGMR", final_accuracy=0.8, short=True, stand_in="A stands in for B")
    two = _run(tmp_path / "b", "0.2", "FedGMR", final_accuracy=0.8, stand_in="A stands in for B")
    assert grid_table(COLUMNS, [one, two]).splitlines()[-2:] == [
        "note: short runs (1 of 2), not for conclusions",
        "note: stand-in data: A stands in for B",
    ]
