"""Real links: SuperNodes in network namespaces behind `tc tbf`, against the kernel's counters and the simulated fleet.

There are three claims, each with a table. The bytes in our metrics are those that cross each link, within 3 %. A task
takes the time that the simulated fleet predicts for the same links, within 20 %, with Flower's cost per task as its
`compute_seconds`, measured beforehand on links without a limit. FedGMR reaches a target accuracy before FedAvg. Every
node has the same fixed share of this machine's processors, as if it were a machine of its own. The net is Conv-2, with
the paper's High bandwidths and the images of mnist5k. This needs root, ip, tc, control groups and the extra `flower`.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from digits import digits
from environment import header
from link_records import Outcome, Prediction, byte_rows, race_rows, reached, read_tasks, time_rows, within
from netns import Cables, Shares
from tables import markdown, write_csv

from fedgmr.deploy.app import write_app
from fedgmr.deploy.local import LocalFleet
from fedgmr.deploy.processes import Program, Supervisor
from fedgmr.deploy.site import Site
from fedgmr.recipe import Recipe, recipe_from

BYTES_LIMIT, TIME_LIMIT = 0.03, 0.20
IDLE = 40.0  # seconds over which the baseline is measured
NODES_PART = 0.7  # of the processors; the rest is the server's


def recipe_of(method: str, *, clients: int, seconds: float, period: float, seed: int = 0) -> Recipe:
    """The benchmark's recipe, on the paper's unscaled High fleet, whose rates were chosen for Conv-2."""
    data: dict[str, Any] = {
        "name": f"links-{method}",
        "seed": seed,
        "seconds": seconds,
        "task": "digits:digits",
        "partition": {"kind": "dirichlet", "alpha": 0.6},
        "method": method,
        "methods": {"fedgmr": {"interval": 5, "restoration": {"patience": 1}, "coordination": {"period": period}}},
        "fleet": {"name": "high", "clients": clients},
        "training": {"learning_rate": 0.05, "batch_size": 20, "steps": 10},
        "evaluation": {"every_seconds": period},
        "checkpoint": {"every": 1},
    }
    return recipe_from(data)


class Bench:
    """The nodes' links and processors, and runs on them."""

    def __init__(self, cables: Cables, shares: Shares, folder: Path) -> None:
        self.cables, self.shares, self.folder = cables, shares, folder

    def run(
        self,
        name: str,
        recipe: Recipe,
        *,
        idle: float = 0.0,
        during: Callable[[Path], AbstractContextManager[object]] = nullcontext,
    ) -> Outcome:
        """Run a recipe on nodes in the namespaces, within what `during` gives for the run's directory."""
        directory = self.folder / name
        before, began = [self.cables.count(node) for node in range(self.cables.nodes)], time.monotonic()
        site = Site.create(directory / "flower", clients=self.cables.nodes, tls=False, host="0.0.0.0")
        write_app(site.app, recipe, directory.absolute())
        rates: list[tuple[float, float]] = []
        with Supervisor(site.folder, site.logs, site.environment()) as crew:
            fleet = LocalFleet(site, directory, crew, lambda text: print(f"# {text}", file=sys.stderr))
            fleet.start(self._node)
            if idle:
                rates = self._idle(site, idle)
            with during(directory):
                fleet.run_to_its_end(lambda run: None)
        counted = [self.cables.count(node).since(old) for node, old in enumerate(before)]
        tasks, in_flight = read_tasks(directory)
        return Outcome(
            tasks=tasks,
            in_flight=in_flight,
            metrics=[json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()],
            counted=counted,
            idle=rates,
            window=time.monotonic() - began,
            seconds=recipe.seconds,
        )

    def _node(self, site: Site, client: int) -> Program:
        program = site.supernode(client, address=f"{self.cables.address(client)}:{site.port}")
        command = self.cables.inside(client, list(program.command))
        return replace(program, command=self.shares.inside(client, command))

    def _idle(self, site: Site, seconds: float) -> list[tuple[float, float]]:
        """Bytes per second on each link while nodes only ask for work."""
        logs = [site.logs / f"supernode-{node}.log" for node in range(self.cables.nodes)]
        while not all(log.exists() and "SuperNode ID" in log.read_text(errors="replace") for log in logs):
            time.sleep(0.5)
        before = [self.cables.count(node) for node in range(self.cables.nodes)]
        time.sleep(seconds)
        found = [self.cables.count(node).since(old) for node, old in enumerate(before)]
        return [(count.payload_down / seconds, count.payload_up / seconds) for count in found]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4, help="SuperNodes (default: 4)")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each run of the race (default: 600)")
    parser.add_argument("--target", type=float, default=0.8, help="accuracy (default: 0.8)")
    parser.add_argument("--only-bytes", action="store_true", help="without the race: ten minutes instead of 25")
    parser.add_argument("--keep", type=Path, help="where run directories stay (default: nowhere)")
    parser.add_argument("--csv", type=Path, help="a folder for the tables")
    given = parser.parse_args(arguments)
    share_task()
    shares = Shares(given.clients, cores=NODES_PART * (os.cpu_count() or 1) / given.clients)
    print(f"{header()}\n{given.clients} nodes with {shares.cores:.2f} of a core each")
    with tempfile.TemporaryDirectory() as scratch, Cables(given.clients) as cables, shares:
        return _measure(given, Bench(cables, shares, given.keep or Path(scratch)))


def share_task() -> None:
    """Let the nodes of a run find the benchmark's task, and trust it."""
    folder = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    os.environ["FEDGMR_TRUST"] = "digits"


def _measure(given: argparse.Namespace, bench: Bench) -> int:
    clients = given.clients
    # Links without a limit: the cost of a task in Flower, training included, and the bytes of idle nodes.
    free = bench.run("free", recipe_of("fedgmr", clients=clients, seconds=149.0, period=30.0), idle=IDLE)
    overhead = tell_overhead(free)
    base = recipe_of("fedgmr", clients=clients, seconds=1.0, period=20.0)
    links = base.fleet.resolved_links()
    for node, link in enumerate(links):
        bench.cables.limit(node, down=link.down, up=link.up)
    predicted = Prediction(base, digits(base.seed).layout(), links, overhead)
    first = [base.method.levels_in_ladder.index(link.density or 1.0) for link in links]
    slowest = max(predicted.task(client, level, level_map=True)[0] for client, level in enumerate(first))
    print(f"Simulated: the slowest first task takes {slowest:.1f} s")

    # Every task ends before the next tick, and the last tick is just outside the budget: nothing is in flight then.
    calm = float(round(1.5 * slowest))
    check = bench.run("bytes", recipe_of("fedgmr", clients=clients, seconds=8 * calm - 1, period=calm))
    bytes_ = byte_rows("fedgmr, 8 ticks", check, free.idle)
    tell(given.csv, "Bytes", bytes_)
    verdicts = {f"bytes within {BYTES_LIMIT:.0%}": len(bytes_) == 2 * clients and within(bytes_, BYTES_LIMIT)}
    times = time_rows("fedgmr, 8 ticks", check, predicted, links)
    if not given.only_bytes:
        runs = _race(given, bench, float(round(1.1 * slowest + 1)))
        whole = recipe_of("fedavg", clients=clients, seconds=1.0, period=20.0)
        full = Prediction(whole, digits(base.seed).layout(), links, overhead)
        times += time_rows("fedgmr", runs["fedgmr"], predicted, links)
        times += time_rows("fedavg", runs["fedavg"], full, links)
        ours, theirs = (reached(runs[method], given.target) for method in ("fedgmr", "fedavg"))
        verdicts["FedGMR first at the target"] = ours is not None and (theirs is None or ours < theirs)
    tell(given.csv, "Time per task", times)
    verdicts[f"time within {TIME_LIMIT:.0%}"] = within(times, TIME_LIMIT)
    print("\n" + "\n".join(f"{claim}: {'yes' if held else 'NO'}" for claim, held in verdicts.items()))
    return 0 if all(verdicts.values()) else 1


def tell_overhead(free: Outcome) -> float:
    """Print what a task costs on links without a limit; its median."""
    overhead = statistics.median(task.took for task in free.tasks)
    spread = statistics.quantiles((task.took for task in free.tasks), n=10)
    print(
        f"\nA task on links without a limit: median {overhead:.1f} s, 10 to 90 % {spread[0]:.1f} to {spread[-1]:.1f} s"
    )
    print(f"Idle: {[(round(d), round(u)) for d, u in free.idle]} bytes per second down, up")
    return overhead


def _race(given: argparse.Namespace, bench: Bench, period: float) -> dict[str, Outcome]:
    runs = {
        method: bench.run(method, recipe_of(method, clients=given.clients, seconds=given.seconds, period=period))
        for method in ("fedgmr", "fedavg")
    }
    tell(given.csv, f"Race, period {period:g} s", race_rows(runs, given.target))
    return runs


def tell(folder: Path | None, title: str, rows: list[dict[str, object]]) -> None:
    """Print a table, and write it to a file of a folder."""
    print(f"\n{title}\n\n{markdown(rows) if rows else 'nothing'}")
    if folder and rows:
        name = title.partition(",")[0].lower().replace(" ", "-")
        write_csv(folder / f"links-{name}.csv", rows)


if __name__ == "__main__":
    sys.exit(main())
