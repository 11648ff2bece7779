"""About how long a sweep takes, before it starts: from runs that have finished, else from a short trial.

What is known of a task is wall seconds per virtual second, best of the same run, then of the same fleet and method,
then of whatever ran on this kind of device. A task nobody has run yet is tried for some seconds.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from fedgmr.experiments.assembly import assemble, make_task, resolve
from fedgmr.experiments.rundir import device_name
from fedgmr.experiments.sweep.plan import PlannedRun, Status
from fedgmr.experiments.sweep.processes import call_in_process
from fedgmr.federation import federate
from fedgmr.files import METRICS, RECIPE, SUMMARY, last_row, read_json
from fedgmr.recipe import Recipe, recipe_from
from fedgmr.reporting.quantities import format_duration
from fedgmr.settings.schema import plain
from fedgmr.settings.text import read_mapping

TRIAL_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Wall seconds: of each run by name (None where unknown), and how they were found."""

    runs: Mapping[str, float | None]
    tried: bool

    def total(self, jobs: int) -> float | None:
        """Of the whole sweep with so many runs at once; None where a run is unknown."""
        known = [seconds for seconds in self.runs.values() if seconds is not None]
        if len(known) < len(self.runs):
            return None
        return max([sum(known) / jobs, *known])


def estimate_sweep(
    runs: Sequence[PlannedRun], stores: Sequence[Path], *, trial_seconds: float = TRIAL_SECONDS
) -> Estimate:
    """How long what is left of each run will take.

    Args:
        runs: a plan.
        stores: directories with runs to go by.
        trial_seconds: about how long an unknown task is tried; 0: not at all.
    """
    to_do = {run.name: run for run in runs if run.to_do}.values()
    rates = _rates(stores) if to_do else {}
    trials: dict[Trait, float | None] = {}
    found: dict[str, float | None] = {}
    for run in to_do:
        row = last_row(run.directory / METRICS)
        done = float(row["seconds"]) if row else 0.0
        rate = row["wall"] / done if row and done > 0 else _rate(run.recipe, rates)
        if rate is None and trial_seconds > 0:
            task = _wanted(run.recipe)[-1]
            if task not in trials:
                trials[task] = try_out(run.recipe, trial_seconds)
            rate = trials[task]
        found[run.name] = None if rate is None else rate * (run.recipe.seconds - done)
    return Estimate(runs=found, tried=bool(trials))


def describe_plan(runs: Sequence[PlannedRun], estimate: Estimate, jobs: int) -> str:
    """How many runs, how many of them are done, and about how long the others take; one line."""
    statuses = Counter({run.key: run.status for run in runs}.values())
    told = ", ".join(f"{statuses[status]} {words}" for status, words in _WORDS.items() if statuses[status])
    line = f"{statuses.total()} run{'' if statuses.total() == 1 else 's'}: {told}."
    if not estimate.runs:
        return line
    total = estimate.total(jobs)
    if total is None:
        return f"{line} How long it takes is not known."
    basis = "after a short trial" if estimate.tried else "going by earlier runs"
    at_once = f" with {jobs} at once" if jobs > 1 else ""
    return f"{line} About {format_duration(total)}{at_once}, {basis}."


_WORDS: dict[Status, str] = {
    "finished": "finished",
    "diverged": "diverged",
    "interrupted": "interrupted",
    "missing": "to start",
}


def try_out(recipe: Recipe, wall: float) -> float | None:
    """Wall seconds per virtual second, measured in a process of its own, which frees what it took; None if it fails."""
    found = call_in_process(measure_rate, plain(recipe), wall)
    return found if isinstance(found, float) else None  # where it failed, the run itself will tell


def measure_rate(data: Mapping[str, Any], wall: float) -> float:
    """Train for about `wall` seconds, at least for two ticks; wall seconds per virtual second, with evaluations."""
    recipe = recipe_from(data)
    task = make_task(recipe)
    assembly = assemble(resolve(recipe, task), task)
    server, fleet, every = assembly.server, assembly.fleet, assembly.recipe.evaluation.every_seconds
    assert every is not None
    began = time.perf_counter()
    assembly.evaluator.test(server.model, server.buffers)
    marks = [(time.perf_counter(), 0.0)]
    evaluation = marks[0][0] - began

    def enough() -> bool:
        marks.append((time.perf_counter(), fleet.now))
        return len(marks) > 2 and marks[-1][0] - marks[1][0] > wall

    federate(server, fleet, seconds=recipe.seconds, stop=enough)
    if fleet.now < recipe.seconds:
        first, last = marks[1], marks[-1]  # much of what comes before the first tick happens once
    else:
        first, last = marks[0], (time.perf_counter(), recipe.seconds)  # that was all of it
    return (last[0] - first[0]) / (last[1] - first[1]) + evaluation / every


Trait = tuple[str, ...]


def _traits(task: str, device: str, fleet: str, method: str) -> list[Trait]:
    """What runs may have in common, from the most to the least telling."""
    return [(task, device, fleet, method), (task, device, fleet), (task, device)]


def _wanted(recipe: Recipe) -> list[Trait]:
    device = recipe.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.cuda.is_available() or not device.startswith("cuda"):
        device = device_name(device)
    return _traits(recipe.task.name, device, recipe.fleet.name, recipe.method.name)


def _rate(recipe: Recipe, rates: Mapping[Trait, Sequence[float]]) -> float | None:
    return next((mean(rates[trait]) for trait in _wanted(recipe) if trait in rates), None)


def _rates(stores: Sequence[Path]) -> dict[Trait, list[float]]:
    """Wall seconds per virtual second of the finished runs below `stores`."""
    rates: dict[Trait, list[float]] = {}
    for path in sorted({path.parent for store in stores for path in store.rglob(SUMMARY)}):
        try:
            summary, task = read_json(path / SUMMARY), read_mapping(path / RECIPE)["task"]["name"]
            if summary["status"] == "finished":
                for trait in _traits(task, summary["device"], summary["fleet"], summary["method"]):
                    rates.setdefault(trait, []).append(summary["wall_seconds"] / summary["seconds"])
        except (ValueError, KeyError, TypeError, OSError):  # not a run, or one of another release
            continue
    return rates
