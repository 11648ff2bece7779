"""A score that a GPU is still computing: its row waits, and is there before a checkpoint counts it and at the end."""

from pathlib import Path
from typing import Any

import pytest
from e2e.recipes import recipe

from fedgmr.experiments.result import Result
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.recipe import recipe_from
from fedgmr.reporting.watcher import Watcher
from fedgmr.training.evaluation.evaluator import Measurement


class StoppedError(Exception):
    """Ends a run."""


class Ender(Watcher):
    """Ends the run at a tick."""

    def __init__(self, last: int) -> None:
        self.last = last

    def after_tick(self, state: Any) -> None:
        if state["tick"] >= self.last:
            raise StoppedError


def rows_of(result: Result) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "wall"} for row in result.history]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("ever_ready", [False, True])
def test_a_row_that_waits_is_recorded_as_if_it_had_not(
    every: int, ever_ready: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = recipe(
        "dense", "fedgmr", seconds=150.0, checkpoint={"every": every, "keep": 2}, evaluation={"views": "merged"}
    )
    settings = recipe_from(data)
    expected = run_recipe(settings, None)
    waiting: list[Measurement] = []
    most = 0
    measured = Measurement.accuracy

    def accuracy(self: Measurement) -> float:
        if self in waiting:  # a validation is not
            waiting.remove(self)
        return measured.__get__(self)

    def ready(self: Measurement) -> bool:
        nonlocal most
        asked = self in waiting
        if not asked:
            waiting.append(self)
        most = max(most, len(waiting))
        return ever_ready and asked

    monkeypatch.setattr(Measurement, "ready", property(ready))
    monkeypatch.setattr(Measurement, "accuracy", property(accuracy))
    late = run_recipe(settings, tmp_path / "run")
    assert rows_of(late) == rows_of(expected)
    assert late.summary["final_accuracy"] == expected.summary["final_accuracy"]
    assert (most, waiting) == (1, []), "one at a time, none left over"

    with pytest.raises(StoppedError):
        run_recipe(settings, tmp_path / "stopped", Ender(5))
    waiting.clear()
    assert rows_of(resume_run(tmp_path / "stopped")) == rows_of(expected)
