"""About how long runs will take on this device, told before they start.

Client updates are counted by the time model (`clock.py`) as if no client were restored; one client's task and an
evaluation are timed once per task, on the real objects of a run. Merging and recording are left out.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedgmr.experiments.assembly import assemble, make_network, make_task, resolve, resolve_times
from fedgmr.experiments.tables.clock import run_clock
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.recipe import Recipe, recipe_data
from fedgmr.server.coordination import Asynchronous
from fedgmr.server.server import Server
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.task import Task

_TICKS = 200  # merges of which the pace is counted
_PROBED_SAMPLES = 500  # of the test set


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a run of a task is made of, in wall seconds on this device."""

    task: str
    layout: Layout
    update: float  # one client's task
    sample: float  # one sample of an evaluation
    test: int  # samples of the test set
    validation: int  # samples the server holds out


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What happens in a run."""

    updates: float
    merges: float


def probe(recipe: Recipe) -> Probe:
    """Time one client's task and part of an evaluation, on the device the recipe asks for."""
    task = make_task(recipe)
    count = min(len(task.test[0]), _PROBED_SAMPLES)
    small: Task = replace(task, test=(task.test[0][:count], task.test[1][:count]))
    assembly = assemble(resolve(recipe, task), small)
    server, executor = assembly.server, assembly.fleet.executor
    tasks = server.tasks(assembly.fleet.free(), 0.0)
    if torch.device(assembly.recipe.device).type == "cpu":
        tasks = tasks[:1]  # a faster device works on all of them at once
    executor.train(tasks)  # the first time is never typical
    began = time.perf_counter()
    executor.train(tasks)
    trained = time.perf_counter()
    assembly.evaluator.test(server.model, server.buffers)
    evaluated = time.perf_counter()
    torch.cuda.empty_cache()  # the runs themselves may be in other processes
    return Probe(
        task=task.name,
        layout=assembly.layout,
        update=(trained - began) / len(tasks),
        sample=(evaluated - trained) / count,
        test=len(task.test[0]),
        validation=len(task.hold_out(recipe.seed)[1]),
    )


def predicted_pace(recipe: Recipe, layout: Layout) -> Pace:
    """Client updates and merges in the recipe's time budget, if no client is restored."""
    recipe = resolve_times(recipe, lambda: layout)
    links = recipe.fleet.resolved_links()
    counts = [0, 0]

    def count(server: Server, fleet: SimulatedFleet) -> None:
        counts[:] = sum(server.updates), server.tick

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
    return Pace(updates=counts[0] * share, merges=counts[1] * share)


def run_seconds(recipe: Recipe, probed: Probe) -> float:
    """Wall seconds of a run: client updates, evaluations, and the validations of restoration."""
    pace = predicted_pace(recipe, probed.layout)
    every = resolve_times(recipe, lambda: probed.layout).evaluation.every_seconds
    assert every is not None
    evaluated = (recipe.seconds / every + 2) * probed.test
    if recipe.method.restoration is not None:
        levels = len({link.density for link in recipe.fleet.resolved_links()} - {1.0})
        evaluated += pace.merges / recipe.method.interval * levels * probed.validation
    return pace.updates * probed.update + evaluated * probed.sample


def estimate(recipes: Sequence[Recipe]) -> list[float]:
    """Wall seconds of each run, alone on this device; the first run of a task is probed for all of them."""
    probes: dict[str, Probe] = {}
    known: dict[str, float] = {}
    seconds = []
    for recipe in recipes:
        if recipe.task.name not in probes:
            probes[recipe.task.name] = probe(recipe)
        # Seeds differ in noise alone, so one of them stands for all.
        alike = json.dumps(recipe_data(replace(recipe, seed=0)), sort_keys=True)
        if alike not in known:
            known[alike] = run_seconds(recipe, probes[recipe.task.name])
        seconds.append(known[alike])
    return seconds
