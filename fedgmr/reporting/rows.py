"""The rows of a display: a run as it is expected, and as it goes on.

A `RunRow` is also the watcher that the loop tells after every tick. That happens up to thousands of times a second, so
it only keeps what it is told. Read next: `display.py`, which draws the rows.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgmr.files import METRICS, UPDATES, last_row
from fedgmr.reading import Reading
from fedgmr.reporting.quantities import format_bytes, format_clock
from fedgmr.reporting.watcher import Watcher

METRIC = "acc"  # the column of the leading metric, under its own name where it is no accuracy
DONE, UNKNOWN = "done", "-:--"
_TELLING = 1e-3  # share of a run that says something of its pace
_SMOOTHING = 10.0  # wall seconds over which the speed of a run forgets


@dataclass(frozen=True, kw_only=True)
class ExpectedRun:
    """One run of a sweep before it starts.

    Attributes:
        name: of its directory.
        label: method and seed, and whatever else tells it from the other runs.
        seconds: its time budget in virtual seconds.
        work: how long what is left of it is expected to take, in any unit; 0 for a run that has ended.
        done: virtual seconds that were done before.
        status: how it ended before; empty for one that is to be done.
        last: the last accuracy before, with `readings` where it is none; empty where nothing is known.
    """

    name: str
    label: str
    seconds: float
    work: float
    done: float = 0.0
    status: str = ""
    last: Mapping[str, Any]


class RunRow(Watcher):
    """One run in a display, and the watcher of that run.

    Args:
        label: the first words of the row.
        total: virtual seconds of the whole run.
        directory: the last words of the row.
        changed: is called with the row when it was told something.
    """

    def __init__(self, label: str, total: float, directory: str, changed: Callable[["RunRow"], None]) -> None:
        self.label, self.directory = label, directory
        self.seconds, self.total = 0.0, total  # virtual seconds so far, and of the whole run
        self.status = ""  # how the run ended
        self.stage = "starting"  # what is done before the first report
        self._changed = changed
        self._state: Mapping[str, Any] = {}  # the newest report
        self._seconds_before: float | None = None  # virtual seconds at the first report
        self._mark: tuple[float, float] | None = None  # (wall, virtual) seconds at the previous refresh
        self._speed = 0.0  # virtual seconds per wall second

    @classmethod
    def expected(cls, run: ExpectedRun, changed: Callable[["RunRow"], None]) -> "RunRow":
        """The row of a run that waits, or that ended before."""
        row = cls(run.label, run.seconds, run.name, changed)
        row.stage = "" if run.status else "waiting"
        row.seconds, row._state = run.done, run.last
        if run.status:
            row.end(run.status, None)
        return row

    def preparing(self, stage: str) -> None:
        """Report what is done before the first tick."""
        self.stage = stage
        self._changed(self)

    def after_tick(self, state: Mapping[str, Any]) -> None:
        """Report where the run stands: seconds, tick, accuracy, density, bytes_up and bytes_down; readings, if any."""
        if self._seconds_before is None:
            self._seconds_before = state["seconds"]
        self._state, self.seconds, self.stage = state, state["seconds"], ""
        self._changed(self)

    def follow(self, directory: Path) -> None:
        """Report where a run in another process stands, by the files of its directory; nothing before they exist."""
        row = last_row(directory / METRICS)
        if row is None:
            return
        tick = last_row(directory / UPDATES, event="tick") or row
        state = {
            "seconds": max(float(tick["seconds"]), float(row["seconds"])),
            "tick": max(int(tick["tick"]), int(row["tick"])),
            "accuracy": row["accuracy"],
            "density": sum(row["density"]) / len(row["density"]),
            "bytes_up": sum(row["bytes_up"]),
            "bytes_down": sum(row["bytes_down"]),
        }
        self.after_tick(state | ({"readings": row["readings"]} if "readings" in row else {}))

    def end(self, status: str, accuracy: float | None) -> None:
        """Report how the run ended; its last reports were made some time before."""
        self.status, self.stage = DONE if status == "finished" else status, ""
        self.seconds = self.total if status == "finished" else self.seconds
        if accuracy is not None:
            self._state = {**self._state, "accuracy": accuracy}

    @property
    def waiting(self) -> bool:
        """Whether the run has not begun."""
        return self.stage == "waiting"

    @property
    def reading(self) -> Reading:
        """How its leading metric is read, as far as it is known."""
        return Reading.recorded(self._state)[0]

    @property
    def share(self) -> float:
        """Share of the run that is done, 0..1."""
        return min(1.0, self.seconds / self.total)

    @property
    def progress(self) -> float:
        """Share that is done of what was left at the first report; what was done before says nothing of the pace."""
        if self.status == DONE:
            return 1.0
        before = self.seconds if self._seconds_before is None else self._seconds_before
        return min(1.0, (self.seconds - before) / (self.total - before)) if before < self.total else 0.0

    def fields(self, time_left: str) -> dict[str, str]:
        """The texts of the row by column; empty where nothing is known."""
        state, fields = self._state, {"run": self.label, "bar": self.stage}
        fields["time (s)"] = f"{self.seconds:,.0f}/{self.total:,.0f}"
        fields["tick"] = f"{state['tick']:,}" if "tick" in state else ""
        fields[METRIC] = self.reading.brief(state["accuracy"]) if "accuracy" in state else ""
        fields["density"] = f"{state['density']:.2f}" if "density" in state else ""
        fields["up"] = format_bytes(state["bytes_up"]) if "bytes_up" in state else ""
        fields["down"] = format_bytes(state["bytes_down"]) if "bytes_down" in state else ""
        return fields | {"ETA": self.status or time_left, "directory": self.directory}

    def time_left(self, now: float, otherwise: float | None) -> str:
        """The virtual seconds left at a smoothed speed, or `otherwise` in wall seconds while that is not known."""
        if self._seconds_before is not None:
            # The first report only sets the mark: a resumed run starts with virtual seconds spent elsewhere.
            if self._mark is not None and now > self._mark[0]:
                elapsed = now - self._mark[0]
                keep = math.exp(-elapsed / _SMOOTHING) if self._speed else 0.0
                self._speed = keep * self._speed + (1.0 - keep) * (self.seconds - self._mark[1]) / elapsed
            self._mark = now, self.seconds
        if self._speed > 0 and self.progress >= _TELLING:
            return format_clock(max(0.0, self.total - self.seconds) / self._speed)
        return UNKNOWN if otherwise is None else format_clock(otherwise)
