"""From a recipe to the objects of a run: task, server, simulated fleet, evaluator.

`resolve` writes out every derived setting (the period, the evaluation grid, the device), so that the file in the run
directory says all; `assemble` builds the objects. Read next: `run.py`, which runs them.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientProfile
from fedgmr.experiments.dealing import deal
from fedgmr.experiments.time_model import make_network, round_period, task_seconds
from fedgmr.federation import Fleet
from fedgmr.fleets.measurement import SIMULATED, Meter
from fedgmr.fleets.rounding import RoundingExecutor
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.recipe import Recipe
from fedgmr.server import Server
from fedgmr.server.admission import ReportRange
from fedgmr.server.coordination import Asynchronous, SemiAsynchronous
from fedgmr.server.label_aware import Labels
from fedgmr.server.participation import Uniform
from fedgmr.settings.refusals import SettingError
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.layout import Layout
from fedgmr.tasks import BUILT_IN
from fedgmr.tasks.partition import Indices, SampleOrder
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.task import Task, named_task
from fedgmr.tasks.trial import try_task
from fedgmr.training.choice import LocalTraining
from fedgmr.training.evaluation.evaluator import Evaluator
from fedgmr.training.work import LocalWork
from fedgmr.wire import ValueType

F = TypeVar("F", bound=Fleet)
_EVALUATION_PERIODS = 10
_QUEUES = "32"  # of the CUDA driver: with its 8, slots on parallel streams wait for each other


@dataclass(frozen=True, kw_only=True, eq=False)
class Assembly(Generic[F]):
    """The objects of one run."""

    recipe: Recipe
    task: Task
    server: Server
    fleet: F
    evaluator: Evaluator
    parts: Sequence[Indices] | None = None  # the samples that each client trains on; None where only they know them
    held_out: Sequence[Indices] | None = None  # and those that it holds out, where it does


def resolve(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with every derived setting written out."""
    return replace(resolve_times(recipe, task.layout), device=resolve_device(recipe.device))


def resolve_times(recipe: Recipe, layout: Callable[[], Layout]) -> Recipe:
    """The recipe with period, evaluation grid and the digests of files; asks for the layout only if a time needs it."""
    coordination, every = recipe.method.coordination, recipe.evaluation.every_seconds
    periodic = isinstance(coordination, SemiAsynchronous | Asynchronous)
    period = coordination.period
    if period is None and (every is None or periodic):
        period = round_period(recipe, layout())
    if isinstance(coordination, SemiAsynchronous | Asynchronous):
        recipe = replace(recipe, method=replace(recipe.method, coordination=replace(coordination, period=period)))
    if every is None:
        assert period is not None
        every = _EVALUATION_PERIODS * period
    evaluation = replace(recipe.evaluation, every_seconds=every)
    return replace(recipe, fleet=recipe.fleet.sealed(), evaluation=evaluation)


def resolve_device(name: str) -> str:
    """The name of a device; `auto` is a GPU where there is one."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def usable_device(name: str) -> torch.device:
    """The device of this name; ValueError where there is none, OutOfMemoryError where others leave no room on it."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", _QUEUES)
    try:
        device = torch.device(resolve_device(name))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        if "out of memory" in reason:  # a sweep tries it again later
            raise torch.OutOfMemoryError(reason) from error
        raise ValueError(f"device is {name!r}, which cannot be used here ({reason}): give cpu or auto.") from error
    return device


def make_task(recipe: Recipe) -> Task:
    """The recipe's task."""
    return named_task(recipe.task.name, recipe.task.options, recipe.seed)


def given_task(recipe: Recipe, task: Task | None) -> Task:
    """The Task object of a run if it was given, else the recipe's; SettingError where it is neither, or another."""
    name = recipe.task.name
    by_name = ":" in name or name in BUILT_IN
    if task is None and not by_name:
        raise SettingError(f"task.name is {name!r}, a Task object that no directory holds: give it again as task.")
    if task is not None and not by_name and task.name != name:
        raise SettingError(f"task is {task.name!r}, and the run's is {name!r}: give that one.")
    return task or make_task(recipe)


def as_evaluated(task: Task, recipe: Recipe) -> Task:
    """The task with the leading metric and as many test and validation samples as the recipe says."""
    settings = recipe.evaluation
    if settings.metric is not None:
        task = task.led_by(settings.metric)
    if settings.validation_samples is not None:
        if settings.validation_samples >= len(task.train):
            raise ValueError(
                f"evaluation.validation_samples is {settings.validation_samples}: {task.name} has "
                f"{len(task.train)} training samples; give fewer."
            )
        task = replace(task, holdout=settings.validation_samples)
    return task if settings.test_samples is None else task.tested_on(settings.test_samples, recipe.seed)


def assemble(recipe: Recipe, task: Task) -> Assembly[SimulatedFleet]:
    """Build the objects of a resolved recipe's simulation."""
    links = recipe.fleet.resolved_links()
    task = as_evaluated(task, recipe).to(usable_device(recipe.device))
    parts, held_out = deal(recipe, task, len(links))
    largest, batch = max(map(len, parts)), recipe.training.batch_size
    if batch > largest:
        warnings.warn(
            f"training.batch_size is {batch} and no client has more than {largest} samples: a mini-batch holds samples "
            "twice; give a smaller one.",
            stacklevel=2,
        )
    server, evaluator = make_server(recipe, task, parts)
    reported = held_out if recipe.evaluation.validation == "clients" else None
    execution, executor = make_training(recipe, task, server.layout, server.plan, parts, reported).chosen()
    recipe = replace(recipe, execution=execution)
    if recipe.network.values != "fp32":
        executor = RoundingExecutor(executor, ValueType(recipe.network.values))
    network = make_network(recipe, server.layout, links, per_width=recipe.method.local.per_width)
    if (least := network.sizes.update(server.levels, 0)) <= 0:
        raise ValueError(
            f"network.sizes is {recipe.network.sizes}, by which an update of density {server.ladder[0]:g} has {least} "
            f"bytes in this model of {server.layout.size} coordinates: give wire."
        )
    meter = None
    if recipe.fleet.measured:
        meter = Meter(SIMULATED, network.sizes, period=round_period(recipe, server.layout))
    presence, trips = recipe.fleet.presence(recipe.seed, network.stops), recipe.evaluation.trips
    fleet = SimulatedFleet(
        network,
        executor,
        len(links),
        presence=presence,
        on_leaving=recipe.fleet.on_leaving,
        records=presence.varies or network.varies if trips is None else trips,
        meter=meter,
    )
    return Assembly(
        recipe=recipe, task=task, server=server, fleet=fleet, evaluator=evaluator, parts=parts, held_out=held_out
    )


def make_training(
    recipe: Recipe,
    task: Task,
    layout: Layout,
    plan: ChannelPlan | None,
    parts: Sequence[Indices],
    held_out: Sequence[Indices] | None,
) -> LocalTraining:
    """The clients' training as the recipe describes it, on each client's samples.

    `held_out` are those that it validates on, where clients validate.
    """
    method = recipe.method
    work = LocalWork(
        task=task,
        order=SampleOrder(parts, seed=recipe.seed, batch_size=recipe.training.batch_size),
        rule=method.local,
        steps=recipe.training.steps,
        seed=recipe.seed,
        held_out=held_out,
        rebuilds=recipe.evaluation.norm == "rebuilt",
        execution=recipe.execution,
    )
    return LocalTraining(
        work=work,
        settings=recipe.training,
        layout=layout,
        plan=plan,
        ladder=method.levels_in_ladder,
        by_width=method.by_width,
        widths=method.widths,
        rolling=method.rolling,
    )


def make_server(recipe: Recipe, task: Task, parts: Sequence[Indices] | None = None) -> tuple[Server, Evaluator]:
    """Make the server of a resolved recipe and the evaluator of its models, with the task on the run's device.

    `parts` are the clients' samples; None where only they know them.
    """
    method, device = recipe.method, task.train.device
    layout = task.layout()
    evaluator = Evaluator(
        task,
        layout,
        seed=recipe.seed,
        norm=recipe.evaluation.norm,
        validation=_validation_samples(recipe, task),
        execution=recipe.execution,
    )
    initial = task.initial_model(recipe.seed).to(device)
    try_task(task, initial)
    buffers = layout.flatten_buffers(initial)
    plan = make_plan(recipe, task, initial)
    profiles = _profiles(recipe, layout, parts)
    server = Server(
        rules=method,
        layout=layout,
        model=layout.flatten(initial),
        buffers=buffers.repeat(len(method.levels_in_ladder)) if method.local.per_width else buffers,
        clients=profiles,
        steps=recipe.training.steps,
        learning_rate=recipe.training.rate,
        seconds=recipe.seconds,
        seed=recipe.seed,
        participation=recipe.participation,
        validate=None if evaluator.validation is None else partial(_validated, evaluator),
        plan=plan,
        labels=_labels(task, layout, plan, len(profiles), parts) if plan and method.label_aware else None,
        reports=_report_range(recipe, task),
    )
    return server, evaluator


def _validation_samples(recipe: Recipe, task: Task) -> Samples | None:
    """The samples that the server decides on; None where clients validate."""
    if recipe.evaluation.validation == "clients":
        return None
    if recipe.evaluation.validation == "test":
        return task.test
    return task.train.part(torch.from_numpy(task.hold_out(recipe.seed)[1]).to(task.train.device))


def _report_range(recipe: Recipe, task: Task) -> ReportRange:
    """The reports that a client can make of the task's leading metric."""
    lowest, highest = task.metrics[0].scores
    held_out, targets = recipe.evaluation.client_holdout, task.train.targets
    each = targets[0].numel() if len(targets) else 1
    return ReportRange(lowest=lowest, highest=highest, targets=each, share=held_out / (1 - held_out))


def _validated(evaluator: Evaluator, model: Tensor, buffers: Tensor) -> Callable[[], float]:
    measurement = evaluator.validate(model, buffers)
    return lambda: evaluator.task.metrics[0].score(measurement.accuracy)


def make_plan(recipe: Recipe, task: Task, model: nn.Module) -> ChannelPlan | None:
    """The task's model's channels, where the method needs them; layers that keep their full width are named."""
    if not (recipe.method.by_width or recipe.method.label_aware):
        return None
    plan = follow_channels(model, task.example(2))
    if recipe.method.by_width and plan.whole:
        warnings.warn(f"These keep their full width at every density. {'; '.join(plan.whole)}.", stacklevel=2)
    return plan


def _profiles(recipe: Recipe, layout: Layout, parts: Sequence[Indices] | None) -> list[ClientProfile]:
    """The server's knowledge of its clients; where densities are measured, all begin with the smallest sub-model.

    Links are known in a simulation, unless they are to be measured; a policy that asks everybody alike needs none.
    """
    links = recipe.fleet.resolved_links()
    counts = [0] * len(links) if parts is None else [len(part) for part in parts]
    smallest = recipe.method.levels_in_ladder[0] if recipe.fleet.measured else None
    seconds: Sequence[float | None] = [None] * len(links)
    if parts is not None and not recipe.fleet.measured and not isinstance(recipe.participation.policy, Uniform):
        seconds = task_seconds(recipe, layout)
    return [
        ClientProfile(density=smallest or link.density or 1.0, samples=count, seconds=expected)
        for link, count, expected in zip(links, counts, seconds, strict=True)
    ]


def _labels(task: Task, layout: Layout, plan: ChannelPlan, clients: int, parts: Sequence[Indices] | None) -> Labels:
    if task.train.targets.dtype.is_floating_point:
        raise ValueError(
            f"method.aggregation is label_aware and the targets of {task.name} are no classes: "
            "set method.aggregation.label_aware to false."
        )
    labels = Labels.of(layout, plan.heads, clients=clients, device=task.train.device)
    for client, part in enumerate(parts or ()):
        labels.owned[client, task.train.classes(torch.from_numpy(part), labels.owned.shape[1])] = True
    return labels
