"""Who is there: the gaps in a client's presence, and the clients who are there now.

A gap is data like everything else in time: when a client leaves and returns is known for ever. What changes is kept in
a heap, so a tick looks only at clients that come or go. Read next: `availability.py`, which says who has which gaps.
"""

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedgmr.fleets.curves import Curve

_ROUNDING = 1e-9  # seconds; a return computed by `turn` must not fall just before itself in `away`
_ULPS = 4  # the same where seconds are so many that their last digit is more than that
_LEAPS = 100_000  # gaps in a row after which a client counts as gone for ever


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaps:
    """Stretches in which somebody is away; views with another shift share the edges."""

    edges: Sequence[float]  # seconds, ascending: leaving, returning, leaving, ...
    period: float = math.inf  # after which they come again
    shift: float = 0.0  # seconds of the period that are over at moment 0

    def away(self, now: float) -> bool:
        """Whether this is a moment of a gap."""
        return bisect_right(self.edges, self._place(now)[1]) % 2 == 1

    def turn(self, now: float) -> float:
        """The next moment after `now` at which a gap begins or ends."""
        return self._after(now, 1)

    def back(self, now: float) -> float:
        """The first moment after `now` at which a gap ends."""
        return self._after(now, 2 - bisect_right(self.edges, self._place(now)[1]) % 2)

    def _place(self, now: float) -> tuple[float, float]:
        """The moment at which the present period began, and the seconds in it."""
        if self.period == math.inf:
            return 0.0, now
        inside = now + max(_ROUNDING, _ULPS * math.ulp(now + self.shift)) + self.shift
        return inside - inside % self.period - self.shift, inside % self.period

    def _after(self, now: float, count: int) -> float:
        """Edge number `count` after `now`."""
        began, inside = self._place(now)
        index = bisect_right(self.edges, inside) + count - 1
        if index < len(self.edges):
            return began + self.edges[index]
        # An infinite period never comes again.
        return began + self.period + self.edges[index - len(self.edges)] if self.edges else math.inf


class Presence:
    """Who is there, as the clock goes on."""

    def __init__(self, gaps: Mapping[int, Sequence[Gaps]] | None = None, *, now: float = 0.0) -> None:
        """`gaps` are those of each client that has any; several of one client add up."""
        self._gaps = {client: list(of) for client, of in (gaps or {}).items() if of}
        self._distinct = list({id(gap): gap for of in self._gaps.values() for gap in of}.values())
        self.away: set[int] = set()
        self._turns = [(-math.inf, client) for client in self._gaps]  # by client: its next turn
        self.advance(now)

    @property
    def varies(self) -> bool:
        """Whether clients come and go at all."""
        return bool(self._gaps)

    def advance(self, now: float) -> list[int]:
        """Move the clock on, and return the clients that have come or gone since."""
        due = []
        # A turn may be seen a little before its moment (see `Gaps.away`), so those ahead by a rounding are asked too.
        while self._turns and self._turns[0][0] <= now + 2 * max(_ROUNDING, _ULPS * math.ulp(now)):
            due.append(heapq.heappop(self._turns)[1])
        changed = []
        for client in due:
            gone = any(gap.away(now) for gap in self._gaps[client])
            heapq.heappush(self._turns, (min(gap.turn(now) for gap in self._gaps[client]), client))
            if gone != (client in self.away):
                changed.append(client)
        self.away ^= set(changed)
        return changed

    def next_return(self, now: float) -> float:
        """The first moment after `now` at which a gap of some client ends."""
        return min((gap.back(now) for gap in self._distinct), default=math.inf)

    def stretches(self, client: int, begin: float) -> Iterator[tuple[float, float]]:
        """The stretches in which a client is there, from `begin` on; they end where it never returns."""
        gaps = self._gaps.get(client, ())
        for _ in range(_LEAPS):
            gone = [gap for gap in gaps if gap.away(begin)]
            if gone:
                begin = max(gap.turn(begin) for gap in gone)
            else:
                leaves = min((gap.turn(begin) for gap in gaps), default=math.inf)
                yield begin, leaves
                begin = leaves
            if begin == math.inf:
                return

    def leaves(self, client: int, now: float) -> float:
        """The first moment from `now` on at which a client is away."""
        start, end = next(self.stretches(client, now), (math.inf, math.inf))
        return end if start == now else now

    def finish(self, client: int, begin: float, amount: float, link: Curve | None = None) -> float:
        """The moment at which a client has done an amount that stands still while it is away; infinity for never.

        The amount is what a link carries; without one it is seconds.
        """
        for start, end in self.stretches(client, begin) if begin < math.inf else ():
            if link is None:
                done = end - start
                last = start + amount
            else:
                done = math.inf if end == math.inf else link.carried(start, end)
                last = link.finish(start, amount)
            if last <= end or done >= amount:
                return min(last, end)
            amount -= done
        return math.inf

    def last_leave(self, client: int, now: float) -> float:
        """The moment from `now` on at which a client leaves for ever; infinity where it never does."""
        last = deque((end for _, end in self.stretches(client, now)), maxlen=1)
        return last[0] if last else now

    def gone(self, begin: float, end: float) -> list[tuple[int, float, float]]:
        """Who is away between two moments: client, from, until."""
        found = []
        for client in sorted(self._gaps):
            last = begin
            for there, leaves in self.stretches(client, begin):
                if there > last:
                    found.append((client, last, min(there, end)))
                last = leaves
                if last >= end:
                    break
            if last < end:
                found.append((client, last, end))
        return found
