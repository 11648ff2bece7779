"""The paper's table of communication costs: seconds of 1,000 synchronous rounds with and without IMS.

Computed by the network model with its default constants and the paper's sizes (section 5.2 of docs/decisions.md);
nothing is trained. `clock.py` runs the rounds.
"""

from dataclasses import replace

from fedgmr.fleets.network import NetworkSettings
from fedgmr.fleets.presets import FleetSettings
from fedgmr.methods.fedgmr import FEDGMR
from fedgmr.paper.clock import paper_network, run_clock
from fedgmr.paper.grid import HETEROGENEITIES
from fedgmr.paper.numbers import Paper
from fedgmr.paper.tables import Block, Cell, Measure, Table
from fedgmr.server.coordination import Synchronous
from fedgmr.settings.build import build
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.models.conv2 import Conv2

PAPER_SIZES = NetworkSettings(sizes="paper")


def round_seconds(
    layout: Layout,
    *,
    fleet: str,
    clients: int,
    ims: bool,
    rounds: int,
    settings: NetworkSettings = PAPER_SIZES,
    seed: int = 0,
) -> float:
    """Mean virtual seconds of a synchronous round at the preset densities."""
    links = build(FleetSettings, {"name": fleet, "clients": clients}, path="fleet").resolved_links()
    network = paper_network(layout, links, ims=ims, settings=settings, seed=seed)
    method = replace(FEDGMR, restoration=None, coordination=Synchronous(), ims=ims)
    return run_clock(layout, network, method, ticks=rounds, seed=seed).now / rounds


def ims_cost_table(
    paper: Paper, *, rounds: int | None = None, settings: NetworkSettings = PAPER_SIZES, seed: int = 0
) -> Table:
    """The table; fewer `rounds` than the paper's are scaled to as many and marked as short."""
    data = paper.data["ims_cost"]
    whole, layout, cells = int(data["rounds"]), Layout.of(Conv2()), {}
    rounds = rounds or whole
    rows, columns = [], []
    for sending, fleets in data["seconds"].items():
        for fleet, times in fleets.items():
            row = f"{'with' if sending == 'with' else 'w/o'} IMS, {HETEROGENEITIES[fleet]}"
            rows.append(row)
            for count, theirs in times.items():
                column = f"{count} clients"
                columns.append(column)
                ours = whole * round_seconds(
                    layout,
                    fleet=fleet,
                    clients=int(count),
                    ims=sending == "with",
                    rounds=rounds,
                    settings=settings,
                    seed=seed,
                )
                cells[row, column] = Cell(ours=Measure(mean=ours), paper=Measure(mean=theirs))
    block = Block(
        title="",
        rows=tuple(rows),
        columns=tuple(dict.fromkeys(columns)),
        cells=cells,
        row_name="sending, fleet",
        column_name="clients",
        digits=0,
        relative=True,
    )
    return Table(
        name="ims-cost",
        title="Communication cost with and without IMS",
        about=f"Virtual seconds of {whole:,} synchronous rounds of Conv-2; computed by the network model.",
        blocks=(block,),
        notes=() if rounds == whole else (f"{rounds:,} rounds, scaled to {whole:,}",),
        short=rounds < whole,
        comparable=settings == PAPER_SIZES,
    )
