"""The paper's round beside a bare PyTorch loop: `python benchmarks/paper_round.py [--models NAME ...] [--csv PATH]`.

Ten clients, five SGD steps of batch 20 each (the Transformer: ten steps of Adam, batch 16), at the densities of the
High fleet (1, 0.5, 0.2, 0.1 and six of 0.05), with all clients dense, or one dense client alone. Bare is the loop at
the head of this file: load the weights, five times forward, backward, mask, step. fedgmr trains the same tasks with
each executor; every round has a new level map, so that the search for the kept weights of a sub-model is part of each
round. They take turns, and the fastest turn of each counts. On a busy machine `--threads 1 --clock cpu` counts
processor time instead of wall time.

Before that the weights are compared, in float32 with TF32 off: the distance between a client's in the two loops,
relative to how far it went, in the nearest of some rounds, after one step and after all. It must be within 0.5 %, or
within twice of what becomes of the bare loop itself when its first weights change by 1e-7 ("bare's own"). Where a unit
is at the edge of being on, rounding decides, and from there a client goes elsewhere: a ResNet-18 by half of its way.

On a CPU the limits are 1.5 x bare for Conv-2 and the High fleet, 0.95 x bare for Conv-2 all dense and for the net of
the quickstart. On a CUDA device the figures are only reported. The status is 1 if a limit is not met or the weights are
not the same, which then have no time.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch
from environment import header
from paper_fleet import DENSITIES, NETS, Net, assembled
from tables import Row, markdown, write_csv
from torch import Tensor, nn
from turns import fastest

from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments.assembly import Assembly
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.training.executor import Executor
from fedgmr.training.plain.sequential import SequentialExecutor

LIMITS = {("conv2", "high"): 1.5, ("conv2", "dense"): 0.95, ("mnist5k", "high"): 0.95, ("mnist5k", "dense"): 0.95}
TOLERANCE = 5e-3
ATTEMPTS = 5  # rounds in which a client may show that it gets the same weights
CHANGE = 1e-7  # of the first weights, by which the bare loop is compared with itself
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}

Masks = list[Tensor] | None
Batches = Sequence[tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]
Rounds = Mapping[str, "OurRound"]


def bare_client(
    module: nn.Module, weights: Sequence[Tensor], masks: Masks, batches: Batches, loss: Loss, net: Net
) -> Tensor:
    """One client as a careful user would write it by hand; returns its weights as one vector."""
    parameters = list(module.parameters())
    adam = torch.optim.Adam(parameters, net.rate, foreach=True) if net.adam else None
    with torch.no_grad():
        torch._foreach_copy_(parameters, list(weights))
        if masks is not None:
            torch._foreach_mul_(parameters, masks)
    for inputs, targets in batches:
        gradients = torch.autograd.grad(loss(module(inputs), targets), parameters)
        with torch.no_grad():
            if masks is not None:
                torch._foreach_mul_(gradients, masks)
            if adam is None:
                torch._foreach_add_(parameters, gradients, alpha=-net.rate)
        if adam is not None:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            adam.step()
    return torch.cat([parameter.detach().view(-1) for parameter in parameters])


class BareRound:
    """The loop over the clients; masks and mini-batches are ready before the clock runs."""

    def __init__(self, run: Assembly[SimulatedFleet], tasks: Sequence[ClientTask], net: Net) -> None:
        assert isinstance(run.fleet.executor, SequentialExecutor)
        self.net, self.tasks = net, tasks
        work, task = run.fleet.executor.work, run.task
        self.module = task.initial_model(run.recipe.seed).to(work.device).train()
        self.loss = task.loss
        self.buffers = [buffer.clone() for buffer in self.module.buffers()]
        self.weights = [view.clone() for view in run.server.layout.views(tasks[0].model)]
        self.clients: list[tuple[Masks, Batches]] = []
        for job in tasks:
            chosen = torch.from_numpy(work.batches(job)).to(work.device)
            inside = job.levels.mask(job.level).to(job.model.dtype)
            masks = None if job.levels.whole(job.level) else [view.clone() for view in run.server.layout.views(inside)]
            self.clients.append((masks, list(zip(*work.prepared(chosen, None), strict=True))))

    def train(self, change: float = 0.0) -> list[Tensor]:
        """The weights of every client; `change`: of the first weights, relative and random."""
        draw = torch.Generator(self.weights[0].device).manual_seed(0)
        weights = self.weights
        if change:
            weights = [w * (1 + change * torch.randn(w.shape, generator=draw, device=w.device)) for w in weights]
        trained = []
        for masks, batches in self.clients:
            for buffer, initial in zip(self.module.buffers(), self.buffers, strict=True):
                buffer.copy_(initial)
            trained.append(bare_client(self.module, weights, masks, batches, self.loss, self.net))
        return trained

    def weights_kept(self, change: float = 0.0) -> list[Tensor]:
        """Those that its sub-model keeps."""
        return [task.levels.pack(w, task.level) for w, task in zip(self.train(change), self.tasks, strict=True)]


class OurRound:
    """The same tasks with an executor; every round has a new level map, with the same levels."""

    def __init__(self, executor: Executor, tasks: Sequence[ClientTask]) -> None:
        self.executor, self.tasks, self.versions = executor, tasks, count(1)

    def train(self) -> list[Update]:
        """The update of every client."""
        version = next(self.versions)
        return self.executor.train([replace(task, map_version=version) for task in self.tasks])

    def weights_kept(self) -> list[Tensor]:
        """The weights of every client that its sub-model keeps."""
        pairs = zip(self.train(), self.tasks, strict=True)
        return [task.levels.pack(u.values, task.level) if u.natural else u.values for u, task in pairs]


def rounds_of(
    net: str, fleet: str, executors: Sequence[str], *, device: str, tf32: bool, later: int = 1, steps: int | None = None
) -> Iterator[tuple[BareRound, Rounds]]:
    """The bare round and one with each executor, all on the same tasks: those after the first merge.

    Then the same with the next mini-batches, `later` of these in all. `steps`: of each task, None: the net's.
    """
    method = "fedgmr" if fleet == "high" else "fedavg"

    def run(executor: str) -> Assembly[SimulatedFleet]:
        execution = {"executor": executor, "tf32": tf32}
        return assembled(net, method, DENSITIES[fleet], device=device, execution=execution, steps=steps)

    base = run("sequential")
    clients = range(len(DENSITIES[fleet]))
    base.server.merge(base.fleet.executor.train(base.server.tasks(clients, 0.0)), 0.0)
    base.server.settle()
    tasks = base.server.tasks(clients, 0.0)
    runs = {name: base if name == "sequential" else run(name) for name in executors}
    for number in range(later):
        jobs = [replace(task, first_batch=task.first_batch + number * NETS[net].steps) for task in tasks]
        yield (
            BareRound(base, jobs, NETS[net]),
            {name: OurRound(other.fleet.executor, jobs) for name, other in runs.items()},
        )


def distances_of(bare: Sequence[Tensor], others: Sequence[Tensor], tasks: Sequence[ClientTask]) -> list[float]:
    """The distance between a client's kept weights in two loops, relative to how far the client went."""
    starts = (task.levels.pack(task.model, task.level) for task in tasks)
    triples = zip(bare, others, starts, strict=True)
    return [float((other - ours).norm() / (ours - start).norm()) for ours, other, start in triples]


def farthest(
    net: str, fleet: str, executors: Sequence[str], device: str, *, steps: int | None = None
) -> dict[str, float]:
    """For each executor the largest distance over the clients, each in its nearest round; "bare": of the bare loop."""
    least: dict[str, list[float]] = {}
    for bare, ours in rounds_of(net, fleet, executors, device=device, tf32=False, later=ATTEMPTS, steps=steps):
        weights, trained = bare.weights_kept(), {name: other.weights_kept() for name, other in ours.items()}
        for name, theirs in {"bare": bare.weights_kept(CHANGE), **trained}.items():
            found = distances_of(weights, theirs, bare.tasks)
            least[name] = [min(pair) for pair in zip(found, least.get(name, found), strict=True)]
        distances = {name: max(found) for name, found in least.items()}
        if all(distances[name] <= limit(distances) for name in executors):
            break
    return distances


def limit(distances: Mapping[str, float]) -> float:
    """How far an executor's weights may be from the bare loop's."""
    return max(TOLERANCE, 2 * distances["bare"])


def measure(net: str, fleet: str, arguments: argparse.Namespace) -> tuple[list[Row], bool]:
    """One row per executor, and whether the limits are met."""
    device = torch.device(arguments.device)
    with tf32_everywhere(False):
        first = farthest(net, fleet, arguments.executor, arguments.device, steps=1)
        after = farthest(net, fleet, arguments.executor, arguments.device)
    same = [n for n in arguments.executor if first[n] <= limit(first) and after[n] <= limit(after)]
    with tf32_everywhere(True):
        bare, ours = next(rounds_of(net, fleet, same, device=arguments.device, tf32=True))
        actions: dict[str, Callable[[], object]] = {"bare": bare.train}
        actions |= {name: other.train for name, other in ours.items()}
        seconds = fastest(actions, turns=arguments.turns, device=device, clock=CLOCKS[arguments.clock])
    rows, good = list[Row](), len(same) == len(arguments.executor)
    for name in arguments.executor:
        ratio = seconds["bare"] / seconds.get(name, math.nan)
        least = LIMITS.get((net, fleet)) if device.type == "cpu" else None
        good &= least is None or ratio >= least
        rows.append(
            {
                "net": net,
                "densities": fleet,
                "executor": name,
                "bare ms": f"{1000 * seconds['bare']:.1f}",
                "fedgmr ms": f"{1000 * seconds[name]:.1f}" if name in seconds else "other weights",
                "times as fast": f"{ratio:.2f}" if name in seconds else "",
                "limit": "" if least is None else f"{least:.2f}",
                "after one step": f"{first[name]:.1e}",
                "after all": f"{after[name]:.1e}",
                "bare's own": f"{first['bare']:.1e}, {after['bare']:.1e}",
            }
        )
    return rows, good


@contextmanager
def tf32_everywhere(on: bool) -> Iterator[None]:
    """Use TF32 in the bare loop too."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = on
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["conv2", "mnist5k"], choices=NETS, metavar="NAME")
    parser.add_argument("--fleets", nargs="+", default=["high", "dense"], choices=DENSITIES, metavar="NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--executor", nargs="+", default=["sequential"], choices=["sequential", "graphed", "stacked"])
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    parser.add_argument("--turns", type=int, default=10, help="of each loop")
    parser.add_argument("--csv", type=Path, metavar="PATH", help="also write the table here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(header(), "\n")
    rows, good = list[Row](), True
    for net in arguments.models:
        for fleet in arguments.fleets:
            more, met = measure(net, fleet, arguments)
            print(
                *(f"{row}\n" for row in more), sep="", flush=True
            )  # of a long command that is ended something is left
            rows, good = rows + more, good and met
    print(markdown(rows))
    if arguments.csv:
        write_csv(arguments.csv, rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
