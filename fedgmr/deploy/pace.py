"""From virtual to real seconds: the period, time budget, evaluations and checkpoints of a recipe that is deployed.

A recipe's seconds belong to its simulated links, and Flower needs about five seconds per task whatever its size. The
rule is in docs/deployment.md ("Real seconds"); all its numbers are written into the recipe of the run.
"""

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from fedgmr.experiments.assembly import make_task, resolve
from fedgmr.experiments.time_model import round_period
from fedgmr.recipe import Recipe
from fedgmr.server.coordination import Asynchronous, SemiAsynchronous
from fedgmr.settings.refusals import SettingError

_TASK_OVERHEAD = 5.0  # seconds of an empty Flower task on an idle machine
_SHORTEST_PERIOD = 5.0
_WAITING = 4.0  # of these, what is no process start: a node asks every 3 s, the answer is looked for
_STARTS = 1.4  # a whole task in starts of ClientApps: Flower's own beginning and end, data and training come on top
_TRIAL_TICKS = 30
_TRIAL_SECONDS = 600.0
_LEAST_ROWS, _ENTRIES = 200, 200_000  # evaluations of a long run: so many, or those with so many entries for clients
_MARGIN = 1.10


def measure_start(clients: int) -> float:
    """Measure the seconds in which this machine starts so many ClientApps at once; that is most of a task."""
    began = time.perf_counter()
    command = [sys.executable, "-c", "import fedgmr.flower.client.client_app"]
    started = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(clients)]
    try:
        if any(process.wait() for process in started):
            raise SettingError("The ClientApp cannot be imported here: pip install 'flwr>=1.41,<1.43'.")
    finally:
        for process in started:
            process.kill()
            process.wait()
    return time.perf_counter() - began


def pace_for_machines(recipe: Recipe, given: Sequence[str]) -> Recipe:
    """Pace a recipe for a fleet with its links: as many ticks as simulated, each longer by Flower's overhead.

    The keys in `given` were set by hand and stay as they are.
    """
    task = make_task(recipe)
    virtual = round_period(resolve(recipe, task), task.layout())
    period = max(_SHORTEST_PERIOD, virtual + _MARGIN * _TASK_OVERHEAD)
    return _paced(recipe, given, period=period, ticks=recipe.seconds / virtual)


def pace_for_trial(recipe: Recipe, given: Sequence[str], *, clients: int, start: float) -> Recipe:
    """Pace a recipe for clients that share this machine, without links: thirty ticks by its speed, ten minutes at most.

    The keys in `given` were set by hand and stay as they are; `start` are the seconds of `measure_start`.
    """
    fleet = recipe.fleet
    if fleet.links is not None and len(fleet.links) != clients:
        raise SettingError(
            f"--clients is {clients} and the recipe has {len(fleet.links)} links: give --clients {len(fleet.links)}."
        )
    recipe = replace(recipe, fleet=replace(fleet, clients=clients))
    period = max(_SHORTEST_PERIOD, math.ceil(_MARGIN * (_WAITING + _STARTS * start)))
    return _paced(recipe, given, period=period, ticks=_TRIAL_TICKS, longest=_TRIAL_SECONDS)


def _paced(recipe: Recipe, given: Sequence[str], *, period: float, ticks: float, longest: float = math.inf) -> Recipe:
    coordination = recipe.method.coordination
    seconds = min(ticks * (coordination.period or period), longest)
    if isinstance(coordination, SemiAsynchronous | Asynchronous):
        if coordination.period is None:
            coordination = replace(coordination, period=round(period, 3))
        elif isinstance(coordination, SemiAsynchronous) and coordination.period < _SHORTEST_PERIOD:
            raise SettingError(
                f"method.coordination.period is {coordination.period}: a task takes Flower about {_TASK_OVERHEAD:g} "
                f"seconds, give at least {_SHORTEST_PERIOD:g}."
            )
        period = coordination.period or period
    evaluation, checkpoint = recipe.evaluation, recipe.checkpoint
    seconds = recipe.seconds if "seconds" in given else round(seconds, 3)
    if "evaluation.every_seconds" not in given:
        rows = max(_LEAST_ROWS, _ENTRIES / len(recipe.fleet.resolved_links()))
        evaluation = replace(evaluation, every_seconds=round(max(period, seconds / rows), 3))
    if "checkpoint.every" not in given:
        checkpoint = replace(checkpoint, every=1)  # what was merged must not be lost with the ServerApp
    return replace(
        recipe,
        seconds=seconds,
        method=replace(recipe.method, coordination=coordination),
        evaluation=evaluation,
        checkpoint=checkpoint,
    )
