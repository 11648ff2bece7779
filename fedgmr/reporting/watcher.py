"""Watchers: what a run tells while it goes on, and how it is ended early.

A display is a watcher, and so is whatever a user gives to `simulate`. Read next: `experiments/watching.py`, which calls
them; `display.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fedgmr.reporting.records import Run


@dataclass(frozen=True)
class Stop:
    """What a watcher returns to end a run: the reason, a text for its summary."""

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason:
            raise ValueError(f"reason is {self.reason!r}: give Stop a text that says why the run ends.")


@runtime_checkable
class Watcher(Protocol):
    """Is told how a run goes, and may end it by returning a `Stop`; subclass it and write the methods you need.

    A run that is ended keeps its model, rows and summary, and the summary says who ended it and why. An exception
    interrupts the run instead: it leaves what was recorded before.
    """

    def preparing(self, stage: str) -> None:
        """Be told what is done before the first tick, such as "reading the data"."""
        return None

    def after_tick(self, state: Mapping[str, Any]) -> Stop | None:
        """Be told where the run stands: seconds, tick, accuracy, density, bytes_up, bytes_down.

        Accuracy is the leading metric; `readings`, as rows have them, say how it is read where it is none.
        """
        return None

    def after_evaluation(self, row: Mapping[str, Any]) -> Stop | None:
        """Be told a row, as `metrics.jsonl` has it; a resumed run does not repeat those before its checkpoint."""
        return None

    def at_end(self, run: Run) -> None:
        """Be told the result of a run that has ended, not of one that diverged or was interrupted."""
        return None
