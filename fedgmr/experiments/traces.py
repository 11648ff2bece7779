"""Trace files made, described and drawn: what `fedgmr trace` does.

A description looks at the rate of every second, so that traces of different resolution compare; of a very long trace
it looks at longer stretches. Rates are in Mbit/s here, as measurements are published; links have MiB/s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt

from fedgmr.fleets.curves import Curve
from fedgmr.fleets.drive import COMMUTE_REST, drive_rates
from fedgmr.fleets.given_files import read_given
from fedgmr.fleets.trace_files import Unit, read_trace
from fedgmr.reporting.plots import rates_figure
from fedgmr.reporting.quantities import align_table, format_seconds
from fedgmr.settings.refusals import SettingError

Directions = Sequence[tuple[str, Curve]]  # "down" and "up", where a file has both
Rates = npt.NDArray[np.float64]

KINDS = {"drive": 0, "commute": COMMUTE_REST}  # seconds of a steady link after the drive
UNITS: tuple[Unit, ...] = get_args(Unit)
MBIT = 8 * 2**20 / 1e6  # Mbit/s of 1 MiB/s
_LONGEST = 1_000_000  # seconds that a trace is made for, and stretches that one is described by
_DRAWN = 600  # stretches of a figure
_BLOCKS = "▁▂▃▄▅▆▇█"
IN_ASCII = str.maketrans(_BLOCKS, ".:-=+*#@")  # for streams that cannot have blocks


def make_trace(kind: str, *, seconds: int, seed: int) -> str:
    """A generated trace as the text of a CSV file, one row per second; `seconds` is the length of its drive."""
    if kind not in KINDS:
        raise SettingError(f"{kind!r} is not a kind of trace that can be made: give {' or '.join(KINDS)}.")
    if not 1 <= seconds <= _LONGEST:
        raise SettingError(f"--seconds is {seconds}: give a number from 1 to {_LONGEST}.")
    if seed < 0:
        raise SettingError(f"--seed is {seed}: give a number from 0 on.")
    down, up = drive_rates(seconds, seed=seed, rest=KINDS[kind])
    rows = (f"{second},{d * MBIT:.5g},{u * MBIT:.5g}" for second, (d, u) in enumerate(zip(down, up, strict=True)))
    return "\n".join(["seconds,down Mbit/s,up Mbit/s", *rows, ""])


def read_traces(paths: Sequence[str], *, unit: Unit | None = None) -> dict[str, Directions]:
    """Read trace files, each with its directions; `unit` is that of rates without one."""
    found: dict[str, Directions] = {}
    for path in paths:
        content = read_given(path, "The trace")
        down, up = read_trace(content, path, unit=unit)
        found[path] = [("", down)] if up is None else [("down", down), ("up", up)]
    return found


@dataclass(frozen=True, kw_only=True)
class Description:
    """One direction of a trace in numbers: Mbit/s and seconds."""

    seconds: float
    mean: float
    median: float
    fifth: float  # percentile
    silent: float
    longest_silence: float
    line: str  # the rate over time


def describe(curve: Curve) -> Description:
    """Describe the rates of a trace from its start to its end."""
    rates, width = stretches(curve)
    silences = np.flatnonzero(np.diff(np.concatenate([[False], rates == 0, [False]])))
    lengths = silences[1::2] - silences[::2]
    return Description(
        seconds=curve.end,
        mean=float(rates.mean()),
        median=float(np.median(rates)),
        fifth=float(np.percentile(rates, 5)),
        silent=width * int(lengths.sum()),
        longest_silence=width * int(lengths.max(initial=0)),
        line=_spark_line(rates),
    )


def stretches(curve: Curve, most: int = _LONGEST) -> tuple[Rates, float]:
    """The mean rates, Mbit/s, of every second of a trace, or of as many equal stretches; and their length."""
    count = min(max(1, math.floor(curve.end)), most)
    width = curve.end / count if count == most or curve.end < 1 else 1.0
    bounds = np.array([*curve.starts, curve.end])
    carried = np.concatenate([[0.0], np.cumsum(np.diff(bounds) * curve.scale * np.array(curve.rates))])
    return np.diff(np.interp(width * np.arange(count + 1), bounds, carried)) / width * MBIT, width


def _spark_line(rates: Rates) -> str:
    """The rates as a line of 24 blocks, each the mean of its part; blank where nothing was carried."""
    parts = [part.mean() for part in np.array_split(rates, min(24, len(rates)))]
    top = max(parts)
    return "".join(_BLOCKS[math.ceil(part / top * len(_BLOCKS)) - 1] if part > 0 else " " for part in parts)


def description_table(traces: Mapping[str, Directions]) -> list[str]:
    """The lines of a table of traces by name, each with its directions."""
    rows = [["trace", "", "rate over time", "length", "mean", "median", "5th pct.", "silent", "longest"]]
    for name, directions in traces.items():
        for direction, curve in directions:
            told = describe(curve)
            rates = [f"{rate:.3g}" for rate in (told.mean, told.median, told.fifth)]
            times = [format_seconds(seconds) for seconds in (told.silent, told.longest_silence)]
            rows.append([name, direction, told.line, format_seconds(told.seconds), *rates, *times])
    return [
        *align_table(rows, words=3),
        "",
        "Rates in Mbit/s, of every second; silent: nothing is carried.",
    ]


def draw_traces(traces: Mapping[str, Directions], path: Path) -> None:
    """Draw the rates of traces by name over time; of a long trace the means of stretches."""
    drawn: dict[str, tuple[Rates, Rates]] = {}
    for name, directions in traces.items():
        for direction, curve in directions:
            rates, width = stretches(curve, _DRAWN)
            drawn[f"{Path(name).name} {direction}".strip()] = (np.arange(len(rates) + 1) * np.float64(width), rates)
    rates_figure(drawn).write(path)
