"""Fleets whose rates vary or whose clients come and go, by name: a run of each finishes and learns."""

from typing import Any

import pytest

import fedgmr as library

SETTINGS: dict[str, Any] = {
    "seconds": 1500.0,
    "seed": 3,
    "method": library.named_method("fedgmr", {"interval": 3, "restoration": {"patience": 1}}),
    "training": {"learning_rate": 0.1, "batch_size": 10, "steps": 2},
    "evaluation": {"every_seconds": 100.0, "views": "merged"},
}


def _run(fleet: Any, **others: Any) -> library.Result:
    return library.simulate("e2e.tiny:dense", fleet=fleet, **{**SETTINGS, **others})


def _rows(result: library.Result) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "wall"} for row in result.history]


@pytest.mark.parametrize("name", ["lte", "commute", "day_night"])
def test_a_run_finishes_and_learns(name: str) -> None:
    result = _run({"name": name, "scale": "model"})
    assert len(result.history) == 16
    assert result.final_accuracy > result.history[0]["accuracy"] + 0.2
    assert all(count > 0 for count in result.history[-1]["bytes_up"]), "everybody has sent an update"


def test_the_seed_decides_and_rates_vary() -> None:
    fleet = {"name": "lte", "scale": "model"}
    first = _run(fleet, seconds=200.0)
    assert _rows(first) == _rows(_run(fleet, seconds=200.0))
    faster = _run({**fleet, "pace": 2.0}, seconds=200.0)
    assert [row["bytes_up"] for row in first.history] != [row["bytes_up"] for row in faster.history]
