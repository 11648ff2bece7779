"""The progress line of a sweep: runs done, those running with their virtual seconds, and the time left for all.

The time left is the work left at the pace since the start. Work is what the runs were expected to take, so that a
long run counts more than a short one. `RunByRun` shows a sweep as one progress line after the other instead.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from fedgmr.reporting.progress import Progress, columns, format_clock

_TERMINAL_INTERVAL = 0.2  # wall seconds between two drawings
_PLAIN_INTERVAL = 30.0


class SweepProgress:
    """Shows how far a sweep is.

    Args:
        work: of every run still to do, by name: how long it is expected to take, in any unit.
        finished: how many of the sweep's runs were done before.
        stream: where to write; standard error unless given.
        clock: the wall clock, for tests.
    """

    def __init__(
        self,
        *,
        work: Mapping[str, float],
        finished: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock, self._began, self._due = clock, clock(), -math.inf
        self._terminal = self._stream.isatty()
        self._work, self._finished = dict(work), finished
        self._running: dict[str, _Running] = {}
        self._ended: set[str] = set()
        self._done_before = 0.0  # work of interrupted runs that was done before this sweep
        self._drawn = 0

    def began(self, name: str, label: str, seconds: float) -> None:
        """A run starts or goes on."""
        self._running[name] = _Running(label, seconds)
        if self._terminal:
            self._draw()

    def update(self, name: str, state: Mapping[str, float]) -> None:
        """Where a run stands; draws only when a line is due."""
        run = self._running[name]
        if run.now is None:
            # The first report: what a resumed run brings along was not done at today's pace.
            self._done_before += self._work[name] * state["seconds"] / run.total
        run.now = state["seconds"]
        if self._clock() >= self._due:
            self._draw()

    def ended(self, name: str, status: str) -> None:
        """A run ended."""
        self._running.pop(name, None)
        self._ended.add(name)
        if status != "finished":
            self._work[name] = 0.0  # it did not take its time, and says nothing about the pace
        self._draw()

    def clear(self) -> None:
        """Take the line away, for something else to be written; the next report brings it back."""
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
        self._drawn = 0

    def line(self) -> str:
        """The line as it stands."""
        done, running = self._finished + len(self._ended), list(self._running.values())
        whole = f"{done}/{self._finished + len(self._work)} runs done"
        return "  ".join([whole, *map(str, running), f"ETA {self._remaining()}"])

    def _remaining(self) -> str:
        done = sum(self._work[name] for name in self._ended)
        done += sum(self._work[name] * run.share for name, run in self._running.items())
        fresh, elapsed = done - self._done_before, self._clock() - self._began
        if fresh <= 0 or elapsed <= 0:
            return "-:--"
        return format_clock((sum(self._work.values()) - done) * elapsed / fresh)

    def _draw(self) -> None:
        self._due = self._clock() + (_TERMINAL_INTERVAL if self._terminal else _PLAIN_INTERVAL)
        line = self.line()
        if self._terminal:
            width = columns(self._stream) - 1  # the last column would wrap on some terminals
            line = line if len(line) <= width else line[: width - 1] + "…"
            self._stream.write("\r" + line.ljust(min(self._drawn, width)))
            self._drawn = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


class RunByRun:
    """Shows a sweep in this process as the progress lines of its runs, one after the other."""

    def __init__(self) -> None:
        self._line: Progress | None = None

    def began(self, name: str, label: str, seconds: float) -> None:
        """A run starts or goes on."""
        self._line = Progress(total_seconds=seconds, label=label)

    def update(self, name: str, state: Mapping[str, float]) -> None:
        """Where it stands."""
        assert self._line is not None
        self._line.update(**state)  # type: ignore[arg-type]

    def ended(self, name: str, status: str) -> None:
        """It ended."""
        self.clear()

    def clear(self) -> None:
        """Take the line away."""
        if self._line is not None:
            self._line.close()


class _Running:
    def __init__(self, label: str, total: float) -> None:
        self.label, self.total = label, total
        self.now: float | None = None  # virtual seconds, once reported

    @property
    def share(self) -> float:
        return min(1.0, (self.now or 0.0) / self.total)

    def __str__(self) -> str:
        return f"{self.label} {self.now or 0.0:,.0f}/{self.total:,.0f} s"
