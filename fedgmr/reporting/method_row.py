"""One method of a comparison: the means and stds over its runs, and how people read them.

Read next: `comparison.py`, the rows side by side.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgmr.reading import Reading
from fedgmr.reporting.quantities import format_bytes, format_seconds
from fedgmr.reporting.records import Run

OF_CLIENTS = ("p10", "worst", "jain")  # figures per client, on request


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """One method; accuracy is the leading metric as it was recorded, whatever it is.

    The std of a single run and the way to a target never reached are None.
    """

    method: str
    runs: int
    accuracy: float
    accuracy_std: float | None
    half_accuracy: float
    half_accuracy_std: float | None
    reached: int
    seconds_to_target: float | None
    bytes_to_target: float | None
    p10: float | None = None  # of the last evaluation per client; this and the following on request
    worst: float | None = None
    jain: float | None = None

    @classmethod
    def of(cls, method: str, runs: Sequence[Run], budget: float, target: float) -> "MethodRow":
        """Average the runs of a method."""
        final, half = ([run.accuracy_at(time) for run in runs] for time in (budget, budget / 2))
        times = [time for run in runs if (time := run.time_to(target)) is not None]
        counts = [count for run in runs if (count := run.bytes_to(target)) is not None]
        return cls(
            method=method,
            runs=len(runs),
            accuracy=mean(final),
            accuracy_std=std(final),
            half_accuracy=mean(half),
            half_accuracy_std=std(half),
            reached=len(times),
            seconds_to_target=mean(times) if times else None,
            bytes_to_target=mean(counts) if counts else None,
            **{name: _of_clients(runs, name, budget) for name in OF_CLIENTS},
        )

    def client_cells(self, reading: Reading) -> list[str]:
        """Write the figures per client as people read them."""
        return [reading.number(self.p10), reading.number(self.worst), "-" if self.jain is None else f"{self.jain:.3f}"]

    def cells(self, reading: Reading) -> list[str]:
        """Write the row as people read it."""
        share = "" if self.reached == self.runs else f" ({self.reached} of {self.runs})"
        accuracies = ((self.accuracy, self.accuracy_std), (self.half_accuracy, self.half_accuracy_std))
        time, count = self.seconds_to_target, self.bytes_to_target
        return [
            self.method,
            str(self.runs),
            *(f"{reading.number(value)} ± {reading.number(std)}" for value, std in accuracies),
            ("-" if time is None else format_seconds(time)) + share,
            ("-" if count is None else format_bytes(count)) + share,
        ]


def mean(values: Sequence[float]) -> float:
    """The mean as a plain number; NaN where a value is."""
    return float(np.mean(values))


def std(values: Sequence[float]) -> float | None:
    """The sample standard deviation, NaN where a value is none; None for a single value."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def _of_clients(runs: Sequence[Run], name: str, budget: float) -> float | None:
    """Mean over the runs of a figure of their last evaluation per client within the time; None where one has none."""
    found = []
    for run in runs:
        within = (run.history.seconds <= budget) & np.isfinite(values := run.history.of_clients(name))
        found += [float(values[within][-1])] if within.any() else []
    return mean(found) if found and len(found) == len(runs) else None
