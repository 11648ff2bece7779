"""The progress line of a run: redrawn in place on a terminal, an occasional plain line elsewhere.

A simulated run may report thousands of times a second, so `Progress.update` costs one clock reading unless a
line is due. The remaining time is the remaining virtual seconds at a smoothed virtual-per-wall speed.
"""

import math
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from fedgmr.reporting.rundir import format_bytes, format_percent

_TERMINAL_INTERVAL = 0.2  # wall seconds between two drawings
_PLAIN_INTERVAL = 10.0
_SMOOTHING = 10.0  # wall seconds over which the speed estimate forgets
# What a narrow terminal loses, in this order; label, time, accuracy and ETA stay.
_DROPPED_FIRST = ("tick", "density", "down", "up")


class Progress:
    """Shows how far a run is.

    Args:
        total_seconds: virtual seconds of the whole run.
        label: first word of the line.
        stream: where to write; standard error unless given.
        quiet: write nothing at all.
        clock: the wall clock, for tests.
    """

    def __init__(
        self,
        *,
        total_seconds: float,
        label: str = "fedgmr",
        stream: TextIO | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._total = total_seconds
        self._label = label
        self._quiet = quiet
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._interval = _TERMINAL_INTERVAL if self._terminal else _PLAIN_INTERVAL
        self._due = math.inf if quiet else -math.inf
        self._last: tuple[float, float] | None = None  # (wall, virtual) of the previous drawing
        self._speed: float | None = None  # virtual seconds per wall second
        self._drawn = 0  # characters to blank before the next drawing

    def update(
        self,
        *,
        seconds: float,
        tick: int,
        accuracy: float | None = None,
        density: float | None = None,
        bytes_up: float = 0,
        bytes_down: float = 0,
    ) -> None:
        """Report the state of the run; draws only when a line is due.

        Args:
            seconds: virtual seconds so far.
            tick: aggregation steps so far.
            accuracy: newest evaluation, 0..1; None before the first.
            density: mean over the clients.
            bytes_up: sent by all clients so far.
            bytes_down: received by all clients so far.
        """
        now = self._clock()
        if now < self._due:
            return
        self._due = now + self._interval
        self._measure(now, seconds)
        fields = {
            "label": self._label,
            "time": f"{seconds:,.0f}/{self._total:,.0f} s",
            "tick": f"tick {tick:,}",
            "accuracy": "" if accuracy is None else f"acc {format_percent(accuracy)}",
            "density": "" if density is None else f"density {density:.2f}",
            "up": f"up {format_bytes(bytes_up)}",
            "down": f"down {format_bytes(bytes_down)}",
            "eta": f"ETA {self._remaining(seconds)}",
        }
        self._draw({name: text for name, text in fields.items() if text})

    def close(self, message: str = "") -> None:
        """Clear the line, print `message` and fall silent; a second call does nothing."""
        if self._quiet:
            return
        self._quiet, self._due = True, math.inf
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
        if message:
            self._stream.write(message + "\n")
        self._stream.flush()

    def _measure(self, now: float, seconds: float) -> None:
        # The first report only sets the mark: a resumed run starts with virtual seconds spent elsewhere.
        if self._last is not None and now > self._last[0]:
            elapsed = now - self._last[0]
            speed = (seconds - self._last[1]) / elapsed
            keep = 0.0 if self._speed is None else math.exp(-elapsed / _SMOOTHING)
            self._speed = keep * (self._speed or 0.0) + (1.0 - keep) * speed
        self._last = (now, seconds)

    def _remaining(self, seconds: float) -> str:
        if not self._speed or self._speed < 0:
            return "-:--"
        return format_clock(max(0.0, self._total - seconds) / self._speed)

    def _draw(self, fields: dict[str, str]) -> None:
        if not self._terminal:
            self._stream.write("  ".join(fields.values()) + "\n")
            self._stream.flush()
            return
        width = columns(self._stream) - 1  # the last column would wrap on some terminals
        for name in _DROPPED_FIRST:
            if len("  ".join(fields.values())) <= width:
                break
            fields.pop(name, None)
        line = "  ".join(fields.values())[:width]
        self._stream.write("\r" + line.ljust(min(self._drawn, width)))
        self._stream.flush()
        self._drawn = len(line)


def format_clock(seconds: float) -> str:
    """Wall seconds as `4:05` or `1:02:03`."""
    left = round(seconds)
    hours, minutes, rest = left // 3600, left // 60 % 60, left % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def columns(stream: TextIO) -> int:
    """How wide the terminal behind a stream is."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # a stream without a file behind it
        return 80
