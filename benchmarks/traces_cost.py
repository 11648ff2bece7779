"""The cost of links that vary: `python benchmarks/traces_cost.py [--csv PATH]`.

Runs of FedAsync with constant links and with generated drives, 10 clients and 10,000 of whom 100 are at work, in one
process and in turns of 100 updates (`scaling.py`). The method merges every update by itself, so both runs do the same
things at other times. The table has the processor time per update, of everything, of all but the client's SGD, and of
the network. The ratio of everything may be at most 1.05, else the status is 1. Memory is what the network holds.
"""

import argparse
import gc
import statistics
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

from crowd import PARTS, REST, SGD, Case, Run
from environment import header, one_thread
from scaling import part_rows, time_pair
from tables import Row, markdown, write_csv

from fedgmr.experiments.allocation import reused_memory
from fedgmr.fleets.drive import Drive
from fedgmr.fleets.network import Network, NetworkSettings
from fedgmr.fleets.presets import FleetSettings
from fedgmr.fleets.sizes import LinearSizes

LIMIT = 1.05
TRACES = {"none": None, "drive": Drive()}
_OTHERS = [part for part in (REST, *(name for name, _, _ in PARTS)) if part != "network"]


def network_mebibytes(trace: str, clients: int) -> float:
    """The memory of the network of a fleet."""
    links = FleetSettings(clients=clients, trace=TRACES[trace]).resolved_links()
    gc.collect()
    tracemalloc.start()
    network = Network(NetworkSettings(), links, LinearSizes(full=1), ims=False, seed=0)
    held = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    del network
    return held


def rows_of(clients: int, runs: Sequence[Run]) -> Iterator[Row]:
    """One row per kind of links: medians of the turns, and of the ratios of paired turns."""
    times = {
        quantity: [run.milliseconds(without=without)[1:] for run in runs]  # the first turn warms up
        for quantity, without in (("everything", ()), ("all but SGD", (SGD,)), ("network", _OTHERS))
    }
    for number, trace in enumerate(TRACES):
        row: dict[str, object] = {"clients": clients, "trace": trace}
        for quantity, turns in times.items():
            row[f"{quantity}, ms"] = f"{statistics.median(turns[number]):.4f}"
            if quantity != "network":
                pairs = [b / a for a, b in zip(turns[0], turns[number], strict=True)]
                row[f"{quantity}, ratio"] = f"{statistics.median(pairs):.3f}"
        yield row | {"network MiB": f"{network_mebibytes(trace, clients):.2f}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 10_000], metavar="N")
    parser.add_argument("--updates", type=int, default=5000, help="per run")
    parser.add_argument("--csv", type=Path, metavar="PATH", help="write every part of every turn here")
    arguments = parser.parse_args()
    one_thread()
    print(header(), "\n")
    rows: list[Row] = []
    raw: list[Row] = []
    with reused_memory():  # as in a run
        for clients in arguments.clients:
            cases = [Case(clients=clients, method="fedasync", state="restored", trace=trace) for trace in TRACES]
            runs = time_pair(cases[0], cases[1], updates=arguments.updates)
            rows += rows_of(clients, runs)
            raw += part_rows(cases, runs)
    print(markdown(rows), "\n")
    if arguments.csv:
        write_csv(arguments.csv, raw)
    worst = max(float(str(row["everything, ratio"])) for row in rows)
    print(f"largest ratio, limit {LIMIT}: {worst:.3f}, {'met' if worst <= LIMIT else 'NOT met'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
