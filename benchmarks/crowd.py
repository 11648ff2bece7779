"""Runs of large and small fleets on one synthetic task, in the middle of their life; for `scaling.py` and `memory.py`.

A run that has lasted long holds an update of every client. To reach this state by training would take many updates per
client, so `fill` puts them into the server's buffer, with the lengths, ages and level maps that they would have. From
there the run continues normally.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from stopwatch import Part, Stopwatch
from torch import nn

from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments.assembly import Assembly, assemble, resolve
from fedgmr.federation import federate
from fedgmr.fleets.network import Network
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.recipe import recipe_from
from fedgmr.seeding import generator
from fedgmr.server.buffer import Contribution
from fedgmr.server.server import Server
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import RankingInputs, Taylor
from fedgmr.tasks.models.conv2 import Conv2, SmallNet
from fedgmr.tasks.partition import SampleOrder
from fedgmr.tasks.task import Task
from fedgmr.training.evaluation.evaluator import Evaluator
from fedgmr.training.plain.sequential import SequentialExecutor

AT_WORK = 100
SAMPLES = 40  # per client
HELD_OUT = 100
STATES = ("preset", "restored")

SGD = "client's SGD"
REST = "loop and rest"
PARTS: tuple[Part, ...] = (
    (SGD, SequentialExecutor, "train"),
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
NETS: Mapping[str, Callable[[], nn.Module]] = {"small": SmallNet, "conv2": Conv2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to be measured."""

    clients: int
    net: str = "small"
    method: str = "fedgmr"
    state: str = "preset"
    dtype: str = "float32"  # of the buffer
    trace: str = "none"  # of the links

    @property
    def count(self) -> int:
        """Clients at work at a time."""
        return min(self.clients, AT_WORK)


def synthetic(net: str, clients: int) -> Task:
    """Ten classes of noisy 28 x 28 images, the same number per client in every fleet."""
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
        "method": {"name": case.method},
        "fleet": {"name": "high", "clients": case.clients, "scale": "model", "trace": case.trace},
        "participation": {"count": case.count},
        "training": {"learning_rate": 0.05, "batch_size": 20, "steps": 5},
        "execution": {"executor": "sequential"},
        "device": "cpu",
    }
    if case.method == "fedgmr":
        # The checks for restoration are made, but nobody moves: each state lasts.
        data["method"] |= {"restoration": {"patience": 10**6}, "buffer": {"dtype": case.dtype}}
    if case.state == "restored":
        if case.method == "fedgmr":  # the period stays that of the preset densities
            period = resolve(recipe_from(data), task).method.coordination.period  # type: ignore[attr-defined]
            data["method"]["coordination"] = {"period": period}
        data["fleet"]["densities"] = [1.0] * case.clients
    return assemble(resolve(recipe_from(data), task), task)


def fill(server: Server, case: Case) -> None:
    """Give every client an update in the buffer, as old as it would be after a long run."""
    if not server.rules.buffer.keep:
        return
    arrivals = case.count if case.state == "preset" else case.count / 10  # per tick
    ages = generator(0, "ages").exponential(case.clients / arrivals, case.clients).astype(int)
    whole = server.levels.whole(min(server.client_levels))
    maps = {0: server.levels} if whole else _older_maps(server, int(ages.max()) // server.rules.interval)
    for client, age in enumerate(ages.tolist()):
        number = 0 if whole else age // server.rules.interval
        task = ClientTask(
            client=client,
            version=-age,
            level=server.client_levels[client],
            levels=maps[number],
            map_version=-number,
            model=server.model,
            buffers=server.buffers,
            learning_rate=0.0,
            first_batch=0,
        )
        values = server.model.clone() if whole else task.levels.pack(server.model, task.level)
        update = Update(client=client, version=-age, values=values, buffers=server.buffers, loss=0.0, natural=whole)
        server.buffer[client] = server.rules.buffer.stored(Contribution.of(update, task, natural=whole))


def _older_maps(server: Server, count: int) -> dict[int, LevelMap]:
    """The current map and others like it, by the number of refreshes since."""
    maps, draw = {0: server.levels}, torch.Generator().manual_seed(0)
    for number in range(1, count + 1):
        previous = server.model + 1e-3 * torch.randn(len(server.model), generator=draw)
        now = RankingInputs(layout=server.layout, ladder=server.ladder, model=server.model, previous=previous)
        maps[number] = Taylor().rank(now)
    return maps


@dataclass
class Run:
    """A run that advances in turns, with its processor time by part and turn."""

    assembly: Assembly
    turns: list[Stopwatch] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, case: Case) -> "Run":
        """The run of a case with its buffer filled."""
        run = cls(objects(case, synthetic(case.net, case.clients)))
        fill(run.assembly.server, case)
        return run

    @property
    def done(self) -> int:
        """Updates merged so far."""
        return sum(self.assembly.server.updates)

    def turn(self, updates: int, watch: Callable[[], None] = lambda: None) -> None:
        """Run until at least this many more updates are merged; `watch` is called after every tick."""
        begun = self.done
        stopwatch = Stopwatch(clock=time.process_time)

        server, fleet = self.assembly.server, self.assembly.fleet
        with stopwatch.on(PARTS), stopwatch.part(REST):
            federate(
                server,
                fleet,
                seconds=math.inf,
                after_tick=watch,
                stop=lambda: self.done - begun >= updates,
                resumed=begun > 0,
            )
        self.turns.append(stopwatch)
        self.updates.append(self.done - begun)

    def milliseconds(self, *, without: Sequence[str] = ()) -> list[float]:
        """Milliseconds per update, turn by turn, without some parts."""
        return [
            1e3 * sum(s for part, s in watch.seconds.items() if part not in without) / updates
            for watch, updates in zip(self.turns, self.updates, strict=True)
        ]
