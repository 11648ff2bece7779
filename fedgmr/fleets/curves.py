"""Rates that vary in time: the cumulative curve of a link, which says how much it has carried by any moment.

Rates are constant by pieces, so what is carried between two moments, and when an amount has been carried, are exact
and take one search. All clients who use the same trace share its pieces; a client has its own shift, scale and pace.
Read next: `network.py`, which turns bytes into moments.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A rate in MiB/s at every moment from 0 on; any other unit of amount does as well.

    Piece i begins at `starts[i]` seconds and ends where the next one begins, the last one at `end`. From there the
    curve repeats, or nothing is carried any more. Its views by `shifted`, `scaled` and `faster` share its pieces.
    """

    starts: Sequence[float]
    rates: Sequence[float]
    end: float
    repeats: bool = True
    shift: float = 0.0  # seconds of the trace that are over at moment 0
    scale: float = 1.0  # multiplies every rate
    pace: float = 1.0  # seconds of the trace that pass in a second
    # The amount carried before each piece and, last, by the end; empty: to be computed from checked pieces.
    totals: Sequence[float] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.totals:
            return
        starts, rates = array("d", self.starts), array("d", self.rates)
        bounds = (*starts, self.end)
        if len(starts) != len(rates) or not starts or starts[0] != 0:
            raise ValueError("A curve needs a rate for each of its starts, of which the first is 0.")
        if not math.isfinite(self.end) or any(not a < b for a, b in pairwise(bounds)):
            raise ValueError("The starts of a curve and its end must be ascending and finite.")
        if not all(0 <= rate < math.inf for rate in rates):
            raise ValueError("The rates of a curve must be finite numbers from 0 on.")
        amounts = (r * (b - a) for r, a, b in zip(rates, bounds, bounds[1:], strict=False))
        totals = array("d", accumulate(amounts, initial=0.0))
        if not math.isfinite(totals[-1]):
            raise ValueError("The rates of a curve are so large that what they carry is no finite number.")
        for name, value in (("starts", starts), ("rates", rates), ("totals", totals)):
            object.__setattr__(self, name, value)

    def shifted(self, seconds: float) -> "Curve":
        """The curve as it is `seconds` of the trace later."""
        shift = self.shift + seconds
        assert shift >= 0
        return replace(self, shift=shift % self.end if self.repeats else shift)

    def scaled(self, factor: float) -> "Curve":
        """The curve with every rate times `factor`."""
        return replace(self, scale=self.scale * factor)

    def faster(self, pace: float) -> "Curve":
        """The curve with its rates, which follow each other so many times faster."""
        return replace(self, pace=self.pace * pace)

    @property
    def mean(self) -> float:
        """The mean rate from the start of the trace to its end; exactly the rate where there is only one."""
        return self.scale * (self.rates[0] if self.constant else self.totals[-1] / self.end)

    @property
    def constant(self) -> bool:
        """Whether the rate is the same as long as the trace lasts."""
        return all(rate == self.rates[0] for rate in self.rates)

    @property
    def over(self) -> float:
        """The moment from which on nothing is carried any more; infinity where the curve repeats."""
        return math.inf if self.repeats else max(0.0, (self.end - self.shift) / self.pace)

    def carried(self, begin: float, end: float) -> float:
        """The amount that is carried between two moments."""
        (first, inside), (last, until) = self._place(begin), self._place(end)
        # Whole repetitions apart from the rest, so that many of them lose no digits.
        amount = (last - first) * self.totals[-1] + (self._total(until) - self._total(inside))
        return max(0.0, amount) * self.scale / self.pace

    def finish(self, begin: float, amount: float) -> float:
        """The moment at which `amount` has been carried from `begin` on; infinity where that never happens."""
        if amount <= 0 or begin == math.inf:
            return begin
        starts, rates, totals = self.starts, self.rates, self.totals
        whole = totals[-1]
        seconds = begin * self.pace + self.shift
        inside = seconds % self.end if self.repeats else min(seconds, self.end)
        piece = bisect_right(starts, inside) - 1
        # Within the trace, in its seconds and at its rates; one sum decides which piece is the last one.
        rate, until = rates[piece], totals[piece + 1]
        carried = totals[piece] + (inside - starts[piece]) * rate
        carried = carried if carried < until else until
        due = carried + amount * self.pace / self.scale
        if due <= until and rate and inside < self.end:
            return begin + amount / (rate * self.scale)
        if due <= carried:  # so little that it is lost in rounding
            return begin
        repetitions = 0.0
        if due > whole:
            if whole == 0 or not self.repeats:
                return math.inf
            repetitions, due = divmod(due, whole)
            if due == 0:  # it ends with the last piece that carries anything, before a silence at the end
                repetitions, due = repetitions - 1, whole
        piece = bisect_left(totals, due) - 1
        last = repetitions * self.end + starts[piece] + (due - totals[piece]) / rates[piece]
        return begin + (last - inside) / self.pace if last > inside else begin

    def _place(self, now: float) -> tuple[float, float]:
        """How many repetitions are over at a moment, and the seconds in the present one."""
        seconds = now * self.pace + self.shift
        return divmod(seconds, self.end) if self.repeats else (0.0, min(seconds, self.end))

    def _total(self, inside: float) -> float:
        """The amount that one repetition carries until so many seconds in it; it never falls from one to the next."""
        piece = bisect_right(self.starts, inside) - 1
        carried = self.totals[piece] + (inside - self.starts[piece]) * self.rates[piece]
        return min(carried, self.totals[piece + 1])
