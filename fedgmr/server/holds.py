"""Holds: a client whose updates are refused again and again gets no task for a while.

Refusals in a row are strikes. After some of them the client waits, each time four times as long as the time before. It
is not waited for, and where nobody else could work it is asked all the same. Read next: `server.py`, which asks whom a
task may go to; `recovery.py`, which holds clients that it distrusts.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

_GROWTH = 4
_LONGEST = 2**30  # ticks


class Holds:
    """Counts strikes, and knows who waits until when."""

    def __init__(self, strikes: int, pause: int) -> None:
        """After so many strikes a client waits, at first for `pause` ticks; 0 strikes: nobody ever does."""
        self._most, self._pause = strikes, pause
        self.strikes: Counter[int] = Counter()  # by client, since its last admitted update
        self.times: Counter[int] = Counter()  # by client: how often it was put on hold
        self.until: dict[int, int] = {}  # by client: the tick at which it may work again

    def strike(self, client: int, tick: int) -> bool:
        """Count a refusal; returns whether the client is put on hold for it."""
        self.strikes[client] += 1
        if not self._most or self.strikes[client] < self._most:
            return False
        self.hold(client, tick)
        return True

    def hold(self, client: int, tick: int) -> None:
        """Let a client wait, longer than the last time."""
        del self.strikes[client]
        self.until[client] = tick + min(self._pause * _GROWTH ** self.times[client], _LONGEST)
        self.times[client] += 1

    def clear(self, client: int) -> None:
        """Forget the strikes of a client whose update was admitted."""
        del self.strikes[client]

    def allowed(self, free: Sequence[int], tick: int, *, idle: bool) -> list[int]:
        """The free clients that may work; all of them where the fleet would stand idle."""
        allowed = [client for client in free if self.until.get(client, 0) <= tick]
        return list(free) if idle and not allowed else allowed

    def state(self) -> list[list[Any]]:
        """JSON-ready data for a checkpoint."""
        return [sorted(self.strikes.items()), sorted(self.times.items()), sorted(self.until.items())]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Continue from what `state()` has returned."""
        strikes, times, until = state
        self.strikes, self.times, self.until = Counter(dict(strikes)), Counter(dict(times)), dict(until)
