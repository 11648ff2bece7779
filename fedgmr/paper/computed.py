"""The tables that need no runs: the network model computes them with the paper's sizes.

`ims-cost` has the seconds of synchronous rounds with and without IMS (section 5.2 of docs/decisions.md).
`communication` is the paper's example on FEMNIST under fixed-time restoration, before and after the first step up:
density, megabytes (MiB, A21) and updates per merge of three classes of clients. The rounds and merges are real ones
without training (`fedgmr/experiments/time_model.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fedgmr.experiments.assembly import resolve_times
from fedgmr.experiments.time_model import make_sizes, run_untrained
from fedgmr.fleets.links import Link
from fedgmr.fleets.network import MIB, Network, NetworkSettings
from fedgmr.fleets.presets import FleetSettings
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.methods.fedgmr import FEDGMR
from fedgmr.paper.grid import HETEROGENEITIES, Setting, recipe_for
from fedgmr.paper.numbers import Paper
from fedgmr.paper.planning import Request
from fedgmr.paper.tables import Block, Cell, Measure, Table
from fedgmr.server.coordination import Synchronous
from fedgmr.server.server import Server
from fedgmr.settings.build import build
from fedgmr.settings.refusals import SettingError
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.models.conv2 import Conv2

_PAPER_SIZES = NetworkSettings(sizes="paper")
TICKS = 500  # of each stage
_SHORT_ROUNDS, _SHORT_TICKS = 100, 100
_SETTLING = 10  # ticks after a restoration in which updates of the old size still arrive
_EXAMPLE = Setting(task="femnist", heterogeneity="high", split="iid")
_LINKS = FleetSettings(name="high", clients=10).resolved_links()
_QUANTITIES = {"density": "density", "megabytes": "model, MB", "updates": "updates per merge"}


def computed_table(request: Request) -> Table:
    """A table that needs no runs; with `short` it is counted over fewer rounds."""
    if request.task or request.heterogeneity or request.split or request.seeds > 1:
        raise SettingError(f"The table {request.name} is computed as a whole: give no filters and no seeds.")
    strange = [word for word in request.overrides if not word.startswith(("network.", "seed="))]
    if strange:
        raise SettingError(f"{strange[0]} has no effect on the table {request.name}: give network.* or seed.")
    paper = Paper.read()
    recipe = recipe_for(_EXAMPLE, "fedgmr", protocol=request.protocol, overrides=request.overrides)
    if request.name == "ims-cost":
        rounds = _SHORT_ROUNDS if request.short else None
        table = ims_cost_table(paper, rounds=rounds, settings=recipe.network, seed=recipe.seed)
    else:
        ticks = _SHORT_TICKS if request.short else TICKS
        table = communication_table(paper, ticks=ticks, settings=recipe.network, seed=recipe.seed)
    return replace(table, protocol=request.protocol)


def ims_cost_table(
    paper: Paper, *, rounds: int | None = None, settings: NetworkSettings = _PAPER_SIZES, seed: int = 0
) -> Table:
    """The table of communication costs; fewer `rounds` than the paper's are scaled to as many and marked as short."""
    data = paper.data["ims_cost"]
    whole, layout, cells = int(data["rounds"]), Layout.of(Conv2()), {}
    rounds = rounds or whole
    for sending, fleets in data["seconds"].items():
        ims = sending == "with"
        for fleet, times in fleets.items():
            for count, theirs in times.items():
                each = round_seconds(
                    layout, fleet=fleet, clients=int(count), ims=ims, rounds=rounds, settings=settings, seed=seed
                )
                place = f"{'with' if ims else 'w/o'} IMS, {HETEROGENEITIES[fleet]}", f"{count} clients"
                cells[place] = Cell(ours=Measure(mean=whole * each), paper=Measure(mean=theirs))
    block = Block(title="", cells=cells, row_name="sending, fleet", column_name="clients", digits=0, relative=True)
    return Table(
        name="ims-cost",
        title="Communication cost with and without IMS",
        about=f"Virtual seconds of {whole:,} synchronous rounds of Conv-2; computed by the network model.",
        blocks=(block,),
        notes=() if rounds == whole else (f"{rounds:,} rounds, scaled to {whole:,}",),
        short=rounds < whole,
        comparable=settings == _PAPER_SIZES,
    )


def round_seconds(
    layout: Layout,
    *,
    fleet: str,
    clients: int,
    ims: bool,
    rounds: int,
    settings: NetworkSettings = _PAPER_SIZES,
    seed: int = 0,
) -> float:
    """Mean virtual seconds of a synchronous round at the preset densities."""
    links = build(FleetSettings, {"name": fleet, "clients": clients}, path="fleet").resolved_links()
    network = _network(layout, links, ims=ims, settings=settings, seed=seed)
    method = replace(FEDGMR, restoration=None, coordination=Synchronous(), ims=ims)
    return run_untrained(layout, network, method, ticks=rounds, seed=seed).now / rounds


def communication_table(
    paper: Paper, *, ticks: int = TICKS, settings: NetworkSettings = _PAPER_SIZES, seed: int = 0
) -> Table:
    """The table of communication from `ticks` merges before the first restoration and as many after it."""
    counts = _count(ticks, settings, seed)
    cells = {}
    for stage, (first, last) in zip(("before", "after"), zip(counts[::2], counts[1::2], strict=True), strict=True):
        for name, theirs in paper.data["communication"]["clients"].items():
            client = next(i for i, link in enumerate(_LINKS) if link.density == float(name))
            updates = last.updates[client] - first.updates[client]
            ours = {
                "density": last.density[client],
                "megabytes": (last.bytes_up[client] - first.bytes_up[client]) / updates / MIB,
                "updates": updates / (last.tick - first.tick),
            }
            for key, title in _QUANTITIES.items():
                place = f"{title}, {stage} the first restoration", f"{name}x client"
                cells[place] = Cell(ours=Measure(mean=ours[key]), paper=Measure(mean=theirs[stage][key]))
    block = Block(title="", cells=cells, row_name="quantity", column_name="client", relative=True)
    return Table(
        name="communication",
        title="Communication under fixed-time restoration",
        about="FEMNIST, High: what one participation of a client costs, and how often it takes part; computed by the "
        "network model.",
        blocks=(replace(block, uncoloured=block.rows),),
        notes=("the paper gives updates per merge as approximate", "MB are MiB (A21)"),
        comparable=settings == _PAPER_SIZES,
    )


class _Count(NamedTuple):
    """A moment of the run, by client."""

    tick: int
    density: list[float]
    updates: list[int]
    bytes_up: list[int]


def _count(ticks: int, settings: NetworkSettings, seed: int) -> list[_Count]:
    """The run at four moments: begin and end of the stage before the first restoration, and of the one after."""
    layout = Layout.of(Conv2())
    method = resolve_times(recipe_for(_EXAMPLE, "fedgmr/fixed_time", protocol="paper"), lambda: layout).method
    period = method.coordination.period
    assert period is not None
    counts: list[_Count] = []

    def note(server: Server, fleet: SimulatedFleet) -> None:
        # The stage before ends with the last tick at the old densities: the restoration is part of tick `ticks`.
        if server.tick in (_SETTLING, ticks - 1, ticks + _SETTLING, 2 * ticks - 1):
            density = [server.density(client) for client in range(fleet.clients)]
            counts.append(_Count(server.tick, density, list(server.updates), list(fleet.bytes_up)))

    run_untrained(
        layout,
        _network(layout, _LINKS, ims=method.ims, settings=settings, seed=seed),
        replace(method, interval=ticks),
        ticks=2 * ticks,
        seconds=len(method.ladder) * ticks * period,  # so that the floor first rises after `ticks`
        seed=seed,
        after_tick=note,
    )
    return counts


def _network(layout: Layout, links: Sequence[Link], *, ims: bool, settings: NetworkSettings, seed: int) -> Network:
    return Network(settings, links, make_sizes(settings, layout), ims=ims, seed=seed)
