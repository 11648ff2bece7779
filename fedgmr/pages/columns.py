"""The rows of one run as columns of numbers, followed while they are written; a growing file is read once.

A resume replaces the file by its first rows and writes the others again. Until it has caught up, the rows that were
given out stand. `epoch` grows when some of them have changed. Read next: `watched.py`.
"""

import json
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgmr.files import METRICS
from fedgmr.pages.events import RowEvents
from fedgmr.pages.lines import Tail
from fedgmr.reporting.history import History
from fedgmr.reporting.recorder import HOST_CLOCK
from fedgmr.reporting.theory import Terms, Theory

_COLUMNS = ("seconds", "tick", HOST_CLOCK, "accuracy", "loss", "bytes_server", "in_flight")
_PER_CLIENT = ("level", "density", "staleness", "updates", "bytes_down", "bytes_up")
_FIGURES = ("mean", "p10", "p50", "p90", "worst", "jain")  # of the evaluations per client
INTEGERS = frozenset(("tick", "bytes_server", "in_flight", "checks_left", *_PER_CLIENT)) - {"density"}
_DIGITS = 5  # after the point, of a computed number
_NO_RECIPE = partial(Theory, {})
_PACE = 10  # rows over which the time left is estimated


class Columns:
    """The rows so far; NaN where a row has no value."""

    def __init__(self, theory: Callable[[], Theory] = _NO_RECIPE) -> None:
        """`theory` follows the rows; it is asked for when the first one comes."""
        self._make_theory = theory
        self.terms: Terms | None = None  # of the newest row
        self.single: dict[str, array[float]] = {}
        self.per_client: dict[str, array[float]] = {name: array("d") for name in _PER_CLIENT}
        self.clients = 0
        self.first: Mapping[str, Any] = {}  # the first row
        self.events = RowEvents()
        self._marks: list[int] = []  # one for each row, of all values but the host's clock

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row; ValueError where it is none, and then nothing is added."""
        single = dict(_single_values(row))
        per_client = {name: _numbers(row[name]) for name in _PER_CLIENT} | dict(_of_some(row))
        clients = self.clients if self._marks else len(row["level"])
        if {len(values) for values in per_client.values()} != {clients}:
            raise ValueError("not one number per client")
        self.events.add(row, clients)
        if not self._marks:
            self.clients, self.first = clients, row
            self._theory = self._make_theory()
        self.terms = self._theory.add(row)
        single |= dict(_theory_values(self.terms)) if self.terms else {}
        for name in per_client.keys() - self.per_client.keys():
            self.per_client[name] = array("d", [math.nan]) * (clients * len(self))
        for name in single.keys() - self.single.keys():
            self.single[name] = array("d", [math.nan]) * len(self)
        for name, column in self.single.items():
            column.append(single.get(name, math.nan))
        for name, column in self.per_client.items():
            column.extend(per_client.get(name, array("d", [math.nan]) * clients))
        single.pop(HOST_CLOCK)
        parts = [array("d", single.values()), *per_client.values()]
        self._marks.append(hash((*single, *(part.tobytes() for part in parts))))

    def given(self, start: int, *, clients: bool = True) -> dict[str, Any]:
        """The rows from one on as plain data, null where there is no value."""
        data: dict[str, Any] = {
            "columns": {name: _plain(name, column[start:]) for name, column in self.single.items()},
            "clients": {},
        }
        for name, values in self.per_client.items() if clients else ():
            flat, size = _plain(name, values[start * self.clients :]), max(1, self.clients)
            data["clients"][name] = [flat[at : at + size] for at in range(0, len(flat), size)]
        return data

    def history(self) -> History:
        """The rows as reporting has them, with as much of the rows themselves as tables ask for."""
        figures = {name: column for name in _FIGURES if (column := self.single.get(f"clients {name}"))}
        rows = [{"clients": {name: column[row] for name, column in figures.items()}} for row in range(len(self))]
        single = {name: _array(name, self.single[name]) for name in _COLUMNS}
        lists = {name: _array(name, self.per_client[name]).reshape(len(self), self.clients) for name in _PER_CLIENT}
        return History(rows=rows, views={}, **single, **lists)

    def begins(self, other: "Columns") -> bool:
        """Whether another one has all these rows and perhaps more; the host's clock does not count."""
        return self._marks == other._marks[: len(self)]

    def begins_exactly(self, other: "Columns") -> bool:
        """The same with the host's clock."""
        clock, others = (each.single.get(HOST_CLOCK, array("d")) for each in (self, other))
        return self.begins(other) and clock.tobytes() == others[: len(clock)].tobytes()

    def seconds_left(self, budget: float) -> float | None:
        """Seconds of the host until the time budget, at the pace of the last rows; None where there is no pace yet."""
        if len(self) < 2:
            return None
        seconds, wall = self.single["seconds"][-_PACE - 1 :], self.single[HOST_CLOCK][-_PACE - 1 :]
        left = (budget - seconds[-1]) * (wall[-1] - wall[0]) / ((seconds[-1] - seconds[0]) or math.nan)
        return max(0.0, left) if math.isfinite(left) else None


class FollowedRows:
    """The rows of a run directory, to be looked at again and again."""

    def __init__(self, directory: Path, theory: Callable[[], Theory] = _NO_RECIPE) -> None:
        self._path, self._theory = directory / METRICS, theory
        self.columns, self.epoch, self.problem = Columns(theory), 0, ""
        self._tail, self._coming = Tail(self._path), self.columns

    def advance(self, *, at_work: bool) -> None:
        """Take in what is new; `at_work`: somebody works on the run, so rows that were dropped are written again."""
        lines = self._tail.read()
        if lines is None:
            self._tail, self._coming, self.problem = Tail(self._path), Columns(self._theory), ""
            lines = self._tail.read() or []
        for line in () if self.problem else lines:
            try:
                self._coming.add(json.loads(line))
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
                self.problem = f"Line {len(self._coming) + 1} of {METRICS} is not a row of numbers."
                break
        shown, coming = self.columns, self._coming
        if coming is shown or (at_work and len(coming) < len(shown) and coming.begins(shown)):
            return
        self.epoch += not shown.begins_exactly(coming)
        self.columns = coming


def _single_values(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in _COLUMNS:
        yield name, _number(row[name])
    if "validation" in row:
        yield "validation", _number(row["validation"])
    for name, view in row.get("views", {}).items():
        yield f"view {name}", _number(view["accuracy"])
    for name, value in row.get("metrics", {}).items():
        yield f"metric {name}", _number(value)
    for name in _FIGURES:
        if name in row.get("clients", {}):
            yield f"clients {name}", _number(row["clients"][name])


def _of_some(row: Mapping[str, Any]) -> Iterator[tuple[str, "array[float]"]]:
    if "checks_left" in row:
        yield "checks_left", _numbers(row["checks_left"])
    if "accuracy" in row.get("clients", {}):
        yield "own", _numbers(row["clients"]["accuracy"])


def _theory_values(terms: Terms) -> Iterator[tuple[str, float]]:
    for name, value in terms.numbers().items():
        yield f"{name} (theory)", round(_number(value), _DIGITS)


def _number(value: Any) -> float:
    """A value of a JSON file; NaN where it is null or no finite number, which JSON for a browser cannot hold."""
    if value is None:
        return math.nan
    if not isinstance(value, int | float):
        raise ValueError("not a number")
    return float(value) if math.isfinite(value) else math.nan


def _numbers(values: Any) -> "array[float]":
    try:
        found = array("d", values)
    except TypeError:  # null among them
        found = array("d", [math.nan])
    return found if math.isfinite(sum(found)) else array("d", map(_number, values))


def _array(name: str, values: Sequence[float]) -> NDArray[Any]:
    found = np.array(values)
    return np.nan_to_num(found).astype(np.int64) if name in INTEGERS and name != "staleness" else found


def _plain(name: str, values: Sequence[float]) -> list[float | None]:
    whole = int if name in INTEGERS else float
    return [None if math.isnan(value) else whole(value) for value in values]
