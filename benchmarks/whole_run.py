"""A run alone on a device, and the share that is not training: `python benchmarks/whole_run.py RECIPE [KEY=VALUE ...]`.

The run is that of `fedgmr run`, with records and checkpoints, in a directory that is thrown away. Training is timed by
events on the GPU around each group of tasks, on a CPU by the clock. The first group of each size compiles and captures;
what it takes above the median group of its size counts as set-up and not as training. Below the line stands where the
host's time goes: every second belongs to the innermost part at work. The last line has the accuracies' digest, which is
the same for equal runs. There is no limit.
"""

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from environment import header, one_thread
from overhead import PARTS, REST
from stopwatch import Stopwatch
from tables import Row, markdown

from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments import run
from fedgmr.experiments.assembly import make_task, resolve_device
from fedgmr.experiments.result import Result
from fedgmr.fleets.network import Network
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.recipe import load_recipe
from fedgmr.training.executor import Executor

Moment = Callable[[], float]  # read when the run is over
TRAINING = "tasks handed over"


@dataclass
class TimedExecutor:
    """An executor whose groups of tasks are timed on its device."""

    inner: Executor
    on_gpu: bool
    groups: list[tuple[int, Moment]] = field(default_factory=list)  # tasks, and the seconds they took

    @property
    def ahead(self) -> bool:
        """As the executor has it."""
        return self.inner.ahead

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """Train, and note when it began and ended."""
        if not self.on_gpu:
            began = time.perf_counter()
            updates = self.inner.train(tasks)
            took = time.perf_counter() - began
            self.groups.append((len(tasks), lambda: took))
            return updates
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        updates = self.inner.train(tasks)
        last.record()
        self.groups.append((len(tasks), lambda: first.elapsed_time(last) / 1000))
        return updates

    def seconds(self) -> tuple[float, float]:
        """Seconds of training, and those that the first group of each size took beyond it."""
        sizes: dict[int, list[float]] = {}
        for size, took in self.groups:
            sizes.setdefault(size, []).append(took())
        set_up = sum(max(0.0, each[0] - statistics.median(each)) for each in sizes.values())
        return sum(map(sum, sizes.values())) - set_up, set_up


def measure(words: Sequence[str]) -> tuple[Result, TimedExecutor, Stopwatch, float]:
    """Do the run; its result, its timed executor, where the host was, and the seconds from data to result."""
    recipe = load_recipe(words[0], words[1:])
    timed: list[TimedExecutor] = []
    made = SimulatedFleet.__init__

    def with_clock(fleet: SimulatedFleet, network: Network, executor: Executor, *given: Any, **named: Any) -> None:
        timed.append(TimedExecutor(executor, resolve_device(recipe.device).startswith("cuda")))
        made(fleet, network, timed[0], *given, **named)

    watch, parts = Stopwatch(), [*PARTS, (TRAINING, TimedExecutor, "train")]
    with tempfile.TemporaryDirectory() as folder, patch.object(SimulatedFleet, "__init__", with_clock):
        task = make_task(recipe)
        began = time.perf_counter()
        with watch.on(parts), watch.part(REST):
            result = run.run_recipe(recipe, Path(folder) / "run", task=task)
        return result, timed[0], watch, time.perf_counter() - began


def shares(words: Sequence[str]) -> tuple[Row, list[Row], str]:
    """The run in one row, where the host was, and the digest of its accuracies."""
    result, executor, watch, wall = measure(words)
    training, set_up = executor.seconds()
    updates = sum(count for count, _ in executor.groups)
    row: Row = {
        "run": " ".join(words),
        "updates": updates,
        "evaluations": len(result.history.accuracy),
        "wall, s": f"{wall:.1f}",
        "training, s": f"{training:.1f}",
        "set-up, s": f"{set_up:.1f}",
        "not training": f"{100 * (1 - training / wall):.1f} %",
        "ms per update": f"{1000 * wall / updates:.2f}",
        "final": f"{100 * result.history.accuracy[-1]:.2f}",
    }
    parts: list[Row] = [
        {
            "host": name,
            "calls": watch.calls[name],
            "seconds": f"{seconds:.2f}",
            "share": f"{100 * seconds / wall:.1f} %",
        }
        for name, seconds in sorted(watch.seconds.items(), key=lambda item: -item[1])
    ]
    return row, parts, hashlib.sha256(result.history.accuracy.tobytes()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+", metavar="RECIPE [key=value ...]", help="as for `fedgmr run`")
    given = parser.parse_args()
    one_thread()
    print(header(), "\n")
    row, parts, digest = shares(given.words)
    print(markdown([row]), "\n")
    print(markdown(parts), "\n")
    print(f"accuracies {digest}")


if __name__ == "__main__":
    main()
