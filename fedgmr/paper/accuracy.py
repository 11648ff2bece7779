"""Accuracy as the paper measures it, and the mean relative improvement.

Accuracy at t* is the mean over the 10 evaluations up to t* and the 10 after it. One deviation is over these 20
evaluations of one run, as in the paper; another one is over seeds. A run has up to three such numbers (`Kind`): of the
merged model; of the view that is best on validation samples, which is the model that the run hands out; and, as the
paper's numbers are made, of the larger of the merged and the padded model at each evaluation on the test set. Any other
kind is the name of a view.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgmr.paper.numbers import WINDOW, Paper
from fedgmr.paper.tables import Measure
from fedgmr.reporting.method_row import std
from fedgmr.reporting.records import Run

Kind = Literal["merged", "best", "larger"]


def evaluations_around(run: Run, t_star: float, kind: str = "merged") -> NDArray[np.float64]:
    """Accuracies (0..1) of the evaluations nearest to t*, as many before as after it; none where the kind is not there.

    Where fewer than `WINDOW` lie on a side, as in a short run, fewer are taken on both; the last one if there is
    none. Of a view that is tested seldom, those that there are.
    """
    values = accuracies(run, kind)
    middle = int(np.searchsorted(run.history.seconds, t_star, side="right"))
    count = min(WINDOW, middle, len(run.history.seconds) - middle)
    window = values[middle - count : middle + count] if count else values[-1:]
    return window if kind == "merged" else window[~np.isnan(window)]


def accuracy_at_t_star(runs: Sequence[Run], paper: Paper, task: str, kind: str = "merged") -> Measure | None:
    """Mean over the runs (one per seed) in percent; deviations are sample deviations (n - 1).

    None where a run has no such number.
    """
    stars = [paper.t_star(task, run.summary["seconds"]) for run in runs]
    windows = [100 * evaluations_around(run, star, kind=kind) for run, star in zip(runs, stars, strict=True)]
    if not all(map(len, windows)):
        return None
    means = [float(window.mean()) for window in windows]
    within = [float(window.std(ddof=1)) for window in windows if len(window) > 1]
    return Measure(
        mean=statistics.fmean(means),
        std=statistics.fmean(within) if within else None,
        seeds=len(runs),
        seeds_std=std(means),
    )


def best_views(runs: Sequence[Run]) -> str:
    """The names of the views that validation has chosen in these runs, for people."""
    names = [run.summary.get("best_view") for run in runs]
    return ", ".join(dict.fromkeys(str(name) for name in names if name is not None))


def accuracies(run: Run, kind: str) -> NDArray[np.float64]:
    """Accuracies (0..1) of all evaluations; NaN where the kind is not tested."""
    if kind == "merged":
        return run.history.accuracy
    if "views" not in run.summary:  # of a release that tested the merged model alone
        return np.full_like(run.history.accuracy, np.nan)
    if kind == "best":
        return run.history.view(str(run.summary["best_view"]))  # not there where decisions are made on the test set
    if kind == "larger":
        return np.fmax(run.history.accuracy, run.history.view("padded"))  # where both are the same, the merged one
    return run.history.view(kind)


def mean_relative_improvement(accuracies: Mapping[str, float]) -> float:
    """By how many percent FedGMR is better than the others, on average."""
    others = [value for name, value in accuracies.items() if name != "fedgmr"]
    return 100 * statistics.fmean((accuracies["fedgmr"] - other) / other for other in others)
