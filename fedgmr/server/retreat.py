"""Retreat: when a client moves down again, because its link has become too slow for what restoration has added.

It is not of the paper, and off unless `restoration.retreat` is given. The time of every task counts, measured by either
fleet; a client goes down one level at a time and moves up again only where the larger sub-model would be well within
the bound. Read next: `restoration.py`, whose moves up are held to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedgmr.server.server import Server


@dataclass(frozen=True, kw_only=True)
class LastTask:
    """A client's last task that has come back."""

    level: int
    seconds: float
    slow: int  # so many tasks in a row, this one included, were too slow


@dataclass(frozen=True, kw_only=True)
class Retreat:
    """When a task is too slow, and when a client moves down for it, and up again."""

    periods: float = field(
        default=30.0,
        metadata={
            "above": 0,
            "help": (
                "a task that takes more than so many periods is too slow. Restored clients take many by design: "
                "the whole model on the slowest of the paper's links about 14"
            ),
        },
    )
    tasks: int = field(
        default=2,
        metadata={
            "at_least": 1,
            "help": "after so many too slow ones in a row the client moves one level down, never below its preset one",
        },
    )
    back: float = field(
        default=0.7,
        metadata={
            "above": 0,
            "at_most": 1,
            "help": (
                "a client moves up only where the larger sub-model would take at most this share of those "
                "periods, by the time of its last task and the number of coordinates"
            ),
        },
    )

    def noted(self, before: LastTask | None, *, level: int, seconds: float, period: float) -> LastTask:
        """A task that has come back, after the one `before` it."""
        slow = 0 if before is None else before.slow
        return LastTask(level=level, seconds=seconds, slow=slow + 1 if seconds > self.periods * period else 0)

    def admits(self, last: LastTask | None, level: int, *, sizes: Sequence[int], period: float) -> bool:
        """Whether a client may move up to a level; nothing speaks against one that has not finished a task yet."""
        if last is None:
            return True
        return last.seconds * sizes[level] / sizes[last.level] <= self.back * self.periods * period


def step_back(server: "Server", client: int, seconds: float) -> None:
    """Note how long a client's task took; the client moves one level down where its tasks have been too slow.

    It never moves below the level that it had before restoration: its preset one, or where densities are measured the
    one measured last. Back on that level, restoration has added nothing, so measurements move it freely again.
    """
    rule = server.rules.restoration
    if rule is None or rule.retreat is None:
        return
    period, task, last = server.rules.coordination.period, server.dispatched.get(client), server.memory.last
    assert period is not None, "a method without a period is refused"
    level = server.client_levels[client]
    of_task = level if task is None else task.level  # restoration may have moved the client while it worked
    last[client] = rule.retreat.noted(last.get(client), level=of_task, seconds=seconds, period=period)
    if last[client].slow < rule.retreat.tasks or level <= server.presets[client]:
        return
    server.client_levels[client] = server.restored[client] = level - 1
    last[client] = LastTask(level=of_task, seconds=seconds, slow=0)
    if client in server.memory.clients:
        server.memory.clients[client].clear()  # it watched another sub-model
    if level - 1 == server.presets[client]:
        del server.restored[client]
