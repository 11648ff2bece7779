"""About how long runs will take on this device, told before they start.

An interrupted run is estimated by its own pace, and a run that differs from finished ones in seed or length alone by
theirs. For any other, the time model counts the client updates as if no client were restored, and the time of one is
measured on the real objects of a run: for every way of training (a method's sub-models) and, on a CPU, every level;
so is part of an evaluation. Merging and recording are left out.
"""

import json
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from fedgmr.experiments.assembly import as_evaluated, assemble, make_task, resolve, resolve_device, resolve_times
from fedgmr.experiments.rundir import device_name, read_recipe
from fedgmr.experiments.sweep.keys import recipe_key
from fedgmr.experiments.sweep.plan import PlannedRun
from fedgmr.experiments.sweep.processes import call_in_process
from fedgmr.experiments.time_model import make_network, run_untrained
from fedgmr.experiments.views import views_per_evaluation
from fedgmr.files import METRICS, SUMMARY, last_row, read_json
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.recipe import Recipe, recipe_from
from fedgmr.reporting.quantities import format_duration
from fedgmr.server.coordination import Asynchronous
from fedgmr.server.participation import Known
from fedgmr.server.server import Server
from fedgmr.settings.schema import plain
from fedgmr.settings.trust import import_paths
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.task import Task

_COUNTED = 500  # client updates of which the pace is counted, and at least so many merges:
_LEAST_MERGES = 3
_PROBED_SAMPLES = 500  # of the test set


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Wall seconds that each run will still take, by name (None where unknown), and how they were found."""

    seconds: Mapping[str, float | None]
    timed: bool  # whether tasks were timed on this device; otherwise earlier runs told

    @property
    def known(self) -> dict[str, float] | None:
        """The seconds by name, if all are known."""
        known = {name: seconds for name, seconds in self.seconds.items() if seconds is not None}
        return known if len(known) == len(self.seconds) else None

    def total(self, jobs: int) -> float | None:
        """Wall seconds of all runs with so many at once; None where that is not known."""
        if self.known is None:
            return None
        return max([sum(self.known.values()) / jobs, *self.known.values()], default=0.0)

    def text(self, jobs: int) -> str:
        """About how long all runs take with so many at once, in a sentence; empty where there is nothing to do."""
        if not self.seconds:
            return ""
        total = self.total(jobs)
        if total is None:
            return "How long it takes is not known."
        basis = "after a short trial" if self.timed else "going by earlier runs"
        at_once = f" with {jobs} at once" if jobs > 1 else ""
        return f"About {format_duration(total)}{at_once}, {basis}."


def estimate_runs(
    runs: Sequence[PlannedRun], stores: Sequence[Path], *, apart: bool = True, task: Task | None = None
) -> Estimate:
    """Estimate how long the rest of each run of a plan takes, alone on this device; `stores` have runs to go by.

    A trial costs a few client updates of each kind. It is made in a process of its own, which frees what it took,
    unless `apart` is false: where this process does the runs anyway, that saves the start of another, and reading the
    data where their `task` is given.
    """
    to_do = list({run.name: run for run in runs if run.to_do}.values())
    trust = {path for run in to_do for path in import_paths(plain(run.recipe))}
    rates = _finished_rates(stores, trust) if to_do else {}
    seconds: dict[str, float | None] = {}
    unknown = []
    for run in to_do:
        done, wall = _recorded(run)
        found = [wall / done] if done > 0 else rates.get(_kind(run.recipe, _device(run.recipe)))
        seconds[run.name] = None if found is None else mean(found) * (run.recipe.seconds - done)
        if found is None:
            unknown.append(run)
    if unknown:
        recipes = [plain(run.recipe) for run in unknown]
        # Where it fails, the runs themselves will tell why.
        timed = (call_in_process(time_recipes, recipes) if apart else _timed_here(recipes, task)) or [None] * len(
            unknown
        )
        seconds |= zip([run.name for run in unknown], timed, strict=True)
    return Estimate(seconds=seconds, timed=bool(unknown))


def _recorded(run: PlannedRun) -> tuple[float, float]:
    """The virtual and the wall seconds so far; none where the row was edited, which the run itself will tell."""
    row = last_row(run.directory / METRICS) or {}
    done, wall = row.get("seconds"), row.get("wall")
    return (done, wall) if isinstance(done, int | float) and isinstance(wall, int | float) else (0.0, 0.0)


def _timed_here(recipes: Sequence[Mapping[str, Any]], task: Task | None) -> list[float | None] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the runs warn, too
            return time_recipes(recipes, task)
    except Exception:
        return None


def time_recipes(recipes: Sequence[Mapping[str, Any]], task: Task | None = None) -> list[float | None]:
    """Wall seconds of each run; None where it cannot be made. Methods whose clients train alike are probed once.

    All runs are of one `task` where it is given.
    """
    tasks: dict[str, Task] = {}
    probes: dict[str, Probe | None] = {}
    known: dict[str, float | None] = {}
    seconds = []
    for given in recipes:
        recipe = recipe_from(given)
        # Seeds differ in noise alone, so one of them stands for all.
        data = plain(replace(recipe, seed=0))
        alike, way, source = (json.dumps(part, sort_keys=True) for part in (data, _way(data), data["task"]))
        if alike not in known:
            known[alike] = None
            with suppress(ValueError, OSError, ArithmeticError):
                if way not in probes:
                    probes[way] = None
                    if source not in tasks:
                        tasks = {source: task or make_task(recipe)}  # one at a time in memory
                    probes[way] = Probe.measure(recipe, tasks[source])
                if probe := probes[way]:
                    known[alike] = probe.run_seconds(recipe)
        seconds.append(known[alike])
    return seconds


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The parts of a run in wall seconds on this device."""

    layout: Layout
    updates: tuple[float, ...]  # a client's task at each level of the ladder
    sample: float  # one sample of an evaluation
    test: int  # samples of the test set
    validation: int  # samples the server holds out

    @classmethod
    def measure(cls, recipe: Recipe, task: Task) -> "Probe":
        """Time clients' tasks and part of an evaluation, on the device the recipe asks for."""
        task = as_evaluated(task, recipe)
        count = min(len(task.test), _PROBED_SAMPLES)
        small: Task = replace(task, test=task.test.part(slice(count)))
        assembly = assemble(resolve(recipe, task), small)
        server, executor, device = assembly.server, assembly.fleet.executor, torch.device(assembly.recipe.device)
        tasks, levels = server.tasks(range(assembly.fleet.clients), 0.0), range(len(server.ladder))
        if device.type == "cpu":
            each = [[replace(tasks[0], level=level)] for level in levels]
            executor.train(each[-1])  # the first time is never typical
            updates = tuple(_wall_seconds(device, executor.train, task) for task in each)
        else:  # works on all of them at once
            executor.train(tasks)
            updates = (_wall_seconds(device, executor.train, tasks) / len(tasks),) * len(levels)
        evaluated = _wall_seconds(device, assembly.evaluator.test, server.model, server.buffers)
        return cls(
            layout=server.layout,
            updates=updates,
            sample=evaluated / count,
            test=len(task.test),
            validation=len(task.hold_out(recipe.seed)[1]),
        )

    def run_seconds(self, recipe: Recipe) -> float:
        """Wall seconds of a run: client updates, evaluations, and the validations of restoration."""
        updates, merges = count_updates(recipe, self.layout)
        every = resolve_times(recipe, lambda: self.layout).evaluation.every_seconds
        assert every is not None
        views = views_per_evaluation(recipe)
        validated = self.validation if views > 1 and recipe.evaluation.validation == "server" else 0
        evaluated = (recipe.seconds / every + 2) * views * (self.test + validated)
        if recipe.method.restoration is not None:
            levels = len({link.density for link in recipe.fleet.resolved_links()} - {1.0})
            evaluated += merges / recipe.method.interval * levels * self.validation
        trained = sum(number * took for number, took in zip(updates, self.updates, strict=True))
        return trained + evaluated * self.sample


def count_updates(recipe: Recipe, layout: Layout) -> tuple[list[float], float]:
    """Client updates at each level of the ladder, and merges, in the recipe's time budget if no client is restored."""
    recipe = resolve_times(recipe, lambda: layout)
    links = recipe.fleet.resolved_links()
    updates, merges = [0] * len(recipe.method.levels_in_ladder), 0

    def count(server: Server, fleet: SimulatedFleet) -> None:
        nonlocal merges
        merges, updates[:] = server.tick, [0] * len(updates)
        for level, number in zip(server.client_levels, server.updates, strict=True):
            updates[level] += number

    single = isinstance(recipe.method.coordination, Asynchronous)  # a merge is one update there
    network, everybody = make_network(recipe, layout, links), range(len(links))
    presence = recipe.fleet.presence(recipe.seed, network.stops)
    at_work = len(recipe.participation.draw(everybody, Known(clients=len(links)), in_flight=0))
    fleet = run_untrained(
        layout,
        network,
        replace(recipe.method, restoration=None),
        ticks=max(_LEAST_MERGES, _COUNTED // at_work) * (at_work if single else 1),
        seconds=recipe.seconds,
        seed=recipe.seed,
        after_tick=count,
        participation=recipe.participation,
        presence=presence,
        on_leaving=recipe.fleet.on_leaving,
    )

    def there(until: float) -> float:
        """Seconds that the clients are there, all together: those counted may be a day, and the others a night."""
        return len(links) * until - sum(end - begin for _, begin, end in presence.gone(0.0, until))

    share = recipe.seconds / fleet.now if fleet.now else 0.0
    counted = there(fleet.now)
    worked = there(recipe.seconds) / counted if counted else 0.0
    return [number * worked for number in updates], merges * share


def _finished_rates(stores: Sequence[Path], trust: Collection[str]) -> dict[tuple[str, str], list[float]]:
    """Wall seconds per virtual second of the finished runs below `stores`, by kind."""
    rates: dict[tuple[str, str], list[float]] = {}
    for path in sorted({path.parent for store in stores for path in store.rglob(SUMMARY)}):
        try:
            summary = read_json(path / SUMMARY)
            if summary["status"] == "finished" and "stopped" not in summary:
                kind = _kind(read_recipe(path, trust), summary["device"])
                rates.setdefault(kind, []).append(summary["wall_seconds"] / summary["seconds"])
        except (ValueError, KeyError, TypeError, OSError):  # not a run; a plan names those it cannot read
            continue
    return rates


def _kind(recipe: Recipe, device: str) -> tuple[str, str]:
    """Equal for runs that differ in seed and length alone, on the same kind of device."""
    return recipe_key(replace(recipe, seed=0, seconds=1.0)), device


def _device(recipe: Recipe) -> str:
    device = resolve_device(recipe.device)
    return device_name(device) if torch.cuda.is_available() or not device.startswith("cuda") else device


def _way(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide how long a client's task and an evaluation take."""
    method = {name: data["method"][name] for name in ("ladder", "ranking", "local")}
    evaluation = {name: value for name, value in data["evaluation"].items() if name != "every_seconds"}
    training = {name: value for name, value in data["training"].items() if name not in ("learning_rate", "schedule")}
    sections = {name: data[name] for name in ("task", "device", "execution")}
    return sections | {"method": method, "training": training, "evaluation": evaluation}


def _wall_seconds(device: torch.device, work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
