"""The clients' time: how long each received, trained, sent, waited, was away, and worked for nothing.

Everything is read from the rows, so a resumed run says the same. Every second of a client counts once. The moments are
those of the fields `trips` and `away` (docs/run-directory.md).
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

_DIGITS = 3
_PHASES = ("receiving", "training", "sending")


def time_use(rows: Sequence[Mapping[str, Any]], *, resumes: bool) -> dict[str, Any]:
    """The seconds of each client by what it did, under `time`; nothing where the rows have no trips.

    A client that is away and still at work counts as at work; with `resumes`, tasks stand still while it is away.
    """
    if not rows or "trips" not in rows[-1]:
        return {}
    end, clients = rows[-1]["seconds"], len(rows[-1]["updates"])
    away = [_Stretches() for _ in range(clients)]
    for row in rows:
        for client, begin, until in row["away"]:
            away[client].add(begin, until)
    used = {name: [0.0] * clients for name in (*_PHASES, "waiting", "away", "lost")}
    used["away"] = [gone.within(0.0, end) for gone in away]
    for client, _, leaving, ready, computed, ended, _, up in (trip for row in rows for trip in row["trips"]):
        moments = [end if m is None else min(m, end) for m in (leaving, ready, computed, ended)]
        phases = zip(_PHASES, pairwise(moments), strict=True)
        for name, (begin, until) in [("lost", (moments[0], moments[-1]))] if up is None else phases:
            gone = away[client].within(begin, until)
            used[name][client] += until - begin - (gone if resumes else 0.0)
            used["away"][client] -= 0.0 if resumes else gone
    counted = [sum(of[client] for of in used.values()) for client in range(clients)]
    used["waiting"] = [max(0.0, end - seconds) for seconds in counted]
    return {"time": {name: [round(seconds, _DIGITS) for seconds in of] for name, of in used.items()}}


class _Stretches:
    """Ascending stretches of time that do not overlap."""

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.ends: list[float] = []
        self.before: list[float] = [0.0]  # seconds of all stretches before each

    def add(self, begin: float, end: float) -> None:
        self.begins.append(begin)
        self.ends.append(end)
        self.before.append(self.before[-1] + end - begin)

    def within(self, begin: float, end: float) -> float:
        """The seconds of the stretches between two moments."""
        return self._until(end) - self._until(begin) if self.begins else 0.0

    def _until(self, moment: float) -> float:
        last = bisect_right(self.begins, moment) - 1
        return self.before[last] + min(moment, self.ends[last]) - self.begins[last] if last >= 0 else 0.0
