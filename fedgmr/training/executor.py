"""The executor protocol: train many tasks; how they are batched never changes a result.

Read next: `plain/sequential.py`, the oracle; `choice.py`, which executor trains what.
"""

from collections.abc import Sequence
from typing import Protocol

from fedgmr.exchange import ClientTask, Update


class Executor(Protocol):
    """Trains tasks; a task's update never depends on the tasks beside it."""

    @property
    def ahead(self) -> bool:
        """Whether it pays to hand over tasks before their updates are due, beside those that are."""

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """Return one update per task, in order."""
