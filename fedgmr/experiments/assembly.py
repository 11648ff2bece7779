"""From a recipe to the objects of a run: task, server, simulated fleet, evaluator.

`resolve` makes the recipe explicit (the period, the evaluation grid, the device), so that the file in the run
directory says all; `assemble` builds the objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientProfile, ClientTask
from fedgmr.fleets.network import Link, Network, NetworkSettings, PaperSizes, Sizes, WireSizes
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.methods.method import Method
from fedgmr.recipe import Recipe
from fedgmr.seeding import generator
from fedgmr.server.coordination import Asynchronous, SemiAsynchronous
from fedgmr.server.label_aware import Labels, output_rows
from fedgmr.server.server import Server, Workload
from fedgmr.submodels.channels import ChannelPlan, follow_channels
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder, LevelMap, kept_counts
from fedgmr.submodels.widths import RollingWindow
from fedgmr.tasks.partition import Indices, Pool, SampleOrder
from fedgmr.tasks.task import Task, named_task
from fedgmr.training.bench import Bench, MaskedBench
from fedgmr.training.evaluation import Evaluator
from fedgmr.training.executors import SequentialExecutor
from fedgmr.training.local_sgd import LocalTrainer
from fedgmr.training.sliced_bench import SlicedBench

_PERIOD_MARGIN = 1.10
_EVALUATION_PERIODS = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class Assembly:
    """The objects of one run."""

    recipe: Recipe
    task: Task
    layout: Layout
    server: Server
    fleet: SimulatedFleet
    evaluator: Evaluator


def resolve(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with every derived setting written out."""
    coordination = recipe.method.coordination
    period = getattr(coordination, "period", None)
    if period is None:
        period = _PERIOD_MARGIN * synchronous_round(recipe, task.layout())
    if isinstance(coordination, SemiAsynchronous | Asynchronous):
        coordination = replace(coordination, period=period)
    every = recipe.evaluation.every_seconds or _EVALUATION_PERIODS * period
    device = recipe.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return replace(
        recipe,
        method=replace(recipe.method, coordination=coordination),
        evaluation=replace(recipe.evaluation, every_seconds=every),
        device=device,
    )


def make_task(recipe: Recipe) -> Task:
    """The recipe's task."""
    return named_task(recipe.task.name, recipe.task.options, recipe.seed)


def assemble(recipe: Recipe, task: Task) -> Assembly:
    """Build the objects of a resolved recipe."""
    device = _device(recipe.device)
    task, method = task.to(device), recipe.method
    layout = task.layout()
    links = recipe.fleet.resolved_links()
    dealt = _deal(recipe, task, len(links))
    at_server = recipe.evaluation.validation == "server"
    samples = tuple(part[torch.from_numpy(dealt.validation).to(device)] for part in task.train)
    evaluator = Evaluator(
        task, layout, seed=recipe.seed, norm=method.local.norm, calibration=samples[0] if at_server else None
    )
    initial = task.initial_model(recipe.seed).to(device)
    buffers = layout.flatten_buffers(initial)
    plan = follow_channels(initial) if method.by_width or method.label_aware else None

    def validate(model: Tensor, buffers: Tensor) -> float:
        return evaluator.validate(model, buffers, (samples[0], samples[1]))

    server = Server(
        rules=method,
        layout=layout,
        model=layout.flatten(initial),
        buffers=buffers.repeat(len(method.levels_in_ladder)) if method.local.norm == "per_width" else buffers,
        clients=_profiles(links, dealt.parts),
        workload=Workload(steps=recipe.training.steps, learning_rate=recipe.training.rate),
        seconds=recipe.seconds,
        seed=recipe.seed,
        participation=recipe.participation,
        validate=validate if at_server else None,
        plan=plan,
        labels=_labels(task, layout, plan, dealt.parts) if plan is not None and method.label_aware else None,
    )
    trainer = LocalTrainer(
        task,
        make_bench(method, task.initial_model(recipe.seed), layout, plan, device),
        SampleOrder(dealt.parts, seed=recipe.seed, batch_size=recipe.training.batch_size),
        steps=recipe.training.steps,
        seed=recipe.seed,
        rule=method.local,
        held_out=dealt.held_out,
    )
    network = make_network(recipe, layout, links, per_width=method.local.norm == "per_width")
    fleet = SimulatedFleet(network, SequentialExecutor(trainer), len(links), absences=recipe.fleet.absences)
    return Assembly(recipe=recipe, task=task, layout=layout, server=server, fleet=fleet, evaluator=evaluator)


def make_bench(
    method: Method, model: nn.Module, layout: Layout, plan: ChannelPlan | None, device: torch.device
) -> Bench:
    """Where a client of this method trains: small modules for sub-models by width, a masked one otherwise."""
    if method.by_width:
        assert plan is not None
        frozen = any(not parameter.requires_grad for parameter in model.parameters())
        if isinstance(method.ranking, RollingWindow) and (
            frozen or (layout.buffers and method.local.norm == "running")
        ):
            raise ValueError(
                "method.ranking is rolling_window and the model has frozen parameters or running statistics, which "
                "do not roll: use width_prefix, or local: {kind: width_sgd, norm: batch}."
            )
        return SlicedBench(model, layout, plan, method.levels_in_ladder, method.local, device)
    return MaskedBench(model, layout, device)


def _labels(task: Task, layout: Layout, plan: ChannelPlan, parts: Sequence[Indices]) -> Labels:
    if task.train[1].dtype.is_floating_point:
        raise ValueError(
            f"method.aggregation is label_aware and the targets of {task.name} are no classes: "
            "set method.aggregation.label_aware to false."
        )
    coordinates, classes = output_rows(layout, plan.heads)
    owned = torch.zeros(len(parts), int(classes.max()) + 1, dtype=torch.bool)
    for client, part in enumerate(parts):
        owned[client, torch.unique(task.train[1][torch.from_numpy(part)].cpu())] = True
    device = task.train[0].device
    return Labels(owned=owned.to(device), coordinates=coordinates.to(device), classes=classes.to(device))


def _device(name: str) -> torch.device:
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
    sizes: Sizes = WireSizes(buffers=layout.buffer_size, per_width=per_width)
    if settings.sizes == "paper":
        sizes = PaperSizes(weights=layout.prunable_size, dense=layout.size - layout.prunable_size)
    return Network(
        settings,
        links,
        sizes,
        ims=recipe.method.ims if ims is None else ims,
        seed=recipe.seed,
        scale=recipe.fleet.rate_scale(layout.size),
    )


def synchronous_round(recipe: Recipe, layout: Layout) -> float:
    """Seconds of a noise-free synchronous round with IMS at the preset densities, the level map being known already.

    The same for every method on the same fleet, so that ablations share their period.
    """
    links = recipe.fleet.resolved_links()
    ladder = tuple(sorted({link.density for link in links if link.density is not None}))
    levels = _counted_levels(layout, ladder)
    network = make_network(recipe, layout, links, settings=replace(recipe.network, noise=0.0), ims=True)
    nothing = torch.empty(0)
    tasks = [
        ClientTask(
            client=client,
            version=0,
            level=ladder.index(link.density or 1.0),
            levels=levels,
            map_version=0,
            model=nothing,
            buffers=nothing,
            learning_rate=0.0,
            first_batch=0,
        )
        for client, link in enumerate(links)
    ]
    network.known_maps = {task.client: (0, task.level) for task in tasks}
    return max(trip.arrival for trip in network.send(tasks, 0.0))


def _counted_levels(layout: Layout, ladder: Ladder) -> LevelMap:
    """A level map with the right counts; which coordinates they are does not matter for sizes."""
    ends = np.array(kept_counts(ladder, layout.prunable_size)) + layout.size - layout.prunable_size
    levels = np.searchsorted(ends, np.arange(layout.size), side="right").astype(np.uint8)
    return LevelMap(torch.from_numpy(levels), ladder)


def _profiles(links: Sequence[Link], parts: Sequence[Indices]) -> list[ClientProfile]:
    return [
        ClientProfile(density=link.density or 1.0, samples=len(part)) for link, part in zip(links, parts, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class _Dealt:
    parts: list[Indices]  # training samples by client
    held_out: list[Indices] | None  # their own held-out samples, where clients validate
    validation: Indices  # the server's held-out samples, where the server validates


def _deal(recipe: Recipe, task: Task, clients: int) -> _Dealt:
    at_server = recipe.evaluation.validation == "server"
    everything = np.arange(len(task.train[0]))
    indices, validation = task.hold_out(recipe.seed) if at_server else (everything, everything[:0])
    targets = task.train[1].cpu().numpy()
    labels = targets[indices] if targets.ndim == 1 and targets.dtype.kind in "iu" else None
    users = None if task.users is None else task.users.cpu().numpy()[indices]
    parts = recipe.partition.deal(Pool(indices=indices, labels=labels, users=users, clients=clients, seed=recipe.seed))
    if at_server:
        return _Dealt(parts=parts, held_out=None, validation=validation)
    held_out = []
    for client, part in enumerate(parts):
        count = max(1, round(recipe.evaluation.client_holdout * len(part)))
        if count >= len(part):
            raise ValueError(
                f"evaluation.client_holdout is {recipe.evaluation.client_holdout}: "
                f"client {client} has only {len(part)} samples; lower it."
            )
        shuffled = generator(recipe.seed, "client_holdout", client).permutation(part)
        held_out.append(np.sort(shuffled[:count]))
        parts[client] = np.sort(shuffled[count:])
    return _Dealt(parts=parts, held_out=held_out, validation=validation)
