"""Watchers: what they are told, how they end a run, early stopping by the recipe, and mistakes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.recipes import recipe

import fedgmr
from fedgmr import Stop, Watcher
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.seal import verify_run
from fedgmr.experiments.views import compared
from fedgmr.recipe import Recipe, recipe_from
from fedgmr.tasks.metrics import Metric, top1
from fedgmr.training.evaluation.stopping import EarlyStopping

ACCURACY = Metric(measure=top1)
ERROR = Metric(measure=top1, name="error", unit="", higher_is_better=False)


def settings(**changes: Any) -> Recipe:
    evaluation = {"every_seconds": 20.0, **changes.pop("evaluation", {})}
    return recipe_from(recipe("dense", **({"seconds": 200.0, "evaluation": evaluation} | changes)))


def rows(result: fedgmr.Result) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "wall"} for row in result.history]


class Log(Watcher):
    """Keeps what it is told, and ends the run when a field has a value."""

    def __init__(self, tick: int | None = None, seconds: float | None = None) -> None:
        self.tick, self.seconds = tick, seconds
        self.told: list[tuple[str, Any]] = []

    def after_tick(self, state: Mapping[str, float]) -> Stop | None:
        self.told.append(("tick", dict(state)))
        return Stop("enough ticks") if state["tick"] == self.tick else None

    def after_evaluation(self, row: Mapping[str, Any]) -> Stop | None:
        self.told.append(("row", row))
        return Stop("enough rows") if self.seconds is not None and row["seconds"] >= self.seconds else None

    def at_end(self, run: Any) -> None:
        self.told.append(("end", run))


class Interrupt(Watcher):
    def after_tick(self, state: Mapping[str, float]) -> None:
        raise KeyboardInterrupt


def test_a_watcher_sees_ticks_rows_and_the_end_and_changes_nothing() -> None:
    log = Log()
    watched, alone = run_recipe(settings(), None, [log, Log()]), run_recipe(settings(), None)
    assert rows(watched) == rows(alone)
    assert [told for kind, told in log.told if kind == "row"] == list(watched.history)
    ticks = [told["tick"] for kind, told in log.told if kind == "tick"]
    assert ticks == list(range(1, watched.summary["ticks"] + 1))
    assert log.told[-1] == ("end", watched)
    assert "stopped" not in watched.summary


def test_a_watcher_ends_a_run_which_keeps_its_model(tmp_path: Path) -> None:
    whole = run_recipe(settings(checkpoint={"every": 1}), None)
    result = run_recipe(settings(checkpoint={"every": 1}), tmp_path / "run", Log(tick=4))
    row = whole.history[-1]
    assert result.summary["stopped"]["by"] == "Log"
    assert (result.summary["stopped"]["reason"], result.summary["stopped"]["tick"]) == ("enough ticks", 4)
    end = result.summary["stopped"]["seconds"]
    assert (result.status, result.history[-1]["tick"], result.history[-1]["seconds"]) == ("stopped", 4, end)
    assert end < row["seconds"] == 200.0
    assert rows(result)[:-1] == rows(whole)[: len(rows(result)) - 1], "but the last, which is off the grid"
    assert verify_run(tmp_path / "run").startswith("stopped")
    assert result.notices[0] == f"Stopped at {end:.1f} s by Log: enough ticks."
    loaded = fedgmr.load(tmp_path / "run", trust=["e2e"])
    assert all(torch.equal(result.model[name], loaded.model[name]) for name in result.model)
    # What a watcher has ended goes on to its time budget. Until then it has no models, as no unfinished run has.
    with pytest.raises(KeyboardInterrupt):
        resume_run(tmp_path / "run", Interrupt(), trust=["e2e"])
    unended = fedgmr.load(tmp_path / "run", trust=["e2e"])
    assert (unended.status, unended.views) == ("unfinished", None)
    resumed = resume_run(tmp_path / "run", trust=["e2e"])
    assert rows(resumed) == rows(whole)
    assert (resumed.status, "stopped" in resumed.summary) == ("finished", False)


def test_an_evaluation_may_end_a_run() -> None:
    log = Log(seconds=60.0)
    result = run_recipe(settings(), None, log)
    assert result.summary["stopped"]["reason"] == "enough rows"
    assert result.history[-1]["seconds"] == result.summary["stopped"]["seconds"] == log.told[-2][1]["seconds"]
    assert [kind for kind, _ in log.told].count("row") == len(result.history)
    first = run_recipe(settings(), None, Log(seconds=0.0))
    assert (len(first.history), first.summary["ticks"]) == (1, 0), "the one before the first tick"


def test_the_rule_by_hand() -> None:
    patient = EarlyStopping(patience=2)
    assert patient.reason([0.1], ACCURACY) is None
    assert patient.reason([0.1, 0.5, 0.5], ACCURACY) is None, "waited 1"
    assert patient.reason([0.1, 0.5, 0.5, 0.4], ACCURACY) == (
        "the validation accuracy has not improved in 2 evaluations (50.00 % is the best)"
    )
    assert patient.reason([0.1, 0.5, 0.4, 0.6, 0.5], ACCURACY) is None, "0.6 began anew"
    assert EarlyStopping(patience=2, improvement=0.2).reason([0.1, 0.5, 0.6, 0.7], ACCURACY) is not None
    assert EarlyStopping(patience=2, improvement=0.2).reason([0.1, 0.5, 0.6, 0.71], ACCURACY) is None
    # Less is better.
    assert patient.reason([4.0, 3.0, 2.0], ERROR) is None
    assert patient.reason([4.0, 2.0, 3.0, 2.5], ERROR) == (
        "the validation error has not improved in 2 evaluations (2.00 is the best)"
    )
    to_target = EarlyStopping(target=2.5)
    assert to_target.reason([4.0, 2.6], ERROR) is None
    assert to_target.reason([4.0, 2.5], ERROR) == "the validation error 2.50 has reached 2.5"
    assert to_target.reason([2.4], ACCURACY) is None


@pytest.mark.parametrize("method", ["fedgmr", "fedavg"])
def test_a_recipe_stops_on_validation_samples_and_resumed_at_the_same_row(method: str, tmp_path: Path) -> None:
    stop = {"evaluation": {"stop": {"patience": 2}}, "checkpoint": {"every": 1}, "seconds": 2000.0, "method": method}
    whole = run_recipe(settings(**stop), tmp_path / "whole")
    values = whole.history["validation"]
    best = values.index(max(values))
    assert len(values) == best + 3, "two evaluations after the best"
    assert whole.summary["stopped"]["by"] == "evaluation.stop"
    assert (whole.status, whole.summary["seconds"]) == ("finished", 2000.0)
    assert whole.history[-1]["seconds"] < 2000.0
    resolved = whole.recipe.evaluation.stop
    assert resolved == EarlyStopping(patience=2)

    class Broken(Watcher):
        def __init__(self, row: int) -> None:
            self.row = row

        def after_tick(self, state: Mapping[str, float]) -> None:
            if state["seconds"] >= whole.history[self.row]["seconds"]:
                raise KeyboardInterrupt

    for row in (-2, -1):  # before the row that ends it, and when the checkpoint after that row is there
        cut = tmp_path / str(row)
        with pytest.raises(KeyboardInterrupt):
            run_recipe(settings(**stop), cut, Broken(row))
        resumed = resume_run(cut, trust=["e2e"])
        assert rows(resumed) == rows(whole)
        assert resumed.summary["stopped"] == whole.summary["stopped"]
        assert (verify_run(cut), len(resumed.history)) == (verify_run(tmp_path / "whole"), len(values))
    with pytest.raises(ValueError, match="is finished"):
        resume_run(cut, trust=["e2e"])


def test_the_views_of_a_stopped_run_are_compared_by_the_same_evaluations() -> None:
    """The level was tested in the last evaluation alone, when all are better than before."""

    def row(merged: float, **views: float) -> dict[str, Any]:
        return {"validation": merged, "views": {name: {"validation": value} for name, value in views.items()}}

    rows = [row(0.2, padded=0.1), row(0.4, padded=0.3), row(0.9, padded=0.5, level=0.8)]
    assert compared(rows) == {"merged": [0.9], "padded": [0.5], "level": [0.8]}
    assert compared(rows[:2]) == {"merged": [0.2, 0.4], "padded": [0.1, 0.3]}


@pytest.mark.parametrize("validation", ["clients", "test"])
def test_stopping_needs_samples_of_the_server(validation: str) -> None:
    with pytest.raises(ValueError, match=f"evaluation: stop is given and validation is {validation}"):
        settings(evaluation={"stop": {"patience": 2}, "validation": validation})


def test_progress_is_shown_unless_it_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    def simulated(**arguments: Any) -> str:
        fedgmr.simulate("e2e.tiny:dense", seconds=30.0, fleet=[fedgmr.Link(down=1.0, up=1.0)] * 2, **arguments)
        return capsys.readouterr().err

    assert simulated().startswith("FedGMR seed 0  ")
    assert simulated(progress=False) == ""


def test_in_a_notebook_progress_is_lines_of_the_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ipykernel", object())
    fedgmr.simulate("e2e.tiny:dense", seconds=30.0, fleet=[fedgmr.Link(down=1.0, up=1.0)] * 2)
    shown = capsys.readouterr()
    assert (shown.err, shown.out.startswith("FedGMR seed 0  ")) == ("", True)
