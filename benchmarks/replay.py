"""A trace on real links: SuperNodes behind shapers that get a new rate every second, against the simulated fleet.

The claims are those of `links.py`: bytes as the kernel counts them, within 3 %, and the time of a task as the simulated
fleet predicts it for the same trace, from the moment at which the task was sent, within 20 %. The trace begins with the
run, for every node with another part of it, at the rates that it has: those of a drive made by `fedgmr trace make` are
5.2 Mbit/s down and 0.8 up. A silent second carries one frame, because a shaper cannot be shut. This needs what
`links.py` needs.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from digits import digits
from environment import header
from link_records import Prediction, byte_rows, time_rows, within
from links import BYTES_LIMIT, IDLE, NODES_PART, TIME_LIMIT, Bench, share_task, tell, tell_overhead
from netns import Cables, Shares

from fedgmr.fleets.curves import Curve
from fedgmr.fleets.network import steady_links
from fedgmr.recipe import Recipe, recipe_from

DENSITIES = (0.1, 0.05, 0.05)  # one node each
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


class Replay:
    """Gives the shapers the rates of every second, from the start of a run's clock to the end of the block."""

    def __init__(self, cables: Cables, curves: Sequence[tuple[Curve, Curve]], directory: Path) -> None:
        self.cables, self.curves, self.journal = cables, curves, directory / "updates.jsonl"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._replay)

    def __enter__(self) -> "Replay":
        self._change(0, first=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _replay(self) -> None:
        while (start := self._start()) is None:
            if self._over.wait(0.02):
                return
        second = 0
        while not self._over.wait(max(0.0, start + second + 1 - time.monotonic())):
            second = int(time.monotonic() - start)
            self._change(second)

    def _start(self) -> float | None:
        """The moment, by this machine's clock, at which the run's was zero; None before its first task is sent."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        sent = next((event for event in map(json.loads, lines) if event["event"] == "dispatched"), None)
        return None if sent is None else time.monotonic() - sent["seconds"]

    def _change(self, second: int, *, first: bool = False) -> None:
        for node, pair in enumerate(self.curves):
            down, up = (curve.carried(second, second + 1) for curve in pair)
            self.cables.vary(node, down=down, up=up, first=first)


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
    free = bench.run("free", recipe_of(given.trace, seconds=119.0, period=30.0), idle=IDLE)
    base = recipe_of(given.trace, seconds=1.0, period=30.0)
    links = base.fleet.resolved_links()
    predicted = Prediction(base, digits(base.seed).layout(), links, tell_overhead(free))
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
