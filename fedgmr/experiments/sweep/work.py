"""One run of a sweep, wherever it is computed: begun or resumed, watched, and how it ended.

Where a run itself is at fault (training that diverges, settings or files that do not work), its outcome says so and the
other runs go on.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from fedgmr.exchange import Diverged
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.sweep.plan import run_status
from fedgmr.files import SUMMARY, read_json
from fedgmr.recipe import Recipe
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.refusals import say_in_one_line
from fedgmr.settings.schema import plain
from fedgmr.settings.trust import import_paths


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a run.

    Attributes:
        status: `finished`; `diverged` (its record is there); `refused`: it cannot be run as things are; `died`: its
            process was lost, again and again; `failed`: a defect of the program.
        problem: a sentence for people; empty where there is none.
        accuracy: the last one, 0..1, of a run that finished now.
    """

    status: Literal["finished", "diverged", "refused", "died", "failed"]
    problem: str = ""
    accuracy: float | None = None


class SweepWatcher(Protocol):
    """Sees how a sweep goes on (a display, a log). Runs are known by the names of their directories."""

    def begin(self, name: str, label: str, seconds: float) -> Watcher:
        """Take note that a run starts or goes on, with its label and its virtual seconds; returns its watcher."""

    def end(self, name: str, status: str, accuracy: float | None) -> None:
        """Take note that a run ended, with the status and the accuracy of its outcome."""


class Reporter(Watcher):
    """The watcher of one run: sends each `stage`, and then its state as an `update`, once in so many wall seconds."""

    def __init__(self, send: Callable[[str, Any], object], interval: float) -> None:
        self._send, self._interval, self._due = send, interval, 0.0

    def preparing(self, stage: str) -> None:
        """Pass on what is done before the first tick."""
        self._send("stage", stage)

    def after_tick(self, state: Mapping[str, Any]) -> None:
        """Pass the state on, if that is due."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._interval
            self._send("update", state)


def perform_run(recipe: Recipe, directory: Path, watcher: Watcher | None = None) -> Outcome:
    """Do what is left of a run; nothing where it has ended already."""
    try:
        status = run_status(directory)
        if status == "missing":
            return Outcome(status="finished", accuracy=run_recipe(recipe, directory, watcher).final_accuracy)
        if status == "interrupted":
            resumed = resume_run(directory, watcher, trust=import_paths(plain(recipe)))
            return Outcome(status="finished", accuracy=resumed.final_accuracy)
        if status == "diverged":
            problem = read_json(directory / SUMMARY).get("problem", "It diverged.")
            return Outcome(status="diverged", problem=str(problem))
    except Diverged as error:
        return Outcome(status="diverged", problem=str(error))
    except (ValueError, OSError) as error:
        return Outcome(status="refused", problem=say_in_one_line(error))
    return Outcome(status="finished")
