"""The rows of one run as columns of numbers, followed while they are written; a growing file is read once.

A resume replaces the file by its first rows and writes the others again. Until it has caught up, the rows that were
given out stand. `epoch` grows when some of them have changed. Read next: `watched.py`.
"""

import json
import math
import os
import stat
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.files import METRICS
from fedgmr.reporting.recorder import HOST_CLOCK

_COLUMNS = ("seconds", "tick", HOST_CLOCK, "accuracy", "loss", "bytes_server", "in_flight")
_PER_CLIENT = ("level", "density", "staleness", "updates", "bytes_down", "bytes_up")
_FIGURES = ("mean", "p10", "p50", "p90", "worst", "jain")  # of the evaluations per client
INTEGERS = frozenset(("tick", "bytes_server", "in_flight", *_PER_CLIENT)) - {"density"}
_END = 256  # bytes before the place where reading goes on, to notice a file that was written anew
_PACE = 10  # rows over which the time left is estimated


class Columns:
    """The rows so far; NaN where a row has no value."""

    def __init__(self) -> None:
        self.single: dict[str, array[float]] = {}
        self.per_client: dict[str, array[float]] = {name: array("d") for name in _PER_CLIENT}
        self.clients = 0
        self.first: Mapping[str, Any] = {}  # the first row
        self._marks: list[int] = []  # one for each row, of all values but the host's clock

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row; ValueError where it is none, and then nothing is added."""
        single = dict(_single_values(row))
        per_client = {name: _numbers(row[name]) for name in _PER_CLIENT}
        counts = {len(values) for values in per_client.values()}
        if counts != {self.clients if self._marks else len(row["level"])}:
            raise ValueError("not one number per client")
        if not self._marks:
            self.clients, self.first = len(row["level"]), row
        for name in single.keys() - self.single.keys():
            self.single[name] = array("d", [math.nan]) * len(self)
        for name, column in self.single.items():
            column.append(single.get(name, math.nan))
        for name, values in per_client.items():
            self.per_client[name].extend(values)
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

    def __init__(self, directory: Path) -> None:
        self._path = directory / METRICS
        self.columns, self.epoch, self.problem = Columns(), 0, ""
        self._tail, self._coming = _Tail(self._path), self.columns

    def advance(self, *, at_work: bool) -> None:
        """Take in what is new; `at_work`: somebody works on the run, so rows that were dropped are written again."""
        lines = self._tail.read()
        if lines is None:
            self._tail, self._coming, self.problem = _Tail(self._path), Columns(), ""
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


class _Tail:
    """The complete lines of a growing file, each given once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._end = path, 0, b""
        self._seen: os.stat_result | None = None

    def read(self) -> list[bytes] | None:
        """The lines since the last look, without a half-written last one; None where the file was written anew."""
        try:  # never through a link, nor waiting for what is no file
            number = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return [] if self._seen is None else None
        with os.fdopen(number, "rb") as file:
            now, seen = os.fstat(number), self._seen
            if not stat.S_ISREG(now.st_mode):
                return []
            if seen is not None and (
                (now.st_dev, now.st_ino) != (seen.st_dev, seen.st_ino)
                or now.st_size < self._offset
                or (now.st_size == seen.st_size and now.st_mtime_ns != seen.st_mtime_ns)
            ):
                return None
            if seen is not None and now.st_size == seen.st_size:
                return []
            file.seek(self._offset - len(self._end))
            data = file.read()
        if not data.startswith(self._end):
            return None
        self._seen = now
        complete = data[: data.rfind(b"\n") + 1]
        if len(complete) <= len(self._end):
            return []
        self._offset += len(complete) - len(self._end)
        lines = complete[len(self._end) :].splitlines()
        self._end = complete[-_END:]
        return lines


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


def _plain(name: str, values: Sequence[float]) -> list[float | None]:
    whole = int if name in INTEGERS else float
    return [None if math.isnan(value) else whole(value) for value in values]
