"""The time model: the network of a recipe, its period, and a run without its training.

An update's arrival depends on bytes alone. So times, bytes and numbers of updates are those of a run if server, loop,
fleet and network are the real ones, though no client trains, no merge changes the model, and the level map has the
right counts without a ranking. Estimates of run times (`estimate.py`) and the paper's computed tables use this.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgmr.exchange import ClientProfile, ClientTask, Shipment, Update
from fedgmr.federation import federate
from fedgmr.fleets.links import Link, steady_links
from fedgmr.fleets.network import MIB, Network, NetworkSettings
from fedgmr.fleets.presence import Presence
from fedgmr.fleets.simulated import OnLeaving, SimulatedFleet
from fedgmr.fleets.sizes import IndexedSizes, LinearSizes, PaperSizes, Sizes, WireSizes
from fedgmr.methods import Method
from fedgmr.recipe import Recipe
from fedgmr.server.aggregation import Merge
from fedgmr.server.participation import Participation
from fedgmr.server.server import Server
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder, LevelMap, kept_counts
from fedgmr.submodels.rankings import FullModel, RankingInputs
from fedgmr.training.rules import PlainSGD
from fedgmr.wire import ValueType

_PERIOD_MARGIN = 1.10


def make_network(
    recipe: Recipe, layout: Layout, links: Sequence[Link], *, ims: bool | None = None, per_width: bool = False
) -> Network:
    """The network of a recipe's fleet; `per_width`: the model's buffers travel once per level."""
    return Network(
        recipe.network,
        links,
        make_sizes(recipe.network, layout, per_width=per_width),
        ims=recipe.method.ims if ims is None else ims,
        seed=recipe.seed,
        scale=recipe.fleet.rate_scale(layout.size),
        pace=recipe.fleet.pace,
    )


def make_sizes(settings: NetworkSettings, layout: Layout, *, per_width: bool = False) -> Sizes:
    """The bytes of a model's objects as the settings count them."""
    match settings.sizes:
        case "wire":
            return WireSizes(buffers=layout.buffer_size, per_width=per_width, value_type=ValueType(settings.values))
        case "paper":
            return PaperSizes(weights=layout.prunable_size, dense=layout.size - layout.prunable_size)
        case "indexed":
            return IndexedSizes()
        case "linear":
            return LinearSizes(full=4 * layout.size if settings.full_size is None else settings.full_size * MIB)


def round_period(recipe: Recipe, layout: Layout) -> float:
    """The method's period, or else the one it would have.

    That is a little more than a noise-free synchronous round with IMS at the preset densities, the level map being
    known already. It is the same for every method on the same fleet, so that ablations share their period.
    """
    if recipe.method.coordination.period is not None:
        return recipe.method.coordination.period
    links = steady_links(recipe.fleet.resolved_links(), recipe.seed)
    ladder = tuple(sorted({link.density for link in links if link.density is not None}))
    levels = counted_levels(layout, ladder)
    settings = replace(recipe.network, noise=0.0, server_noise=0.0)
    network = make_network(replace(recipe, network=settings), layout, links, ims=True)
    shipments = [
        Shipment(client=client, level=ladder.index(link.density or 1.0), levels=levels, map_version=0, first_batch=0)
        for client, link in enumerate(links)
    ]
    network.known_maps = {shipment.client: (0, shipment.level) for shipment in shipments}
    return _PERIOD_MARGIN * max(trip.arrival for trip in network.send(shipments, settings.merge_seconds))


def task_seconds(recipe: Recipe, layout: Layout) -> list[float]:
    """The time of each client's task by its link: alone, without noise, at its preset density, the level map known."""
    method, links = recipe.method, steady_links(recipe.fleet.resolved_links(), recipe.seed)
    levels = counted_levels(layout, method.levels_in_ladder)
    quiet = replace(recipe, network=replace(recipe.network, noise=0.0, server_noise=0.0))
    network = make_network(quiet, layout, links, per_width=method.local.per_width)
    seconds = []
    for client, link in enumerate(links):
        level = method.level_of(link.density or 1.0)
        network.uplink_free, network.known_maps = 0.0, {client: (0, level)}
        shipment = Shipment(client=client, level=level, levels=levels, map_version=0, first_batch=0)
        seconds += [trip.arrival for trip in network.send([shipment], 0.0)]
    return seconds


def counted_levels(layout: Layout, ladder: Ladder) -> LevelMap:
    """A level map with the right counts; which coordinates they are does not matter for sizes."""
    ends = np.array(kept_counts(ladder, layout.prunable_size)) + layout.size - layout.prunable_size
    counts = np.diff(ends, prepend=0, append=layout.size)
    levels = np.repeat(np.arange(len(counts), dtype=np.uint8), counts)
    return LevelMap(torch.from_numpy(levels), ladder)


def run_untrained(
    layout: Layout,
    network: Network,
    method: Method,
    *,
    ticks: int,
    seconds: float = math.inf,
    seed: int = 0,
    after_tick: Callable[[Server, SimulatedFleet], None] | None = None,
    participation: Participation | None = None,
    presence: Presence | None = None,
    on_leaving: OnLeaving = "finish",
) -> SimulatedFleet:
    """Run a method without its training for so many ticks or `seconds`; returns the fleet as it then is."""
    nothing = torch.empty(0)
    ranking = FullModel() if method.levels_in_ladder == (1.0,) else _CountedLevels()
    rules = replace(method, ranking=ranking, aggregation=_OldModel(), local=PlainSGD())
    server = Server(
        rules=rules,
        layout=layout,
        model=nothing,
        buffers=nothing,
        clients=[ClientProfile(density=link.density or 1.0, samples=1) for link in network.links],
        steps=1,
        learning_rate=lambda tick: 0.0,
        seconds=seconds,
        seed=seed,
        participation=participation,
    )
    fleet = SimulatedFleet(network, _EmptyUpdates(), len(network.links), presence=presence, on_leaving=on_leaving)
    federate(
        server,
        fleet,
        seconds=seconds,
        after_tick=None if after_tick is None else lambda: after_tick(server, fleet),
        stop=lambda: server.tick == ticks,
    )
    return fleet


class _OldModel:
    """An aggregation that leaves the model as it is."""

    kind: ClassVar[str] = "old_model"

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        return merge.model, merge.buffers


class _CountedLevels:
    """A ranking of coordinates in their order; which of them a level holds does not matter for bytes."""

    kind: ClassVar[str] = "counted_levels"

    def rank(self, inputs: RankingInputs) -> LevelMap:
        return counted_levels(inputs.layout, inputs.ladder)

    def due(self, tick: int, interval: int) -> bool:
        return False

    def ladder(self, ladder: Ladder) -> Ladder:
        return ladder


class _EmptyUpdates:
    """An executor that answers every task at once, without values: nothing here looks at them."""

    ahead = False

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        nothing = torch.empty(0)
        return [Update(client=t.client, version=t.version, values=nothing, buffers=nothing, loss=0.0) for t in tasks]
