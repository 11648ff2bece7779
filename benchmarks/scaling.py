"""What a client update costs in a large fleet and in a small one: `python benchmarks/scaling.py [--csv PATH]`.

Time: 1,000 clients with 100 at work against 10 clients, all at work, on the same net and as many samples each. Both
runs live in one process and take turns, a few dozen updates at a time, so that a busy machine slows both. What is
compared is the wall time per update of the whole run and of all but the client's SGD; the ratio must be at most 1.3.

Memory: each fleet in a process of its own; how far the resident set grows at its peak against
1.2 x (4 bytes x N x model versions in flight + the buffered sub-models + one slot) + 200 MB. A slot is what one
trainer and one evaluator work on: values, gradients and update of the one, values of the other.

Ends with status 1 if a limit is not met.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
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
SMALL_FLEET = 10
SLICE = 100  # updates per turn
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
    method: str = "fedgmr"
    coordination: str = "semi_asynchronous"
    brisk: bool = False
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
    rules: dict[str, Any] = {"coordination": case.coordination}
    if case.brisk:
        rules |= {"interval": 5, "restoration": {"patience": 1}}
    recipe = recipe_from(
        {
            "seconds": 1e9,
            "task": task.name,
            "method": {"name": case.method, **rules},
            "fleet": {"name": "high", "clients": case.clients, "scale": "model"},
            "participation": {"count": case.count},
            "training": {"learning_rate": 0.05, "batch_size": 20, "steps": 5},
            "device": "cpu",
        }
    )
    return assemble(resolve(recipe, task), task)


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
        """Go on until at least so many more updates are merged."""
        begun = self.done
        stopwatch = Stopwatch()

        def after_tick() -> None:
            watch()
            if self.done - begun >= updates:
                raise _TurnError

        server, fleet = self.assembly.server, self.assembly.fleet
        with stopwatch.on(PARTS), stopwatch.part(REST):
            try:
                federate(server, fleet, seconds=math.inf, after_tick=after_tick, resumed=begun > 0)
            except _TurnError:
                pass
        self.turns.append(stopwatch)
        self.updates.append(self.done - begun)

    def per_update(self, *, turns: slice = slice(None), without: Sequence[str] = ()) -> float:
        """Seconds per update over these turns, leaving out some parts."""
        watches = self.turns[turns]
        seconds = sum(s for w in watches for part, s in w.seconds.items() if part not in without)
        return seconds / sum(self.updates[turns])


def time_pair(small: Case, large: Case) -> tuple[Run, Run]:
    """Both runs in turns, to the number of updates of `large`."""
    runs = [Run(objects(case, synthetic(case.net, case.clients))) for case in (small, large)]
    while runs[1].done < large.updates:
        for run in runs:
            run.turn(SLICE)
    return runs[0], runs[1]
