"""The memory of a run: `python benchmarks/memory.py [--csv FILE]`.

FedGMR with Conv-2 (6.6M parameters) and 10, 100 and 1,000 clients of the High fleet, at most 100 at work at a time, at
the preset densities and fully restored, with buffers in float32 and float16; and with the small net and 10,000
clients. Each run has a process of its own and a full buffer from the beginning (`crowd.py`); then 100 updates are
trained and merged. From before the run is assembled to its peak, the resident set may grow by 200 MB and 1.2 x the sum
of the following parts:

- models: 4 bytes x N for the current version, the previous one, and each older one that a task in flight started from;
- buffer: one sub-model's values per client;
- arrivals: the values of the updates in flight, in float32: all may arrive in one tick, and are held beside those in
  the buffer that they replace;
- level maps: of buffered sub-models, tasks in flight and the present: 1 byte x N each, 9 with its level order, 13 with
  positions too;
- work: ten vectors: values, gradients and update of the client at work, values of the evaluator, six of a refresh of
  the level map (a merge needs two).

Runs whose buffer is above --most GB are computed: their buffer by arithmetic, the rest as with 100 clients. The status
is 1 if a limit is not met.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from crowd import AT_WORK, STATES, Case, Run, fill, objects, synthetic
from environment import header, one_thread
from tables import Row, markdown, write_csv

from fedgmr.experiments.allocation import reused_memory
from fedgmr.server.server import Server
from fedgmr.submodels.levels import LevelMap

FACTOR, ALLOWANCE = 1.2, 200e6
WORK_VECTORS = 10
FLEETS = (10, 100, 1000)
UPDATES = 100
BYTES = {"float32": 4, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The data that a run must hold, in bytes."""

    models: int
    buffer: int
    arrivals: int
    maps: int
    work: int

    @property
    def whole(self) -> int:
        """The sum of all parts."""
        return self.models + self.buffer + self.arrivals + self.maps + self.work

    @property
    def bound(self) -> float:
        """The most that the resident set may grow."""
        return FACTOR * self.whole + ALLOWANCE


def footprint(server: Server) -> Footprint:
    """What the server and one client at work hold now."""
    vector, tasks = server.model.nbytes, server.dispatched.values()
    models = {id(model) for model in (server.model, server.previous, *(task.model for task in tasks))}
    held = (server.levels, *(task.levels for task in tasks), *(c.levels for c in server.buffer.values()))
    maps = {id(levels): levels for levels in held if levels is not None}
    return Footprint(
        models=vector * (len(models) - (server.previous is None)),
        buffer=sum(c.values.nbytes for c in server.buffer.values()),
        arrivals=sum(task.levels.sizes[task.level] * server.model.element_size() for task in tasks),
        maps=sum(_map_size(levels) for levels in maps.values()),
        work=WORK_VECTORS * vector,
    )


def _map_size(levels: LevelMap) -> int:
    """Bytes of the map and of everything that it has computed so far."""
    known = [levels.__dict__.get(name) for name in ("order", "position")]
    return levels.levels.nbytes + sum(vector.nbytes for vector in known if vector is not None)


def measure(case: Case, updates: int) -> dict[str, float]:
    """Run a case in a fresh process: the growth of the resident set, and the largest footprint."""
    task = synthetic(case.net, case.clients)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    run = Run(objects(case, task))
    server = run.assembly.server
    fill(server, case)
    largest = footprint(server)

    def watch() -> None:
        nonlocal largest
        largest = max(largest, footprint(server), key=lambda found: found.whole)

    with reused_memory():  # as in a run
        run.turn(updates, watch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return asdict(largest) | {"grown": peak - before}


def measured(case: Case, updates: int) -> tuple[Footprint, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case)), "--updates", str(updates)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(output.splitlines()[-1])
    grown = float(found.pop("grown"))
    return Footprint(**found), grown


def row_of(case: Case, found: Footprint, grown: float | None) -> Row:
    """One row in MB; figures that were not measured are empty."""
    sizes = {name: f"{size / 1e6:.0f}" for name, size in asdict(found).items()}
    share = "computed" if grown is None else f"{100 * grown / found.bound:.0f} %"
    return {
        "net": case.net,
        "clients": case.clients,
        "state": case.state,
        "buffer in": case.dtype,
        **sizes,
        "together": f"{found.whole / 1e6:.0f}",
        "bound": f"{found.bound / 1e6:.0f}",
        "grown": "" if grown is None else f"{grown / 1e6:.0f}",
        "of bound": share,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=UPDATES, help="trained in each run")
    parser.add_argument("--most", type=float, default=8.0, metavar="GB", help="largest buffer that is measured")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    one_thread()
    if arguments.case:
        print(json.dumps(measure(Case(**json.loads(arguments.case)), arguments.updates)))
        return 0
    print(header())
    rows: list[Row] = []
    worst = 0.0
    cases = [
        Case(net="conv2", clients=clients, state=state, dtype=dtype)
        for state, dtype, clients in itertools.product(STATES, BYTES, FLEETS)
    ] + [Case(net="small", clients=10_000, state=state) for state in STATES]
    known: dict[tuple[str, str], Footprint] = {}  # of 100 clients, by state and type
    for case in cases:
        base = known.get((case.state, case.dtype))
        buffer = 0 if base is None else base.buffer * case.clients // AT_WORK
        if base is not None and case.net == "conv2" and buffer > 1e9 * arguments.most:
            rows.append(row_of(case, Footprint(**asdict(base) | {"buffer": buffer}), None))
            continue
        found, grown = measured(case, arguments.updates)
        if case.net == "conv2" and case.clients == AT_WORK:
            known[case.state, case.dtype] = found
        worst = max(worst, grown / found.bound)
        rows.append(row_of(case, found, grown))
    print(f"\n{markdown(rows)}  (MB)\n")
    if arguments.csv:
        write_csv(arguments.csv, rows)
    print(f"largest growth {100 * worst:.0f} % of its bound: {'met' if worst <= 1 else 'NOT met'}")
    return 0 if worst <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
