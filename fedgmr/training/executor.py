"""Executors: train many tasks; the same results whichever executor and however the tasks are batched.

`sequential` trains one task after the other with the plain loop. Read next: `threaded.py` for a CPU, `graphed.py` and
`stacked.py` for a GPU.
"""

from collections.abc import Sequence
from typing import Protocol

from fedgmr.exchange import ClientTask, Update
from fedgmr.training.work import LocalTrainer


class Executor(Protocol):
    """Trains tasks; a task's update never depends on the tasks beside it."""

    @property
    def ahead(self) -> bool:
        """Whether it pays to hand over tasks before their updates are due, beside those that are."""
        ...

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """One update per task, in order."""
        ...


class SequentialExecutor:
    """One task after the other: the oracle."""

    ahead = False

    def __init__(self, trainer: LocalTrainer) -> None:
        self.trainer = trainer

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """One update per task, in order."""
        return [self.trainer.train(task) for task in tasks]
