"""Performs a planned sweep: in this process, in worker processes, or on a Ray cluster.

Whatever becomes of one run, the others go on. The outcomes say how each ended, and `exit_code` sums them up.
"""

import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from fedgmr.experiments.allocation import memory_shortage
from fedgmr.experiments.sweep.plan import PlannedRun, plan_sweep
from fedgmr.experiments.sweep.processes import run_in_processes
from fedgmr.experiments.sweep.work import Outcome, SweepWatcher, perform_run
from fedgmr.recipe import Recipe
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.refusals import SettingError


def run_sweep(
    recipes: Sequence[Recipe],
    store: Path,
    *,
    jobs: int = 1,
    ray: str | None = None,
    gpu_share: float | None = None,
    also: Sequence[Path] = (),
    watcher: SweepWatcher | None = None,
) -> list[Path]:
    """Do the runs that are missing; returns the run directories in the order of `recipes`.

    Args:
        recipes: the runs; equal ones are done once.
        store: directory of the runs, one directory each.
        jobs: how many at once, each in a process of its own; 1: one after the other, in this process.
        ray: address of a Ray cluster that sees the same store, or "local".
        gpu_share: with Ray, the share of a GPU a run gets; None: a whole one where there are any.
        also: directories whose finished runs count as well.
        watcher: is told how the runs go.

    Raises:
        SettingError: none of the runs could be done.
    """
    runs = plan_sweep(recipes, store, also=also)
    perform_sweep(runs, jobs=jobs, ray=ray, gpu_share=gpu_share, watcher=watcher)
    return [run.directory for run in runs]


def perform_sweep(
    runs: Sequence[PlannedRun],
    *,
    jobs: int = 1,
    ray: str | None = None,
    gpu_share: float | None = None,
    watcher: SweepWatcher | None = None,
) -> list[Outcome]:
    """Do what a plan leaves to do; returns how each of its runs ended, and warns of those that did not finish.

    Raises:
        SettingError: none of the runs could be done.
    """
    check_jobs(jobs)
    to_do = list({run.key: run for run in runs if run.to_do}.values())
    watching = watcher or _Unwatched()
    if ray is not None:
        from fedgmr.experiments.sweep.cluster import run_on_ray

        done = run_on_ray(to_do, watching, ray, jobs, gpu_share)
    else:
        done = run_in_processes(to_do, watching, jobs) if jobs > 1 else _run_here(to_do, watching)
    outcomes = [done.get(run.key) or perform_run(run.recipe, run.directory) for run in runs]
    refusals = [outcome.problem for outcome in outcomes if outcome.status == "refused"]
    if refusals and len(refusals) == len(outcomes):
        raise SettingError(refusals[0])
    for name, problem in {run.name: outcome.problem for run, outcome in zip(runs, outcomes, strict=True)}.items():
        if problem:
            warnings.warn(f"{name}: {problem}", stacklevel=2)
    return outcomes


def check_jobs(jobs: int) -> None:
    """Refuse a number of jobs below 1."""
    if jobs < 1:
        raise SettingError(f"--jobs is {jobs}: give at least 1.")


def _run_here(runs: Sequence[PlannedRun], watcher: SweepWatcher) -> dict[str, Outcome]:
    """Do the runs one after the other in this process; the outcomes by key."""
    outcomes = {}
    for run in runs:
        follower = watcher.begin(run.name, run.recipe.label, run.recipe.seconds)
        try:
            outcome = perform_run(run.recipe, run.directory, follower)
        except Exception as error:
            if memory_shortage(error) is not None:
                raise  # the next run would fall short of it, too
            outcome = Outcome(status="failed", problem=traceback.format_exc())
        outcomes[run.key] = outcome
        watcher.end(run.name, outcome.status, outcome.accuracy)
    return outcomes


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 all finished, 2 some cannot be run, 1 some processes died or failed, 3 some diverged; the first that holds."""
    ends = {outcome.status for outcome in outcomes}
    if "refused" in ends:
        return 2
    if ends & {"died", "failed"}:
        return 1
    return 3 if "diverged" in ends else 0


class _Unwatched(Watcher):
    """Watches a sweep and its runs, and does nothing."""

    def begin(self, name: str, label: str, seconds: float) -> "_Unwatched":
        return self

    def end(self, name: str, status: str, accuracy: float | None) -> None:
        pass
