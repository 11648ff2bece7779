"""The paper's table of communication costs from the simulated fleet: `python benchmarks/ims_cost.py [--csv PATH]`.

1,000 synchronous rounds of Conv-2 with sub-models at the preset densities, with and without IMS, for 5, 10 and 30
clients. The run is the real one (server, loop, fleet, network with its default constants and the paper's sizes),
except that no client trains and no merge changes the model: the clock depends on bytes alone. Ends with status 1 if
a cell differs from the paper by more than 3 %.
"""

import argparse
import contextlib
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from environment import header, one_thread
from tables import Row, markdown, write_csv
from torch import Tensor

from fedgmr.exchange import ClientProfile, ClientTask, Update
from fedgmr.federation import federate
from fedgmr.fleets.network import Network, NetworkSettings, PaperSizes
from fedgmr.fleets.presets import named_links
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.methods.method import Method
from fedgmr.server.aggregation import Merge
from fedgmr.server.coordination import Synchronous
from fedgmr.server.server import Server, Workload
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.rankings import Magnitude
from fedgmr.tasks.models.conv2 import Conv2

# "Breaking the Capacity Bottleneck in Model-Heterogeneous Federated Learning via Gradual Model Restoration",
# table tab:ims_cost: seconds for 1,000 synchronous FEMNIST rounds.
PAPER = {
    ("IMS", "high"): {5: 8375, 10: 8651, 30: 8883},
    ("IMS", "low"): {5: 8551, 10: 8738, 30: 8978},
    ("w/o IMS", "high"): {5: 8934, 10: 11999, 30: 24104},
    ("w/o IMS", "low"): {5: 10966, 10: 15999, 30: 36136},
}
ROUNDS = 1000
LIMIT = 0.03


@dataclass(frozen=True, kw_only=True)
class Unmerged:
    """Leaves the model as it is."""

    kind: ClassVar[str] = "unmerged"

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """The old model."""
        return merge.model, merge.buffers


class Untrained:
    """Sends every task back at once, without its values: nothing here looks at them."""

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """One empty update per task."""
        nothing = torch.empty(0)
        return [Update(client=t.client, version=t.version, values=nothing, buffers=nothing, loss=0.0) for t in tasks]


class _EnoughError(Exception):
    pass


def conv2() -> tuple[Layout, Tensor]:
    """The layout and the initial values of the paper's FEMNIST net."""
    model = Conv2()
    layout = Layout.of(model)
    return layout, layout.flatten(model)


def seconds_of(
    layout: Layout,
    model: Tensor,
    *,
    fleet_name: str,
    clients: int,
    ims: bool,
    rounds: int = ROUNDS,
    seed: int = 0,
    settings: NetworkSettings | None = None,
) -> float:
    """Virtual seconds of so many synchronous rounds."""
    links = named_links(fleet_name, clients)
    method = Method(
        name="communication",
        ranking=Magnitude(),
        aggregation=Unmerged(),
        coordination=Synchronous(),
        interval=rounds + 1,  # the first level map stays
        ims=ims,
    )
    server = Server(
        rules=method,
        layout=layout,
        model=model,
        buffers=torch.empty(0),
        clients=[ClientProfile(density=link.density or 1.0, samples=1) for link in links],
        workload=Workload(steps=1, learning_rate=lambda tick: 0.0),
        seconds=math.inf,
        seed=seed,
    )
    sizes = PaperSizes(weights=layout.prunable_size, dense=layout.size - layout.prunable_size)
    network = Network(settings or NetworkSettings(sizes="paper"), links, sizes, ims=ims, seed=seed)
    fleet = SimulatedFleet(network, Untrained(), clients)

    def after_tick() -> None:
        if server.tick == rounds:
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        federate(server, fleet, seconds=math.inf, after_tick=after_tick)
    return fleet.now


def measured(*, rounds: int = ROUNDS, seed: int = 0, settings: NetworkSettings | None = None) -> Iterator[Row]:
    """One row per cell of the paper's table; fewer rounds are scaled to 1,000."""
    layout, model = conv2()
    for (sending, fleet_name), clients in itertools.product(PAPER, (5, 10, 30)):
        seconds = seconds_of(
            layout,
            model,
            fleet_name=fleet_name,
            clients=clients,
            ims=sending == "IMS",
            rounds=rounds,
            seed=seed,
            settings=settings,
        )
        ours, paper = seconds * ROUNDS / rounds, PAPER[sending, fleet_name][clients]
        yield {
            "sending": sending,
            "fleet": fleet_name,
            "clients": clients,
            "ours": round(ours),
            "paper": paper,
            "difference %": f"{100 * (ours / paper - 1):+.2f}",
        }


def worst(rows: Sequence[Row]) -> float:
    """The largest relative difference."""
    return max(abs(float(str(row["difference %"]))) for row in rows) / 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="fewer is faster; the result is scaled to 1,000")
    parser.add_argument("--seed", type=int, default=0, help="decides the network noise")
    parser.add_argument("--csv", type=Path, metavar="PATH", help="also write the table here")
    arguments = parser.parse_args()
    one_thread()
    print(header(), "\n")
    rows = list(measured(rounds=arguments.rounds, seed=arguments.seed))
    print(markdown(rows))
    differences = [float(str(row["difference %"])) for row in rows]
    rms = math.sqrt(sum(d * d for d in differences) / len(differences))
    good = worst(rows) <= LIMIT
    print(f"\nlargest difference {100 * worst(rows):.2f} %, root mean square {rms:.2f} %;", end=" ")
    print(f"limit {100 * LIMIT:g} %: {'met' if good else 'NOT met'}")
    if arguments.csv:
        write_csv(arguments.csv, rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
