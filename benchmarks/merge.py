"""The cost of a merge compared with a plain copy: `python benchmarks/merge.py [--device cuda] [--csv FILE]`.

The merge is the mask-aware mean of ten buffered updates of the size of Conv-2, at the densities of the High fleet and
all at 1. Their level maps, all made by the Taylor ranking, are in turn: all the current one; four of the ten still the
previous one; every update another one. Updates are kept as the server keeps them.

The copy is `Tensor.copy_` of one vector with as many bytes as a merge must touch: every buffered value, the model once
(read or written), and, where several level maps take part, each of these (a byte per coordinate). The copy has its
target already; the merge allocates the new model, from memory that the process keeps as in a run. They take turns, and
the ratio is that of the fastest turns. It may be at most 2 if all updates are of the current map, and 6 otherwise. The
status is 1 if a limit is not met. The column `values only` has the ratio to a copy without the maps.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from environment import header
from tables import Row, markdown, write_csv
from torch import Tensor
from turns import fastest

from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments.allocation import reused_memory
from fedgmr.server.aggregation import MaskAware, Merge
from fedgmr.server.buffer import BufferRule, Contribution
from fedgmr.staleness import Polynomial
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import RankingInputs, Taylor
from fedgmr.tasks.models.conv2 import Conv2

LADDER = (0.05, 0.1, 0.2, 0.5, 1.0)
DENSITIES = {"High": (1.0, 0.5, 0.2, 0.1, *[0.05] * 6), "all 1": (1.0,) * 10}
LIMITS = {"current": 2.0, "current and the one before": 6.0, "each another": 6.0}


@dataclass(frozen=True, kw_only=True)
class Case:
    """The content of the buffer."""

    densities: str
    maps: str
    dtype: str = "float32"


def level_maps(layout: Layout, count: int, device: torch.device) -> tuple[Tensor, list[LevelMap]]:
    """A model and the level maps it had after each of `count` random steps, with their orders."""
    draw = torch.Generator().manual_seed(0)
    model, maps = torch.randn(layout.size, generator=draw).mul_(0.02).to(device), []
    for tick in range(count):
        previous = model
        model = model + 1e-3 * torch.randn(layout.size, generator=draw).to(device)
        maps.append(
            Taylor().rank(RankingInputs(layout=layout, ladder=LADDER, model=model, previous=previous, tick=tick))
        )
    return model, maps


def buffered(case: Case, model: Tensor, maps: Sequence[LevelMap]) -> list[Contribution]:
    """Ten updates as the server keeps them."""
    densities, rule = DENSITIES[case.densities], BufferRule(dtype=case.dtype)  # type: ignore[arg-type]
    everybody_whole = min(densities) == 1.0
    held = []
    for client, density in enumerate(densities):
        number = {"current": 0, "current and the one before": int(client % 3 == 2), "each another": client}[case.maps]
        task = ClientTask(
            client=client,
            version=0,
            level=LADDER.index(density),
            levels=maps[-1 - number],
            map_version=len(maps) - 1 - number,
            model=model,
            buffers=model[:0],
            learning_rate=0.1,
            first_batch=0,
        )
        values = task.levels.pack(model, task.level) + 1e-3
        update = Update(client=client, version=0, values=values, buffers=model[:0], loss=0.0)
        held.append(rule.stored(Contribution.of(update, task, natural=everybody_whole)))
    return held


def touched(held: Sequence[Contribution], model: Tensor) -> tuple[int, int]:
    """Bytes that a merge must touch: values and model; level maps, where there is more than one."""
    values = sum(c.values.nbytes for c in held) + model.nbytes
    maps = {c.map_version: len(c.levels) for c in held if c.levels is not None}
    return values, sum(maps.values()) if len(maps) > 1 else 0


def measure(case: Case, model: Tensor, maps: Sequence[LevelMap], *, turns: int, repeat: int) -> Row:
    """One case against its copies."""
    held = buffered(case, model, maps)
    weights = {c.client: Polynomial().weight(c.client) for c in held}
    merge = Merge(
        model=model,
        buffers=model[:0],
        fresh=held,
        held=held,
        starts={},
        weights=weights,
        clients=len(held),
        fleet_weight=lambda: sum(weights.values()),
    )
    values, level_bytes = touched(held, model)
    source = torch.zeros(values + level_bytes, dtype=torch.uint8, device=model.device)
    target = torch.ones_like(source)
    seconds = fastest(
        {
            "merge": lambda: MaskAware().merge(merge),
            "copy": lambda: target.copy_(source),
            "values": lambda: target[:values].copy_(source[:values]),
        },
        turns=turns,
        repeat=repeat,
        device=model.device,
    )
    return {
        "densities": case.densities,
        "level maps": case.maps,
        "buffer": case.dtype,
        "MB": f"{(values + level_bytes) / 1e6:.0f}",
        "merge, ms": f"{1e3 * seconds['merge']:.3f}",
        "copy, ms": f"{1e3 * seconds['copy']:.3f}",
        "ratio": f"{seconds['merge'] / seconds['copy']:.2f}",
        "values only": f"{seconds['merge'] / seconds['values']:.2f}",
        "limit": LIMITS[case.maps] if case.dtype == "float32" else "",
    }


def rows(device: torch.device, layout: Layout, *, turns: int, repeat: int) -> Iterator[Row]:
    """All cases."""
    model, maps = level_maps(layout, 10, device)
    for densities in DENSITIES:
        for name in LIMITS:
            yield measure(Case(densities=densities, maps=name), model, maps, turns=turns, repeat=repeat)
        half = Case(densities=densities, maps="current", dtype="float16")
        yield measure(half, model, maps, turns=turns, repeat=repeat)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="for arithmetic on the CPU")
    parser.add_argument("--turns", type=int, default=30, help="the fastest counts")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    print(header())
    if device.type == "cuda":
        print(torch.cuda.get_device_name(device))
    with reused_memory():  # as in a run
        found = list(rows(device, Layout.of(Conv2()), turns=arguments.turns, repeat=1 if device.type == "cpu" else 20))
    print(f"\n{markdown(found)}\n")
    if arguments.csv:
        write_csv(arguments.csv, found)
    missed = [row for row in found if row["limit"] and float(str(row["ratio"])) > float(str(row["limit"]))]
    print("all limits met" if not missed else f"{len(missed)} limits NOT met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
