"""The cost of a client update in a large fleet and in a small one: `python benchmarks/scaling.py [--csv FILE]`.

Fleets of 100, 1,000 and 10,000 clients, at most 100 of them at work at a time, are compared with 10 clients that are
all at work. Net, links and number of samples per client are the same. FedGMR has two states: at the preset densities
every client answers within a period; fully restored, slow clients take many periods and the buffer holds a full model
of each. FedAvg and FedAsync keep no buffer. Buffers are full from the beginning (`crowd.py`).

Both runs are in one process and take turns of 100 updates, so that a busy machine slows both equally. The table has the
processor time per update (one thread), of everything and of all but the client's SGD. The ratio of everything may be at
most 1.3, except for the restored fleet of 10,000, whose merge has 10,000 models to read. Otherwise the status is 1.
`memory.py` has the memory.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from crowd import SGD, Case, Run
from environment import header, one_thread
from tables import Row, markdown, write_csv

from fedgmr.experiments.allocation import reused_memory

TIME_LIMIT = 1.3
SMALL_FLEET = 10
FLEETS = (100, 1000, 10_000)
TURN = 100  # updates
KINDS = (("fedgmr", "preset"), ("fedgmr", "restored"), ("fedavg", "restored"), ("fedasync", "restored"))


def judged(case: Case) -> bool:
    """Whether the limit applies to this case: every merge of a restored FedGMR fleet reads a model per client."""
    return not (case.method == "fedgmr" and case.state == "restored" and case.clients > 1000)


def time_pair(small: Case, large: Case, *, updates: int, turn: int = TURN) -> tuple[Run, Run]:
    """Run both in turns of this many updates, until `large` has its updates; the first turn of each warms up."""
    runs = [Run.of(case) for case in (small, large)]
    while runs[1].done < updates:
        for run in runs:
            run.turn(turn)
    return runs[0], runs[1]


def time_rows(small: Case, large: Case, runs: tuple[Run, Run]) -> Iterator[Row]:
    """The comparison: medians of the turns, and of the ratios of paired turns."""
    row: dict[str, object] = {"method": large.method, "state": large.state, "clients": large.clients}
    for quantity, without in (("everything", ()), ("all but SGD", (SGD,))):
        turns = [run.milliseconds(without=without)[1:] or run.milliseconds(without=without) for run in runs]
        pairs = [b / a for a, b in zip(*turns, strict=True)]
        row |= {
            f"{quantity}, {small.clients} clients, ms": f"{statistics.median(turns[0]):.3f}",
            f"{quantity}, ms": f"{statistics.median(turns[1]):.3f}",
            f"{quantity}, ratio": f"{statistics.median(pairs):.2f}",
        }
    yield row | {"limit": TIME_LIMIT if judged(large) else "none"}


def part_rows(cases: Sequence[Case], runs: Sequence[Run]) -> Iterator[Row]:
    """Raw times: every part of every turn."""
    for case, run in zip(cases, runs, strict=True):
        for number, (watch, updates) in enumerate(zip(run.turns, run.updates, strict=True)):
            for part, seconds in watch.seconds.items():
                yield asdict(case) | {"turn": number, "turn_updates": updates, "part": part, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=list(FLEETS), help="of the large fleets")
    parser.add_argument("--updates", type=int, default=600, help="per run")
    parser.add_argument("--methods", nargs="+", choices=sorted({method for method, _ in KINDS}))
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every part of every turn here")
    arguments = parser.parse_args()
    one_thread()
    print(header())
    rows: list[Row] = []
    raw: list[Row] = []
    with reused_memory():  # as in a run
        for method, state in KINDS:
            if arguments.methods and method not in arguments.methods:
                continue
            for clients in arguments.clients:
                small, large = (Case(clients=n, method=method, state=state) for n in (SMALL_FLEET, clients))
                runs = time_pair(small, large, updates=arguments.updates)
                rows += time_rows(small, large, runs)
                raw += part_rows((small, large), runs)
    print(f"\n{markdown(rows)}\n")
    if arguments.csv:
        write_csv(arguments.csv, raw)
    worst = max(float(str(row["everything, ratio"])) for row in rows if row["limit"] != "none")
    good = worst <= TIME_LIMIT
    print(f"largest ratio under the limit {TIME_LIMIT}: {worst:.2f}, {'met' if good else 'NOT met'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
