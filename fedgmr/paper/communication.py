"""The paper's example of communication on FEMNIST under fixed-time restoration, before and after the first step up.

Density, megabytes of a participation's model and updates per merge for three classes of clients of the High fleet.
Computed by the network model with the paper's sizes, as real merges at the period of FedGMR; nothing is trained
(`clock.py`). The paper's megabytes are MiB (A21).
"""

from dataclasses import dataclass, replace

from fedgmr.experiments.assembly import resolve_times
from fedgmr.fleets.network import MIB, NetworkSettings
from fedgmr.fleets.presets import FleetSettings
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.paper.clock import paper_network, run_clock
from fedgmr.paper.grid import Setting, recipe_for
from fedgmr.paper.ims_cost import PAPER_SIZES
from fedgmr.paper.numbers import Paper
from fedgmr.paper.tables import Block, Cell, Measure, Table
from fedgmr.server.coordination import SemiAsynchronous
from fedgmr.server.server import Server
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.models.conv2 import Conv2

TICKS = 500  # of each stage
_SETTLING = 10  # ticks after a restoration in which updates of the old size still arrive
_QUANTITIES = {"density": "density", "megabytes": "model, MB", "updates": "updates per merge"}


@dataclass(frozen=True, kw_only=True)
class _Count:
    """A moment of the run, by client."""

    tick: int
    density: list[float]
    updates: list[int]
    bytes_up: list[int]

    @classmethod
    def of(cls, server: Server, fleet: SimulatedFleet) -> "_Count":
        density = [server.density(client) for client in range(fleet.clients)]
        return cls(tick=server.tick, density=density, updates=list(server.updates), bytes_up=list(fleet.bytes_up))


def communication_table(
    paper: Paper, *, ticks: int = TICKS, settings: NetworkSettings = PAPER_SIZES, seed: int = 0
) -> Table:
    """The table from `ticks` merges before the first restoration and as many after it."""
    links = FleetSettings(name="high", clients=10).resolved_links()
    counts = _counted(ticks, settings, seed)
    cells, rows = {}, []
    for stage, (first, last) in zip(("before", "after"), zip(counts[::2], counts[1::2], strict=True), strict=True):
        for name, theirs in paper.data["communication"]["clients"].items():
            client = next(i for i, link in enumerate(links) if link.density == float(name))
            updates = last.updates[client] - first.updates[client]
            ours = {
                "density": last.density[client],
                "megabytes": (last.bytes_up[client] - first.bytes_up[client]) / updates / MIB,
                "updates": updates / (last.tick - first.tick),
            }
            for key, title in _QUANTITIES.items():
                row = f"{title}, {stage} the first restoration"
                rows.append(row)
                cells[row, f"{name}x client"] = Cell(
                    ours=Measure(mean=ours[key]), paper=Measure(mean=theirs[stage][key])
                )
    block = Block(
        title="",
        rows=tuple(dict.fromkeys(rows)),
        columns=tuple(f"{name}x client" for name in paper.data["communication"]["clients"]),
        cells=cells,
        row_name="quantity",
        column_name="client",
        uncoloured=tuple(dict.fromkeys(rows)),
        relative=True,
    )
    return Table(
        name="communication",
        title="Communication under fixed-time restoration",
        about="FEMNIST, High: what one participation of a client costs, and how often it takes part; computed by the "
        "network model.",
        blocks=(block,),
        notes=("the paper gives updates per merge as approximate", "MB are MiB (A21)"),
        comparable=settings == PAPER_SIZES,
    )


def _counted(ticks: int, settings: NetworkSettings, seed: int) -> list[_Count]:
    """The run at four moments: begin and end of the stage before the first restoration, and of the one after."""
    layout, links = Layout.of(Conv2()), FleetSettings(name="high", clients=10).resolved_links()
    recipe = recipe_for(Setting(task="femnist", heterogeneity="high", split="iid"), "fedgmr/fixed_time")
    coordination = resolve_times(recipe, lambda: layout).method.coordination
    assert isinstance(coordination, SemiAsynchronous)
    assert coordination.period is not None
    method = replace(recipe.method, coordination=coordination, interval=ticks)
    counts: list[_Count] = []

    def note(server: Server, fleet: SimulatedFleet) -> None:
        # The stage before ends with the last tick at the old densities: the restoration is part of tick `ticks`.
        if server.tick in (_SETTLING, ticks - 1, ticks + _SETTLING, 2 * ticks - 1):
            counts.append(_Count.of(server, fleet))

    run_clock(
        layout,
        paper_network(layout, links, ims=method.ims, settings=settings, seed=seed),
        method,
        ticks=2 * ticks,
        seconds=len(method.ladder) * ticks * coordination.period,  # so that the floor first rises after `ticks`
        seed=seed,
        after_tick=note,
    )
    return counts
