"""What a client update costs in a large fleet and in a small one: `python benchmarks/scaling.py [--csv FOLDER]`.

FedGMR with 1,000 clients, 100 of them at work at a time, against 10 clients, all at work; the same net, links and
number of samples per client. Two states: at the preset densities every client answers within a period; fully
restored, slow clients take many periods and the buffer holds a full model of each.

Time: both runs live in one process and take turns of 100 updates, so that a busy machine slows both alike. Compared
is the wall time per update, of everything and of all but the client's SGD; with the small net the ratio of everything
may be at most 1.3.

Memory: each run in a process of its own. Its resident set may grow, at the peak, by 1.2 x (4 bytes x N x model
versions in flight + the buffered sub-models + one slot) + 200 MB. A slot is what one trainer and one evaluator work
on: values, gradients and update of the one, values of the other.

Ends with status 1 if a limit is not met.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environment import header, one_thread
from stopwatch import Part, Stopwatch
from tables import Row, markdown, write_csv
from torch import nn

from fedgmr.experiments.assembly import Assembly, assemble, resolve
from fedgmr.federation import federate
from fedgmr.fleets.network import Network
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.recipe import recipe_from
from fedgmr.seeding import generator
from fedgmr.server.server import Server
from fedgmr.submodels.rankings import Taylor
from fedgmr.tasks.mnist5k import SmallNet
from fedgmr.tasks.partition import SampleOrder
from fedgmr.tasks.task import Task
from fedgmr.training.evaluation import Evaluator
from fedgmr.training.local_sgd import LocalTrainer

TIME_LIMIT = 1.3
MEMORY_FACTOR, MEMORY_ALLOWANCE = 1.2, 200e6
SLOT_VECTORS = 4
AT_WORK = 100
STATES = ("preset", "restored")
SMALL_FLEET = 10
TURN = 100  # updates
SAMPLES = 40  # per client
HELD_OUT = 100

SGD = "client's SGD"
REST = "loop and rest"
PARTS: tuple[Part, ...] = (
    (SGD, LocalTrainer, "train"),
    ("sample order", SampleOrder, "batches"),
    ("network", Network, "send"),
    ("merge", Server, "merge"),
    ("ranking", Taylor, "rank"),
    ("validation", Evaluator, "validate"),
    ("tasks", Server, "tasks"),
    ("fleet", SimulatedFleet, "collect"),
    ("fleet", SimulatedFleet, "dispatch"),
    ("fleet", SimulatedFleet, "free"),
)
NETS: Mapping[str, Callable[[], nn.Module]] = {
    "small": SmallNet,
    "mid": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 200), nn.ReLU(), nn.Linear(200, 10)
    ),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to be measured."""

    net: str
    clients: int
    state: str
    coordination: str = "semi_asynchronous"
    updates: int

    @property
    def count(self) -> int:
        """Clients at work at a time."""
        return min(self.clients, AT_WORK)


def synthetic(net: str, clients: int) -> Task:
    """Ten classes of noisy 28 x 28 images, as many per client whatever the fleet."""
    draw = generator(0, "scaling")
    centres = draw.integers(0, 128, (10, 1, 28, 28), dtype=np.uint8)

    def samples(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = np.arange(number) % 10
        inputs = centres[labels] + draw.integers(0, 128, (number, 1, 28, 28), dtype=np.uint8)
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    return Task(
        name=f"synthetic_{net}",
        model=NETS[net],
        train=samples(clients * SAMPLES + HELD_OUT),
        test=samples(HELD_OUT),
        prepare=lambda pixels: pixels.to(torch.float32).div_(255.0),
        holdout=HELD_OUT,
    )


def objects(case: Case, task: Task) -> Assembly:
    """The run of a case, ready to start."""
    data: dict[str, Any] = {
        "seconds": 1e9,
        "task": task.name,
        # The checks for restoration are made, but nobody moves: each state lasts.
        "method": {"name": "fedgmr", "coordination": case.coordination, "restoration": {"patience": 10**6}},
        "fleet": {"name": "high", "clients": case.clients, "scale": "model"},
        "participation": {"count": case.count},
        "training": {"learning_rate": 0.05, "batch_size": 20, "steps": 5},
        "device": "cpu",
    }
    if case.state == "restored":
        if case.coordination == "semi_asynchronous":  # the period stays that of the preset densities
            period = resolve(recipe_from(data), task).method.coordination.period  # type: ignore[attr-defined]
            data["method"]["coordination"] = {"kind": case.coordination, "period": period}
        data["fleet"]["densities"] = [1.0] * case.clients
    return assemble(resolve(recipe_from(data), task), task)


class _TurnError(Exception):
    pass


@dataclass
class Run:
    """A run that goes on in turns, with its time by part and turn."""

    assembly: Assembly
    turns: list[Stopwatch] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Updates merged so far."""
        return sum(self.assembly.server.updates)

    def turn(self, updates: int, watch: Callable[[], None] = lambda: None) -> None:
        """Go on until at least so many more updates are merged; `watch` is called after every tick."""
        begun = self.done
        stopwatch = Stopwatch()

        def after_tick() -> None:
            watch()
            if self.done - begun >= updates:
                raise _TurnError

        server, fleet = self.assembly.server, self.assembly.fleet
        with contextlib.suppress(_TurnError), stopwatch.on(PARTS), stopwatch.part(REST):
            federate(server, fleet, seconds=math.inf, after_tick=after_tick, resumed=begun > 0)
        self.turns.append(stopwatch)
        self.updates.append(self.done - begun)

    def milliseconds(self, *, without: Sequence[str] = ()) -> list[float]:
        """Per update, turn by turn, leaving out some parts."""
        return [
            1e3 * sum(s for part, s in watch.seconds.items() if part not in without) / updates
            for watch, updates in zip(self.turns, self.updates, strict=True)
        ]


def time_pair(small: Case, large: Case, *, turn: int = TURN) -> tuple[Run, Run]:
    """Both runs in turns of so many updates, until `large` has its updates."""
    runs = [Run(objects(case, synthetic(case.net, case.clients))) for case in (small, large)]
    while runs[1].done < large.updates:
        for run in runs:
            run.turn(turn)
    return runs[0], runs[1]


def time_rows(small: Case, large: Case, runs: tuple[Run, Run]) -> Iterator[Row]:
    """The comparison, over the whole run and as the median of paired turns in its second half."""
    for quantity, without in (("everything", ()), ("all but SGD", (SGD,))):
        turns = [run.milliseconds(without=without) for run in runs]
        means = [
            sum(t * n for t, n in zip(ms, run.updates, strict=True)) / run.done
            for ms, run in zip(turns, runs, strict=True)
        ]
        pairs = [b / a for a, b in zip(*turns, strict=True)]
        yield {
            "net": large.net,
            "state": large.state,
            "coordination": large.coordination,
            "cost per update of": quantity,
            f"{small.clients} clients, ms": f"{means[0]:.3f}",
            f"{large.clients} clients, ms": f"{means[1]:.3f}",
            "ratio, whole run": f"{means[1] / means[0]:.2f}",
            "ratio, second half": f"{statistics.median(pairs[len(pairs) // 2 :]):.2f}",
        }


def part_rows(cases: Sequence[Case], runs: Sequence[Run]) -> Iterator[Row]:
    """Raw times: every part of every turn."""
    for case, run in zip(cases, runs, strict=True):
        for number, (watch, updates) in enumerate(zip(run.turns, run.updates, strict=True)):
            for part, seconds in watch.seconds.items():
                yield asdict(case) | {"turn": number, "turn_updates": updates, "part": part, "seconds": seconds}


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a run must hold, in bytes; the largest sum over its ticks is what counts."""

    models: int  # 4 bytes x N x distinct versions in flight, with the current one
    buffered: int  # values of the server's buffer
    slot: int
    level_maps: int  # of the buffered updates and the current one, with their orders; not in the bound

    @property
    def bound(self) -> float:
        """The most that the resident set may grow."""
        return MEMORY_FACTOR * (self.models + self.buffered + self.slot) + MEMORY_ALLOWANCE


def footprint(server: Server) -> Footprint:
    """What the server and one slot hold now."""
    vector = server.model.element_size() * len(server.model)
    models = {id(task.model) for task in server.dispatched.values()} | {id(server.model)}
    maps = {id(c.levels): c.levels for c in server.buffer.values()} | {id(server.levels): server.levels}
    return Footprint(
        models=vector * len(models),
        buffered=sum(c.values.element_size() * len(c.values) for c in server.buffer.values()),
        slot=SLOT_VECTORS * vector,
        level_maps=sum(len(m) * (9 if "order" in m.__dict__ else 1) for m in maps.values()),
    )


def measure_memory(case: Case) -> dict[str, float]:
    """Run a case; how far the resident set grew, and the footprint when it was largest. For a fresh process."""
    task = synthetic(case.net, case.clients)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    run = Run(objects(case, task))
    server = run.assembly.server
    largest = footprint(server)

    def watch() -> None:
        nonlocal largest
        largest = max(largest, footprint(server), key=lambda f: f.bound)

    run.turn(case.updates, watch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return asdict(largest) | {"parameters": len(server.model), "grown": peak - before, "bound": largest.bound}


def memory_row(case: Case) -> Row:
    """`measure_memory` in a process of its own, in MB."""
    command = [sys.executable, __file__, "--memory-case", json.dumps(asdict(case))]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(output.splitlines()[-1])
    megabytes = {name: f"{found[name] / 1e6:.1f}" for name in (*Footprint.__annotations__, "bound", "grown")}
    return {"net": case.net, "N": found["parameters"], "state": case.state, "clients": case.clients, **megabytes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000, help="of the large fleet")
    parser.add_argument("--updates", type=int, default=4000, help="per run; four per client fill the buffer")
    parser.add_argument("--only", choices=("time", "memory"), help="one of the two")
    parser.add_argument("--states", nargs="+", choices=STATES, default=list(STATES))
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--synchronous", action="store_true", help="time synchronous rounds too")
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write scaling_time.csv and scaling_memory.csv here")
    parser.add_argument("--memory-case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    one_thread()
    if arguments.memory_case:
        print(json.dumps(measure_memory(Case(**json.loads(arguments.memory_case)))))
        return 0
    print(header())
    good = True
    if arguments.only != "memory":
        good &= report_time(arguments)
    if arguments.only != "time":
        good &= report_memory(arguments)
    return 0 if good else 1


def report_time(arguments: argparse.Namespace) -> bool:
    kinds = ["semi_asynchronous", *(["synchronous"] if arguments.synchronous else [])]
    rows: list[Row] = []
    raw: list[Row] = []
    for net, state, kind in itertools.product(arguments.nets, arguments.states, kinds):
        small, large = (
            Case(net=net, clients=clients, state=state, coordination=kind, updates=arguments.updates)
            for clients in (SMALL_FLEET, arguments.clients)
        )
        runs = time_pair(small, large)
        rows += time_rows(small, large, runs)
        raw += part_rows((small, large), runs)
    print(f"\n{markdown(rows)}\n")
    # The limit is on the cost of an update with a small model; the rest of the table is told, not judged.
    judged = [row for row in rows if row["net"] == "small" and row["cost per update of"] == "everything"]
    spans = ("whole run", "second half")
    worst = max((float(str(row[f"ratio, {span}"])) for row in judged for span in spans), default=0.0)
    good = worst <= TIME_LIMIT
    print(f"largest ratio of everything, small net: {worst:.2f}; limit {TIME_LIMIT}: {'met' if good else 'NOT met'}")
    if arguments.csv:
        write_csv(arguments.csv / "scaling_time.csv", raw)
    return good


def report_memory(arguments: argparse.Namespace) -> bool:
    fleets = (SMALL_FLEET, arguments.clients)
    rows = [
        memory_row(Case(net=net, clients=clients, state=state, updates=arguments.updates))
        for net, state, clients in itertools.product(arguments.nets, arguments.states, fleets)
    ]
    print(f"\n{markdown(rows)}  (MB)\n")
    worst = max(float(str(row["grown"])) / float(str(row["bound"])) for row in rows)
    print(f"largest growth {100 * worst:.0f} % of its bound: {'met' if worst <= 1 else 'NOT met'}")
    if arguments.csv:
        write_csv(arguments.csv / "scaling_memory.csv", rows)
    return worst <= 1


if __name__ == "__main__":
    sys.exit(main())
