"""The watchers of a run: told in turn, the first that asks for it ends the run.

Early stopping by the recipe is one of them. Read next: `reporting/watcher.py`, what they are told; `progress.py`.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedgmr.recipe import Recipe
from fedgmr.reporting.records import Run
from fedgmr.reporting.watcher import Stop, Watcher
from fedgmr.settings.refusals import SettingError, show_value
from fedgmr.tasks.metrics import Metric
from fedgmr.training.evaluation.stopping import EarlyStopping

_TOLD = {
    "preparing": "stage",
    "after_tick": "state",
    "after_evaluation": "row",
    "at_end": "run",
}  # methods, and what they are given
_STOP_KEY = "evaluation.stop"
Watchers = Watcher | Sequence[Watcher] | None


class _RecipeStop(Watcher):
    """Early stopping as the recipe describes it."""

    def __init__(self, rule: EarlyStopping, metric: Metric, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rule, self.metric = rule, metric
        self.values = [self._value(row) for row in rows]

    def after_evaluation(self, row: Mapping[str, Any]) -> Stop | None:
        """Look at the validation score."""
        self.values.append(self._value(row))
        reason = self.rule.reason(self.values, self.metric)
        return None if reason is None else Stop(reason)

    def _value(self, row: Mapping[str, Any]) -> float:
        """The validation score of a row; the worst there is where it was not finite."""
        value: float | None = row["validation"]
        return -self.metric.score(math.inf) if value is None else value


class Watching:
    """All watchers of one run, and who of them has ended it."""

    def __init__(
        self,
        watcher: Watchers,
        recipe: Recipe,
        metric: Metric,
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        rule = recipe.evaluation.stop
        own = [] if rule is None else [(_STOP_KEY, _RecipeStop(rule, metric, rows[:-1]))]
        given = [(type(one).__name__, one) for one in as_watchers(watcher)]
        self.watchers: list[tuple[str, Watcher]] = [*own, *given]
        self.stopped: dict[str, Any] | None = None  # by whom, why, and when
        self.ended = False  # nothing is left to stop
        for row in rows[-1:]:  # a resumed run may have been killed after the very row that ended it
            for name, one in own:
                self._heed(name, one.after_evaluation(row), "after_evaluation", row)

    @property
    def evaluations(self) -> bool:
        """Whether a watcher looks at evaluations; then they are made before the run goes on, on a GPU too."""
        return any(type(one).after_evaluation is not Watcher.after_evaluation for _, one in self.watchers)

    def preparing(self, stage: str) -> None:
        """Tell what is done before the first tick."""
        tell_stage([one for _, one in self.watchers], stage)

    def after_tick(self, state: Mapping[str, Any]) -> None:
        """Tell where the run stands."""
        for name, one in self.watchers:
            self._heed(name, one.after_tick(state), "after_tick", state)

    def after_evaluation(self, row: Mapping[str, Any]) -> None:
        """Tell a row."""
        for name, one in self.watchers:
            self._heed(name, one.after_evaluation(row), "after_evaluation", row)

    def at_end(self, run: Run) -> None:
        """Tell the result."""
        for _, one in self.watchers:
            one.at_end(run)

    def _heed(self, name: str, answer: object, method: str, at: Mapping[str, Any]) -> None:
        if answer is None:
            return
        if not isinstance(answer, Stop):
            raise SettingError(
                f"{name}.{method} returned {show_value(answer)}: return fedgmr.Stop('why') to end the run, else None."
            )
        if self.stopped is None and not self.ended:
            when = {"seconds": at["seconds"], "tick": at["tick"]}
            self.stopped = {"by": name, "reason": answer.reason, **when}

    @property
    def outcome(self) -> dict[str, Any]:
        """What the summary says of a run that was ended; one that its recipe ends is finished."""
        if self.stopped is None:
            return {}
        status = "finished" if self.stopped["by"] == _STOP_KEY else "stopped"
        return {"status": status, "stopped": self.stopped}


def tell_stage(watcher: Watchers, stage: str) -> None:
    """Tell watchers what is done before the first tick."""
    for one in as_watchers(watcher):
        one.preparing(stage)


def as_watchers(watcher: Any) -> list[Watcher]:
    """What was given as `watcher`, as a list; SettingError where something in it is none."""
    given = [] if watcher is None else list(watcher) if isinstance(watcher, list | tuple) else [watcher]
    for one in given:
        if isinstance(one, type):
            raise SettingError(f"watcher is the class {one.__name__}: give an object of it, {one.__name__}(...).")
        if not isinstance(one, Watcher):
            raise SettingError(
                f"watcher is {show_value(one)}: give an object of a subclass of fedgmr.Watcher, or a list of them."
            )
        for method, argument in _TOLD.items():
            try:
                inspect.signature(getattr(one, method)).bind(None)
            except TypeError as error:
                raise SettingError(
                    f"{type(one).__name__}.{method} cannot be called with one value ({error}): write {method}(self, "
                    f"{argument})."
                ) from None
    return given
