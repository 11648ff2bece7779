"""The paper's table of communication costs from the simulated fleet: `python benchmarks/ims_cost.py [--csv PATH]`.

The rows are 1,000 synchronous rounds of Conv-2 with sub-models at the preset densities, with and without IMS, for 5, 10
and 30 clients. `fedgmr table ims-cost` prints the same table, here it has a limit. The run is the real one (server,
loop, fleet, network with its default constants and the paper's sizes), except that no client trains, no merge changes
the model, and the level map has the right counts without a ranking. The clock depends only on bytes. The status is 1 if
a cell differs from the paper by more than 3 %.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from environment import header, one_thread
from tables import Row, markdown, write_csv

from fedgmr.paper.computed import round_seconds
from fedgmr.paper.numbers import Paper
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.models.conv2 import Conv2

ROUNDS = 1000
LIMIT = 0.03


def measured(*, rounds: int = ROUNDS, seed: int = 0) -> Iterator[Row]:
    """One row per cell of the paper's table; fewer rounds are scaled to 1,000."""
    layout = Layout.of(Conv2())
    for sending, fleets in Paper.read().data["ims_cost"]["seconds"].items():
        for fleet, times in fleets.items():
            for clients, paper in times.items():
                ims = sending == "with"
                seconds = round_seconds(layout, fleet=fleet, clients=int(clients), ims=ims, rounds=rounds, seed=seed)
                ours = seconds * ROUNDS
                yield {
                    "sending": "IMS" if ims else "w/o IMS",
                    "fleet": fleet,
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
