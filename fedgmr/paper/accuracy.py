"""Accuracy as the paper measures it, and the mean relative improvement.

Accuracy at t* is the mean over the 10 evaluations up to t* and the 10 after it. One deviation is over these 20
evaluations of one run, as in the paper; another one is over seeds.
"""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgmr.paper.numbers import WINDOW, Paper
from fedgmr.paper.tables import Measure
from fedgmr.reporting.records import Run


def evaluations_around(run: Run, t_star: float, each_side: int = WINDOW) -> NDArray[np.float64]:
    """Accuracies (0..1) of the evaluations nearest to t*, as many before as after it.

    Where fewer than `each_side` lie on a side, as in a short run, fewer are taken on both; the last one if there is
    none.
    """
    middle = int(np.searchsorted(run.history.seconds, t_star, side="right"))
    count = min(each_side, middle, len(run.history.seconds) - middle)
    if count == 0:
        return run.history.accuracy[-1:]
    return run.history.accuracy[middle - count : middle + count]


def accuracy_at_t_star(runs: Sequence[Run], paper: Paper, task: str) -> Measure:
    """Mean over the runs (one per seed) in percent; deviations are sample deviations (n - 1)."""
    windows = [100 * evaluations_around(run, paper.t_star(task, run.summary["seconds"])) for run in runs]
    means = [float(window.mean()) for window in windows]
    within = [float(window.std(ddof=1)) for window in windows if len(window) > 1]
    return Measure(
        mean=statistics.fmean(means),
        std=statistics.fmean(within) if within else None,
        seeds=len(runs),
        seeds_std=statistics.stdev(means) if len(means) > 1 else None,
    )


def mean_relative_improvement(accuracies: Mapping[str, float], method: str = "fedgmr") -> float:
    """By how many percent `method` is better than the others, on average."""
    others = [value for name, value in accuracies.items() if name != method]
    return 100 * statistics.fmean((accuracies[method] - other) / other for other in others)
