"""From a recipe to the objects of a run: task, server, simulated fleet, evaluator.

`resolve` makes the recipe explicit (the period, the evaluation grid, the device), so that the file in the run
directory says all; `assemble` builds the objects.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientProfile, Shipment
from fedgmr.experiments.dealing import deal, server_samples
from fedgmr.experiments.workshop import Workshop
from fedgmr.federation import RecordedFleet
from fedgmr.fleets.measurement import SIMULATED, Meter
from fedgmr.fleets.network import Link, Network, NetworkSettings
from fedgmr.fleets.rounding import RoundingExecutor
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.fleets.sizes import IndexedSizes, PaperSizes, Sizes, WireSizes
from fedgmr.recipe import Recipe
from fedgmr.server import Server, Workload
from fedgmr.server.coordination import Asynchronous, SemiAsynchronous
from fedgmr.server.label_aware import Labels
from fedgmr.submodels.channels.plan import ChannelPlan, follow_channels
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder, LevelMap, kept_counts
from fedgmr.tasks.partition import Indices, SampleOrder
from fedgmr.tasks.task import Task, named_task
from fedgmr.training.evaluation.evaluator import Evaluator
from fedgmr.wire import ValueType

F = TypeVar("F", bound=RecordedFleet)
_PERIOD_MARGIN = 1.10
_EVALUATION_PERIODS = 10
_QUEUES = "32"  # of the CUDA driver: with its 8, slots on parallel streams wait for each other


@dataclass(frozen=True, kw_only=True, eq=False)
class Assembly(Generic[F]):
    """The objects of one run."""

    recipe: Recipe
    task: Task
    layout: Layout
    server: Server
    fleet: F
    evaluator: Evaluator


def resolve(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with every derived setting written out."""
    return replace(resolve_times(recipe, task.layout), device=resolve_device(recipe.device))


def resolve_device(name: str) -> str:
    """The name of a device; `auto` is a GPU where there is one."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_times(recipe: Recipe, layout: Callable[[], Layout]) -> Recipe:
    """The recipe with its period and evaluation grid written out; asks for the layout only if they follow from it."""
    coordination, every = recipe.method.coordination, recipe.evaluation.every_seconds
    period = coordination.period
    if period is None and (every is None or isinstance(coordination, SemiAsynchronous | Asynchronous)):
        period = _PERIOD_MARGIN * synchronous_round(recipe, layout())
    if isinstance(coordination, SemiAsynchronous | Asynchronous):
        coordination = replace(coordination, period=period)
    if every is None:
        assert period is not None
        every = _EVALUATION_PERIODS * period
    return replace(
        recipe,
        method=replace(recipe.method, coordination=coordination),
        evaluation=replace(recipe.evaluation, every_seconds=every),
    )


def make_task(recipe: Recipe) -> Task:
    """The recipe's task."""
    return named_task(recipe.task.name, recipe.task.options, recipe.seed)


def measured(task: Task, recipe: Recipe) -> Task:
    """The task with as many test and validation samples as the recipe wants."""
    settings = recipe.evaluation
    if settings.validation_samples is not None:
        if settings.validation_samples >= len(task.train[0]):
            raise ValueError(
                f"evaluation.validation_samples is {settings.validation_samples}: {task.name} has "
                f"{len(task.train[0])} training samples; give fewer."
            )
        task = replace(task, holdout=settings.validation_samples)
    return task if settings.test_samples is None else task.tested_on(settings.test_samples, recipe.seed)


def assemble(recipe: Recipe, task: Task) -> Assembly[SimulatedFleet]:
    """Build the objects of a resolved recipe's simulation."""
    links = recipe.fleet.resolved_links()
    task = measured(task, recipe).to(usable_device(recipe.device))
    dealt = deal(recipe, task, len(links))
    base = lay_base(recipe, task, make_profiles(recipe, [len(part) for part in dealt.parts]), dealt.parts)
    workshop = Workshop(
        recipe=recipe,
        task=task,
        layout=base.layout,
        plan=base.plan,
        order=SampleOrder(dealt.parts, seed=recipe.seed, batch_size=recipe.training.batch_size),
        held_out=dealt.held_out,
        device=task.train[0].device,
    )
    recipe, executor = workshop.chosen(base.server)
    if recipe.network.values != "fp32":
        executor = RoundingExecutor(executor, ValueType(recipe.network.values))
    network = make_network(recipe, base.layout, links, per_width=recipe.method.local.norm == "per_width")
    meter = None
    if recipe.fleet.measured:
        meter = Meter(SIMULATED, network.sizes, period=round_period(recipe, base.layout))
    fleet = SimulatedFleet(network, executor, len(links), absences=recipe.fleet.absences, meter=meter)
    return base.assembled(recipe, fleet)


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """What a run stands on, wherever its clients are."""

    task: Task
    layout: Layout
    plan: ChannelPlan | None
    server: Server
    evaluator: Evaluator

    def assembled(self, recipe: Recipe, fleet: F) -> Assembly[F]:
        """With the fleet, complete."""
        return Assembly(
            recipe=recipe,
            task=self.task,
            layout=self.layout,
            server=self.server,
            fleet=fleet,
            evaluator=self.evaluator,
        )


def lay_base(
    recipe: Recipe, task: Task, profiles: Sequence[ClientProfile], parts: Sequence[Indices] | None = None
) -> Base:
    """Server and evaluator of a resolved recipe.

    Args:
        recipe: resolved.
        task: on the device of the run.
        profiles: one per client.
        parts: the clients' samples; None where only they know them.
    """
    method, device = recipe.method, task.train[0].device
    layout = task.layout()
    at_server = recipe.evaluation.validation == "server"
    samples = tuple(part[torch.from_numpy(server_samples(recipe, task)).to(device)] for part in task.train)
    evaluator = Evaluator(
        task,
        layout,
        seed=recipe.seed,
        norm=method.local.norm,
        calibration=samples[0] if at_server else None,
        execution=recipe.execution,
    )
    initial = task.initial_model(recipe.seed).to(device)
    buffers = layout.flatten_buffers(initial)
    plan = make_plan(recipe, initial)

    def validate(model: Tensor, buffers: Tensor) -> float:
        return evaluator.validate(model, buffers, (samples[0], samples[1]))

    server = Server(
        rules=method,
        layout=layout,
        model=layout.flatten(initial),
        buffers=buffers.repeat(len(method.levels_in_ladder)) if method.local.norm == "per_width" else buffers,
        clients=profiles,
        workload=Workload(steps=recipe.training.steps, learning_rate=recipe.training.rate),
        seconds=recipe.seconds,
        seed=recipe.seed,
        participation=recipe.participation,
        validate=validate if at_server else None,
        plan=plan,
        labels=_labels(task, layout, plan, len(profiles), parts) if plan and method.label_aware else None,
    )
    return Base(task=task, layout=layout, plan=plan, server=server, evaluator=evaluator)


def make_plan(recipe: Recipe, model: nn.Module) -> ChannelPlan | None:
    """The model's channels, where the method needs them."""
    return follow_channels(model) if recipe.method.by_width or recipe.method.label_aware else None


def _labels(task: Task, layout: Layout, plan: ChannelPlan, clients: int, parts: Sequence[Indices] | None) -> Labels:
    if task.train[1].dtype.is_floating_point:
        raise ValueError(
            f"method.aggregation is label_aware and the targets of {task.name} are no classes: "
            "set method.aggregation.label_aware to false."
        )
    labels = Labels.of(layout, plan.heads, clients=clients, device=task.train[0].device)
    for client, part in enumerate(parts or ()):
        labels.owned[client, torch.unique(task.train[1][torch.from_numpy(part)])] = True
    return labels


def usable_device(name: str) -> torch.device:
    """The device of this name; ValueError where there is none."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", _QUEUES)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"device is {name!r}, which cannot be used here ({reason}): give cpu or auto.") from error
    return device


def make_network(
    recipe: Recipe,
    layout: Layout,
    links: Sequence[Link],
    *,
    settings: NetworkSettings | None = None,
    ims: bool | None = None,
    per_width: bool = False,
) -> Network:
    """The network of a recipe's fleet; `per_width`: the model's buffers travel once per level."""
    settings = settings or recipe.network
    sizes: Sizes = WireSizes(buffers=layout.buffer_size, per_width=per_width, value_type=ValueType(settings.values))
    if settings.sizes == "paper":
        sizes = PaperSizes(weights=layout.prunable_size, dense=layout.size - layout.prunable_size)
    elif settings.sizes == "indexed":
        sizes = IndexedSizes()
    return Network(
        settings,
        links,
        sizes,
        ims=recipe.method.ims if ims is None else ims,
        seed=recipe.seed,
        scale=recipe.fleet.rate_scale(layout.size),
    )


def round_period(recipe: Recipe, layout: Layout) -> float:
    """What a round may take where densities are measured: the method's period, or the one it would have."""
    period = recipe.method.coordination.period
    return _PERIOD_MARGIN * synchronous_round(recipe, layout) if period is None else period


def synchronous_round(recipe: Recipe, layout: Layout) -> float:
    """Seconds of a noise-free synchronous round with IMS at the preset densities, the level map being known already.

    The same for every method on the same fleet, so that ablations share their period.
    """
    links = recipe.fleet.resolved_links()
    ladder = tuple(sorted({link.density for link in links if link.density is not None}))
    levels = counted_levels(layout, ladder)
    network = make_network(recipe, layout, links, settings=replace(recipe.network, noise=0.0), ims=True)
    shipments = [
        Shipment(client=client, level=ladder.index(link.density or 1.0), levels=levels, map_version=0, first_batch=0)
        for client, link in enumerate(links)
    ]
    network.known_maps = {shipment.client: (0, shipment.level) for shipment in shipments}
    return max(trip.arrival for trip in network.send(shipments, 0.0))


def counted_levels(layout: Layout, ladder: Ladder) -> LevelMap:
    """A level map with the right counts; which coordinates they are does not matter for sizes."""
    ends = np.array(kept_counts(ladder, layout.prunable_size)) + layout.size - layout.prunable_size
    levels = np.searchsorted(ends, np.arange(layout.size), side="right").astype(np.uint8)
    return LevelMap(torch.from_numpy(levels), ladder)


def make_profiles(recipe: Recipe, samples: Sequence[int]) -> list[ClientProfile]:
    """What the server knows of its clients; where densities are measured, all begin with the smallest sub-model."""
    smallest = recipe.method.levels_in_ladder[0] if recipe.fleet.measured else None
    return [
        ClientProfile(density=smallest or link.density or 1.0, samples=count)
        for link, count in zip(recipe.fleet.resolved_links(), samples, strict=True)
    ]
