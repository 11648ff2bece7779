"""A refresh of the level map compared with a sort: `python benchmarks/refresh.py [--device cuda] [--csv FILE]`.

The refresh is the Taylor ranking of Conv-2 on the ladder 0.05 to 1: scores, the floor of 2 % of every tensor, ties by
magnitude and then by index. In one case every coordinate has moved since the last merge. In the other half of them have
not, so that their scores are equal and the boundary of a level falls among them. Both are compared with one
`torch.sort` of the same number of float32 values. The second column of times has the further needs of the first task
and the first merge with a new map: sizes, level order and positions. The cases take turns, and the fastest turns count.
On a CPU the refresh may take at most 0.2 of the sort; otherwise the status is 1.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from environment import header
from tables import Row, markdown, write_csv
from torch import Tensor
from turns import fastest

from fedgmr.experiments.allocation import reused_memory
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import RankingInputs, Taylor
from fedgmr.tasks.models.conv2 import Conv2

LIMIT = 0.2
LADDER = (0.05, 0.1, 0.2, 0.5, 1.0)
MOVED = {"every coordinate": 1.0, "half of them": 0.5}


def inputs(layout: Layout, moved: float, device: torch.device) -> RankingInputs:
    """A model and its predecessor; a share of the coordinates differ."""
    draw = torch.Generator().manual_seed(0)
    model = layout.flatten(Conv2())
    step = 1e-3 * torch.randn(layout.size, generator=draw)
    previous = torch.where(torch.rand(layout.size, generator=draw) < moved, model - step, model)
    return RankingInputs(layout=layout, ladder=LADDER, model=model.to(device), previous=previous.to(device), tick=25)


def in_order(levels: LevelMap) -> Tensor:
    """Compute what a map computes when it is first used."""
    fresh = LevelMap(levels.levels, levels.ladder)
    return fresh.position


def rows(layout: Layout, device: torch.device, turns: int) -> Iterator[Row]:
    """Both cases."""
    scores = torch.randn(layout.size, generator=torch.Generator().manual_seed(1)).to(device)
    for name, moved in MOVED.items():
        now = inputs(layout, moved, device)
        levels = Taylor().rank(now)
        seconds = fastest(
            {
                "refresh": lambda now=now: Taylor().rank(now),  # type: ignore[misc]
                "order": lambda levels=levels: in_order(levels),  # type: ignore[misc]
                "sort": lambda: torch.sort(scores),
            },
            turns=turns,
            device=device,
        )
        yield {
            "moved": name,
            "coordinates": layout.size,
            "refresh, ms": f"{1e3 * seconds['refresh']:.1f}",
            "level order, ms": f"{1e3 * seconds['order']:.1f}",
            "sort, ms": f"{1e3 * seconds['sort']:.1f}",
            "refresh / sort": f"{seconds['refresh'] / seconds['sort']:.3f}",
            "with level order": f"{(seconds['refresh'] + seconds['order']) / seconds['sort']:.3f}",
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="for arithmetic on the CPU")
    parser.add_argument("--turns", type=int, default=10, help="the fastest counts")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    print(header())
    if device.type == "cuda":
        print(torch.cuda.get_device_name(device))
    with reused_memory():  # as in a run
        found = list(rows(Layout.of(Conv2()), device, arguments.turns))
    print(f"\n{markdown(found)}\n")
    if arguments.csv:
        write_csv(arguments.csv, found)
    worst = max(float(str(row["refresh / sort"])) for row in found)
    if device.type != "cpu":
        print(f"largest ratio {worst:.3f}; no limit on this device")
        return 0
    print(f"largest ratio {worst:.3f}; limit {LIMIT}: {'met' if worst <= LIMIT else 'NOT met'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
