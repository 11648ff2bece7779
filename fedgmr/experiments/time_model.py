"""The time model: a run without its training, for times, bytes and numbers of updates.

Server, loop, fleet and network are the real ones, but no client trains, no merge changes the model, and the level map
has the right counts without a ranking. An update's arrival depends on bytes alone, so the times are those of a run.
The estimates of run times (`estimate.py`) and the paper's computed tables (`fedgmr/paper/computed.py`) use it.
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
from fedgmr.fleets.network import Network
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.methods import Method
from fedgmr.server.aggregation import Merge
from fedgmr.server.rules import Workload
from fedgmr.server.server import Server
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder, LevelMap
from fedgmr.submodels.rankings import FullModel, RankingInputs
from fedgmr.training.rules import PlainSGD


def run_untrained(
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
    rules = replace(
        method, ranking=FullModel() if whole else _CountedLevels(), aggregation=_OldModel(), local=PlainSGD()
    )
    server = Server(
        rules=rules,
        layout=layout,
        model=nothing,
        buffers=nothing,
        clients=[ClientProfile(density=link.density or 1.0, samples=1) for link in network.links],
        workload=Workload(steps=1, learning_rate=lambda tick: 0.0),
        seconds=seconds,
        seed=seed,
    )
    fleet = SimulatedFleet(network, _EmptyUpdates(), len(network.links))
    federate(
        server,
        fleet,
        seconds=seconds,
        after_tick=None if after_tick is None else lambda: after_tick(server, fleet),
        stop=lambda: server.tick == ticks,
    )
    return fleet


@dataclass(frozen=True, kw_only=True)
class _OldModel:
    """An aggregation that leaves the model as it is."""

    kind: ClassVar[str] = "old_model"

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        return merge.model, merge.buffers


@dataclass(frozen=True, kw_only=True)
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
