"""The clock of a run without its training: the real server, loop, fleet and network, but no client trains.

No merge changes the model either, and the level map has the right counts without a ranking. When an update arrives
depends on bytes alone, so times, bytes and numbers of updates are those of a run. The computed tables (`ims_cost.py`,
`communication.py`) and the estimates of how long runs take (`estimate.py`) come from here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedgmr.exchange import ClientProfile, ClientTask, Update
from fedgmr.experiments.assembly import counted_levels
from fedgmr.federation import federate
from fedgmr.fleets.network import Link, Network, NetworkSettings
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.fleets.sizes import PaperSizes
from fedgmr.methods import Method
from fedgmr.server import Server, Workload
from fedgmr.server.aggregation import Merge
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder, LevelMap
from fedgmr.submodels.rankings import FullModel, RankingInputs
from fedgmr.training.rules import PlainSGD


@dataclass(frozen=True, kw_only=True)
class Unmerged:
    """Leaves the model as it is."""

    kind: ClassVar[str] = "unmerged"

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """The old model."""
        return merge.model, merge.buffers


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A level map with the right counts; which coordinates they are does not matter for bytes."""

    kind: ClassVar[str] = "counted"

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """Coordinates in their order."""
        return counted_levels(inputs.layout, inputs.ladder)

    def due(self, tick: int, interval: int) -> bool:
        """The first map stays."""
        return False

    def ladder(self, ladder: Ladder) -> Ladder:
        """Any."""
        return ladder


class Untrained:
    """Sends every task back at once, without its values: nothing here looks at them."""

    ahead = False

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """One empty update per task."""
        nothing = torch.empty(0)
        return [Update(client=t.client, version=t.version, values=nothing, buffers=nothing, loss=0.0) for t in tasks]


def run_clock(
    layout: Layout,
    network: Network,
    method: Method,
    *,
    ticks: int,
    seconds: float = math.inf,
    seed: int = 0,
    after_tick: Callable[[Server, SimulatedFleet], None] | None = None,
) -> SimulatedFleet:
    """Run a method without its training for so many ticks or `seconds`; returns the fleet as it then is."""
    nothing = torch.empty(0)
    whole = method.levels_in_ladder == (1.0,)
    server = Server(
        rules=replace(method, ranking=FullModel() if whole else Counted(), aggregation=Unmerged(), local=PlainSGD()),
        layout=layout,
        model=nothing,
        buffers=nothing,
        clients=[ClientProfile(density=link.density or 1.0, samples=1) for link in network.links],
        workload=Workload(steps=1, learning_rate=lambda tick: 0.0),
        seconds=seconds,
        seed=seed,
    )
    fleet = SimulatedFleet(network, Untrained(), len(network.links))

    federate(
        server,
        fleet,
        seconds=seconds,
        after_tick=None if after_tick is None else lambda: after_tick(server, fleet),
        stop=lambda: server.tick == ticks,
    )
    return fleet


def paper_network(
    layout: Layout, links: Sequence[Link], *, ims: bool, settings: NetworkSettings, seed: int = 0
) -> Network:
    """A network with the paper's sizes."""
    sizes = PaperSizes(weights=layout.prunable_size, dense=layout.size - layout.prunable_size)
    return Network(settings, links, sizes, ims=ims, seed=seed)
