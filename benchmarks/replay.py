"""A trace on real links: SuperNodes behind shapers that get a new rate every second, against the simulated fleet.

The claims are those of `links.py`: bytes as the kernel counts them, within 3 %, and the time of a task as the simulated
fleet predicts it for the same trace, from the moment at which the task was sent, within 20 %. The trace begins with the
run, for every node with another part of it, at the rates that it has: those of a drive made by `fedgmr trace make` are
5.2 Mbit/s down and 0.8 up. A silent second carries one frame, because a shaper cannot be shut. When a transfer begins
matters here, so what Flower's cost per task is made of is measured too: the time before the download and that after the
upload. This needs what `links.py` needs.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from digits import digits
from environment import header
from link_records import Prediction, Task, byte_rows, time_rows, within
from links import BYTES_LIMIT, IDLE, NODES_PART, TIME_LIMIT, Bench, share_task, tell, tell_overhead
from netns import Cables, Count, Shares

from fedgmr.fleets.curves import Curve
from fedgmr.fleets.links import steady_links
from fedgmr.recipe import Recipe, recipe_from

DENSITIES = (0.05, 0.05, 0.05)  # one node each
_PART = 300.0  # seconds of the trace by which a node is ahead of the one before
_SLACK = 0.8  # a simulated task takes at most this share of the period


def recipe_of(trace: Path, *, seconds: float, period: float) -> Recipe:
    """The benchmark's recipe: Conv-2, everybody at the preset density, links that follow the trace."""
    links = [
        {"density": density, "trace": {"kind": "file", "down": str(trace.absolute()), "shift": node * _PART}}
        for node, density in enumerate(DENSITIES)
    ]
    data: dict[str, Any] = {
        "name": "replay",
        "seconds": seconds,
        "task": "digits:digits",
        "method": {"name": "fedgmr_without_restoration", "coordination": {"period": period}},
        "fleet": {"name": "custom", "links": links},
        "training": {"learning_rate": 0.05, "batch_size": 20, "steps": 10},
        "evaluation": {"every_seconds": period},
        "checkpoint": {"every": 1},
    }
    return recipe_from(data)


class Clocked:
    """Something done again and again beside a run, from the start of its clock to the end of the block."""

    every = 1.0  # seconds

    def __init__(self, cables: Cables, directory: Path) -> None:
        self.cables, self.journal = cables, directory / "updates.jsonl"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def do(self, now: float) -> None:
        """Do it, at so many seconds of the run."""
        raise NotImplementedError

    def _repeat(self) -> None:
        while (start := self._start()) is None:
            if self._over.wait(0.02):
                return
        now = time.monotonic() - start
        while not self._over.is_set():
            self.do(now)
            self._over.wait(max(0.0, (now // self.every + 1) * self.every - (time.monotonic() - start)))
            now = time.monotonic() - start

    def _start(self) -> float | None:
        """The moment, by this machine's clock, at which the run's was zero; None before its first task is sent."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        sent = next((event for event in map(json.loads, lines) if event["event"] == "dispatched"), None)
        return None if sent is None else time.monotonic() - sent["seconds"]


class Replay(Clocked):
    """Gives the shapers the rates of every second."""

    def __init__(self, cables: Cables, curves: Sequence[tuple[Curve, Curve]], directory: Path) -> None:
        super().__init__(cables, directory)
        self.curves = curves
        self._change(0, first=True)

    def do(self, now: float) -> None:
        """The rates of this second."""
        self._change(int(now))

    def _change(self, second: int, *, first: bool = False) -> None:
        for node, pair in enumerate(self.curves):
            down, up = (curve.carried(second, second + 1) for curve in pair)
            self.cables.vary(node, down=down, up=up, first=first)


class Counters(Clocked):
    """Notes what the kernel has counted on every link."""

    every = 0.1

    def __init__(self, cables: Cables, directory: Path) -> None:
        super().__init__(cables, directory)
        self.seen: list[tuple[float, list[Count]]] = []  # seconds of the run, and the counts by node

    def do(self, now: float) -> None:
        """The counts of this moment."""
        self.seen.append((now, [self.cables.count(node) for node in range(self.cables.nodes)]))

    def crossed(self, task: Task) -> tuple[float, float]:
        """Seconds from the dispatch of a task to its download, and from its upload to its arrival.

        On links without a limit either crosses in a moment: that at which half of its bytes are over.
        """
        seen = [(now, counts[task.client]) for now, counts in self.seen if now >= task.sent]
        base = seen[0][1]
        down = next(now for now, count in seen if count.since(base).payload_down >= task.down / 2)
        up = next(now for now, count in seen if count.since(base).payload_up >= task.up / 2)
        return down - task.sent, task.sent + task.took - up


def calm_period(predicted: Prediction, levels: Sequence[int], ticks: int) -> float:
    """Seconds between ticks, a multiple of 5, in which every simulated task of a run ends with time to spare."""
    for period in range(5, 3600, 5):
        sent = [float(tick * period) for tick in range(ticks)]
        times = [
            predicted.task(client, level, level_map=True, sent=at)[0]
            for client, level in enumerate(levels)
            for at in sent
        ]
        if max(times) <= _SLACK * period:
            return float(period)
    raise ValueError("Tasks take more than 45 minutes on this trace: give one of faster links.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="a file of rates down and up, as `fedgmr trace make` writes it")
    parser.add_argument("--ticks", type=int, default=8, help="tasks per node (default: 8)")
    parser.add_argument("--keep", type=Path, help="where run directories stay (default: nowhere)")
    parser.add_argument("--csv", type=Path, help="a folder for the tables")
    given = parser.parse_args(arguments)
    share_task()
    nodes = len(DENSITIES)
    shares = Shares(nodes, cores=NODES_PART * (os.cpu_count() or 1) / nodes)
    print(f"{header()}\n{nodes} nodes with {shares.cores:.2f} of a core each")
    with tempfile.TemporaryDirectory() as scratch, Cables(nodes) as cables, shares:
        return _measure(given, Bench(cables, shares, given.keep or Path(scratch)))


def _measure(given: argparse.Namespace, bench: Bench) -> int:
    noted: list[Counters] = []

    def count(directory: Path) -> Counters:
        noted.append(Counters(bench.cables, directory))
        return noted[0]

    free = bench.run("free", recipe_of(given.trace, seconds=119.0, period=30.0), idle=IDLE, during=count)
    overhead = tell_overhead(free)
    before, after = (statistics.median(part) for part in zip(*map(noted[0].crossed, free.tasks), strict=True))
    print(f"Of it {before:.1f} s before the download and {after:.1f} s after the upload")
    base = recipe_of(given.trace, seconds=1.0, period=30.0)
    links = base.fleet.resolved_links()
    predicted = Prediction(base, digits(base.seed).layout(), links, overhead, before=before, after=after)
    levels = [base.method.level_of(density) for density in DENSITIES]
    period = calm_period(predicted, levels, given.ticks)
    print(f"A task every {period:g} s")

    curves = [(down, up) for down, up in predicted.network.curves if down is not None and up is not None]
    recipe = recipe_of(given.trace, seconds=given.ticks * period - 1, period=period)
    run = bench.run("replay", recipe, during=lambda directory: Replay(bench.cables, curves, directory))
    bytes_ = byte_rows("replay", run, free.idle)
    times = time_rows("replay", run, predicted, steady_links(links, base.seed))
    tell(given.csv, "Replayed bytes", bytes_)
    tell(given.csv, "Replayed time per task", times)
    held = {
        f"bytes within {BYTES_LIMIT:.0%}": len(bytes_) == 2 * len(DENSITIES) and within(bytes_, BYTES_LIMIT),
        f"time within {TIME_LIMIT:.0%}": within(times, TIME_LIMIT),
    }
    print("\n" + "\n".join(f"{claim}: {'yes' if true else 'NO'}" for claim, true in held.items()))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
