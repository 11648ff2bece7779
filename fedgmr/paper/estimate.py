"""About how long runs will take on this device, told before they start.

Client updates are counted by the time model (`clock.py`) as if no client were restored. What one of them takes is
timed on the real objects of a run, for every way of training (a method's sub-models) and, on a CPU, every level; so
is part of an evaluation. Merging and recording are left out.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedgmr.experiments.assembly import assemble, make_network, make_task, measured, resolve, resolve_times
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.paper.clock import run_clock
from fedgmr.recipe import Recipe
from fedgmr.server.coordination import Asynchronous
from fedgmr.server.server import Server
from fedgmr.settings.schema import plain
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.task import Task

_TICKS = 200  # merges of which the pace is counted
_PROBED_SAMPLES = 500  # of the test set


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a run is made of, in wall seconds on this device."""

    layout: Layout
    updates: tuple[float, ...]  # a client's task at each level of the ladder
    sample: float  # one sample of an evaluation
    test: int  # samples of the test set
    validation: int  # samples the server holds out


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What happens in a run."""

    updates: tuple[float, ...]  # by clients of each level of the ladder
    merges: float


def probe(recipe: Recipe, task: Task) -> Probe:
    """Time clients' tasks and part of an evaluation, on the device the recipe asks for."""
    task = measured(task, recipe)
    count = min(len(task.test[0]), _PROBED_SAMPLES)
    small: Task = replace(task, test=(task.test[0][:count], task.test[1][:count]))
    assembly = assemble(resolve(recipe, task), small)
    server, executor, device = assembly.server, assembly.fleet.executor, torch.device(assembly.recipe.device)
    tasks, levels = server.tasks(assembly.fleet.free(), 0.0), range(len(server.ladder))
    if device.type == "cpu":
        each = [[replace(tasks[0], level=level)] for level in levels]
        executor.train(each[-1])  # the first time is never typical
        updates = tuple(_wall_seconds(device, executor.train, task) for task in each)
    else:  # works on all of them at once
        executor.train(tasks)
        updates = (_wall_seconds(device, executor.train, tasks) / len(tasks),) * len(levels)
    evaluated = _wall_seconds(device, assembly.evaluator.test, server.model, server.buffers)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the runs themselves may be in other processes
    return Probe(
        layout=assembly.layout,
        updates=updates,
        sample=evaluated / count,
        test=len(task.test[0]),
        validation=len(task.hold_out(recipe.seed)[1]),
    )


def _wall_seconds(device: torch.device, work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def predicted_pace(recipe: Recipe, layout: Layout) -> Pace:
    """Client updates and merges in the recipe's time budget, if no client is restored."""
    recipe = resolve_times(recipe, lambda: layout)
    links = recipe.fleet.resolved_links()
    updates, merges = [0] * len(recipe.method.levels_in_ladder), 0

    def count(server: Server, fleet: SimulatedFleet) -> None:
        nonlocal merges
        merges, updates[:] = server.tick, [0] * len(updates)
        for level, number in zip(server.client_levels, server.updates, strict=True):
            updates[level] += number

    single = isinstance(recipe.method.coordination, Asynchronous)  # a merge is one update there
    fleet = run_clock(
        layout,
        make_network(recipe, layout, links),
        replace(recipe.method, restoration=None),
        ticks=_TICKS * (len(links) if single else 1),
        seconds=recipe.seconds,
        seed=recipe.seed,
        after_tick=count,
    )
    share = recipe.seconds / fleet.now if fleet.now else 0.0
    return Pace(updates=tuple(number * share for number in updates), merges=merges * share)


def run_seconds(recipe: Recipe, probed: Probe) -> float:
    """Wall seconds of a run: client updates, evaluations, and the validations of restoration."""
    pace = predicted_pace(recipe, probed.layout)
    every = resolve_times(recipe, lambda: probed.layout).evaluation.every_seconds
    assert every is not None
    evaluated = (recipe.seconds / every + 2) * probed.test
    if recipe.method.restoration is not None:
        levels = len({link.density for link in recipe.fleet.resolved_links()} - {1.0})
        evaluated += pace.merges / recipe.method.interval * levels * probed.validation
    trained = sum(number * took for number, took in zip(pace.updates, probed.updates, strict=True))
    return trained + evaluated * probed.sample


def estimate(recipes: Sequence[Recipe]) -> list[float]:
    """Wall seconds of each run, alone on this device; methods whose clients train alike are probed once."""
    tasks: dict[str, Task] = {}
    probes: dict[str, Probe] = {}
    known: dict[str, float] = {}
    seconds = []
    for recipe in recipes:
        # Seeds differ in noise alone, so one of them stands for all.
        data = plain(replace(recipe, seed=0))
        alike = json.dumps(data, sort_keys=True)
        if alike not in known:
            way = json.dumps(_way(data), sort_keys=True)
            if way not in probes:
                source = json.dumps(data["task"], sort_keys=True)
                if source not in tasks:
                    tasks = {source: make_task(recipe)}  # one at a time in memory
                probes[way] = probe(recipe, tasks[source])
            known[alike] = run_seconds(recipe, probes[way])
        seconds.append(known[alike])
    return seconds


def _way(data: dict[str, Any]) -> dict[str, Any]:
    """What of a recipe decides how long a client's task and an evaluation take."""
    method = {name: data["method"][name] for name in ("ladder", "ranking", "local")}
    evaluation = {name: value for name, value in data["evaluation"].items() if name != "every_seconds"}
    sections = {name: data[name] for name in ("task", "training", "device", "execution")}
    return sections | {"method": method, "evaluation": evaluation}
