"""What clients did when: tasks, absences and rates, from the rows of a run or from the journal of a deployed one.

A task is a list: client, level, the moment it left the server, how long it took, how long it was received and trained,
and why it was lost; None for what is not known, or not yet. So the rest of the time it took was for sending. `trips`,
`away` and `rates` of a row are those of docs/run-directory.md. Read next: `watched.py`.
"""

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.files import UPDATES
from fedgmr.pages.lines import Tail

_MOST_TASKS = 40_000  # the newest ones, which a page holds
_MOST_RATES = 2_000  # of a client's link one way; more are averaged
_ENDS = ("accepted", "refused", "lost", "unmerged")
_DIGITS = 2  # of seconds
_WIDTH, _AWAY = 6, 3  # numbers of a task and of an absence


class RowEvents:
    """The events of a run's rows, by row."""

    def __init__(self) -> None:
        self._tasks, self._away = array("d"), array("d")
        self._rates: list[tuple[float, float, array[float]] | None] = []  # by row: from, until, all numbers
        self._ends: list[tuple[int, int]] = []  # by row, how many numbers there were of both
        self._clients, self._last = 0, 0.0

    def add(self, row: Mapping[str, Any], clients: int) -> None:
        """Take a row's events; ValueError where they are none, and then nothing is added."""
        tasks = array("d", [number for trip in row.get("trips", ()) for number in _task(trip, clients)])
        away = array("d", [float(number) for client, *span in row.get("away", ()) for number in (client, *span)])
        rates = array("f", [rate for pair in row.get("rates", ()) for way in pair for rate in way])
        if len(away) % _AWAY or not all(map(math.isfinite, (*away, *rates))) or len(rates) % max(1, 2 * clients):
            raise ValueError("not the events of a row")
        self._clients = clients
        self._tasks += tasks
        self._away += away
        now = float(row["seconds"])
        self._rates.append((self._last, now, rates) if rates else None)
        self._ends.append((len(self._tasks), len(self._away)))
        self._last = now

    def given(self, start: int) -> dict[str, Any]:
        """The events of the rows from one on as plain data; the rates of a row as from, until, rates by client."""
        tasks, away = self._ends[start - 1] if start else (0, 0)
        tasks = max(tasks, len(self._tasks) - _WIDTH * _MOST_TASKS)
        return {
            "tasks": [_plain(self._tasks[at : at + _WIDTH]) for at in range(tasks, len(self._tasks), _WIDTH)],
            "away": [_plain(self._away[at : at + _AWAY]) for at in range(away, len(self._away), _AWAY)],
            "rates": [self._by_client(*known) for known in self._rates[start:] if known is not None],
            "joined": [],
        }

    def _by_client(self, since: float, until: float, rates: "array[float]") -> list[Any]:
        parts = len(rates) // (2 * self._clients)
        ways = [[_three(rate) for rate in rates[at : at + parts]] for at in range(0, len(rates), parts)]
        return [since, until, [ways[at : at + 2] for at in range(0, len(ways), 2)]]


class JournalEvents:
    """The events of a deployed run, from its journal; every look gives the newest tasks, with what became of them."""

    def __init__(self, directory: Path) -> None:
        self._tail = Tail(directory / UPDATES)
        self._path = directory / UPDATES
        self._clear()

    def _clear(self) -> None:
        self.lines = 0
        self._tasks: dict[str, list[Any]] = {}
        self._joined: dict[int, float] = {}

    def advance(self) -> None:
        """Take in what is new; a line that cannot be understood is left out."""
        lines = self._tail.read()
        if lines is None:  # a resume has cut the file, or a long one was put aside: then its tasks stand
            self._tail = Tail(self._path)
            lines = self._tail.read() or []
            if not (lines and lines[0].startswith(b'{"event": "earlier"')):
                self._clear()
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                continue
            self.lines += 1
        for name in list(self._tasks)[: max(0, len(self._tasks) - _MOST_TASKS)]:
            del self._tasks[name]

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, now = event["event"], _moment(event.get("seconds", 0.0))
        if kind == "joined":
            self._joined[int(event["client"])] = now
        elif kind == "dispatched":
            self._tasks[str(event["task"])] = [int(event["client"]), int(event["level"]), now, None, None, None, None]
        elif kind == "resumed":
            for task in self._tasks.values():
                if task[3] is None:
                    task[3], task[6] = max(0.0, round(now - task[2], _DIGITS)), "restarted"
        elif kind in _ENDS and str(event.get("task")) in self._tasks:
            task = self._tasks[str(event["task"])]
            ended = _moment(event.get("arrived", event["seconds"]))
            task[3] = max(0.0, round(ended - task[2], _DIGITS))
            task[6] = str(event.get("reason", kind)) if kind in ("refused", "lost") else None

    def given(self) -> dict[str, Any]:
        """All events as plain data."""
        joined = [[client, seconds] for client, seconds in sorted(self._joined.items())]
        return {"tasks": list(self._tasks.values()), "away": [], "rates": [], "joined": joined}


def thinned(events: Mapping[str, Any]) -> dict[str, Any]:
    """Events for a page: rates that are more than a screen can show are means over longer times."""
    rates = events["rates"]
    if sum(len(of[0][0]) for *_, of in rates) <= _MOST_RATES:
        return dict(events)
    together = math.ceil(len(rates) / _MOST_RATES)
    return {**events, "rates": [_mean(rates[at : at + together]) for at in range(0, len(rates), together)]}


def _mean(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """The rates of rows one after the other as one stretch."""
    means = []
    for client in range(len(rows[0][2])):
        ways = [[rate for row in rows for rate in row[2][client][way]] for way in (0, 1)]
        means.append([[_three(sum(way) / len(way))] for way in ways])
    return [rows[0][0], rows[-1][1], means]


def _three(rate: float) -> float:
    return float(f"{rate:.3g}")


def _task(trip: Sequence[Any], clients: int) -> list[float]:
    """A trip of a row as numbers: client, level, left, took, received, trained; lost ones have no `received`."""
    client, level, left, ready, computed, ended, _, up = trip
    if client not in range(clients):
        raise ValueError("no client of this run")
    left, took = float(left), math.nan if ended is None else float(ended) - float(left)
    times = (math.nan, math.nan) if up is None else (float(ready) - left, float(computed) - float(ready))
    found = [float(client), float(level), left, took, *times]
    if any(map(math.isinf, found)) or math.isnan(left):
        raise ValueError("not the moments of a task")
    return found


def _plain(numbers: Sequence[float]) -> list[Any]:
    found: list[Any] = [None if math.isnan(number) else round(number, _DIGITS) for number in numbers]
    found[0] = int(numbers[0])
    if len(found) == _WIDTH:
        found[1] = int(numbers[1])
        found.append("left" if found[4] is None else None)
    return found


def _moment(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a moment")
    return round(float(value), _DIGITS)
