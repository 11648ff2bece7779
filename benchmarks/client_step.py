"""A client's SGD step at low density against the dense step: `python benchmarks/client_step.py [--csv PATH]`.

The net is Conv-2 with batch 20 on a CPU. FedGMR's unstructured sub-models with sparse linear layers and HeteroFL's
narrower networks are compared with the step of the whole net without any mask. FedGMR's sub-models are those of the
first level map (every tensor at the same density) and of the map after a merge (Taylor importance: the convolutions
keep more). The search for the kept weights of a sub-model (`build`) counts, spread over the five steps of one task.
`task` is a whole task, with loading, building and handing back, compared with a whole dense task.

At density 0.05 the step may take at most 0.45 (FedGMR) and 0.2 (HeteroFL) of the dense one. The status is 1 if a limit
is not met. All cases take turns, and the fastest turn of each counts.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import torch
from environment import header
from paper_fleet import STEPS, assembled
from tables import Row, markdown, write_csv
from turns import fastest

from fedgmr.exchange import ClientTask
from fedgmr.experiments.assembly import Assembly, make_training
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.training.choice import LocalTraining
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.sparse.cut import SparseCutter
from fedgmr.training.submodel.cut import Cut, MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.workspace import Workspace

DENSITIES = (1.0, 0.5, 0.2, 0.1, 0.05)
LIMITS = {("FedGMR", 0.05): 0.45, ("HeteroFL", 0.05): 0.2}
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A client at one density, with a workspace of its own."""

    method: str
    levels: str
    task: ClientTask
    executor: SequentialExecutor
    versions: "count[int]" = field(default_factory=lambda: count(1000))

    @property
    def density(self) -> float:
        """The density of the client's sub-model."""
        return self.task.levels.ladder[self.task.level]

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.method} {self.levels} {self.density}"

    def step(self) -> Callable[[], object]:
        """One step on a sub-model that lies ready."""
        work, workspace, task = self.executor.work, self.executor.workspace, self.task
        workspace.begin(task, work.loss_of(task.client))
        workspace.open()
        inputs, targets = work.prepared(torch.from_numpy(work.batches(task)), None)
        return lambda: work.rule.step(workspace, inputs[0], targets[0], task.level)

    def build(self) -> Cut | None:
        """Where the weights of the sub-model lie, found anew; None where nothing is sparse."""
        cutter = self.executor.workspace.cutter
        if not isinstance(cutter, SparseCutter):
            return None
        cut = cutter.cut(self.task.levels, self.task.level)
        return None if cut.coordinates is None else cut

    def whole(self) -> object:
        """A task from beginning to end; for FedGMR with a level map not seen before."""
        fresh = isinstance(self.executor.workspace.cutter, SparseCutter)
        return self.executor.train([replace(self.task, map_version=next(self.versions)) if fresh else self.task])


def training_of(run: Assembly[SimulatedFleet]) -> LocalTraining:
    """The run's training, for executors with workspaces of their own."""
    assert isinstance(run.fleet.executor, SequentialExecutor)
    return make_training(
        run.recipe, run.task, run.server.layout, run.server.plan, run.fleet.executor.work.order.parts, None
    )


def cases(sparse: float | None) -> tuple[float, list[Case]]:
    """Every case, the dense one first; and the density at which layers are sparse, measured if it is not given."""
    sequential = {"executor": "sequential"}
    execution = sequential if sparse is None else {**sequential, "sparse": sparse}
    run = assembled("conv2", "fedgmr", DENSITIES, device="cpu", execution=execution)
    training = training_of(run)
    found, clients = run.recipe.execution.sparse, range(len(DENSITIES))
    assert isinstance(found, float)
    tasks = {"first map": run.server.tasks(clients, 0.0)}
    plain = Workspace(MaskedCutter(FlatModule(run.task.initial_model(0), run.server.layout, CPU)))
    dense = SequentialExecutor(training.work, plain)
    every = [Case(method="dense", levels="", task=tasks["first map"][0], executor=dense)]
    run.server.merge(run.fleet.executor.train(tasks["first map"]), 0.0)
    tasks["Taylor map"] = run.server.tasks(clients, 0.0)
    for name, jobs in tasks.items():
        every += [Case(method="FedGMR", levels=name, task=job, executor=training.sequential()) for job in jobs]
    narrow = assembled("conv2", "heterofl", DENSITIES, device="cpu", execution=sequential)
    training = training_of(narrow)
    jobs = narrow.server.tasks(clients, 0.0)
    every += [Case(method="HeteroFL", levels="", task=job, executor=training.sequential()) for job in jobs]
    return found, every


def rows_of(every: Sequence[Case], seconds: Mapping[str, float]) -> tuple[list[Row], bool]:
    """The table, and whether the limits are met."""
    dense, dense_task = seconds[f"step {every[0].name}"], seconds[f"task {every[0].name}"]
    rows, good = [], True
    for case in every:
        step, build = seconds[f"step {case.name}"], seconds.get(f"build {case.name}", 0.0)
        ratio, limit = (step + build / STEPS) / dense, LIMITS.get((case.method, case.density))
        good &= limit is None or ratio <= limit
        rows.append(
            {
                "method": case.method,
                "sub-model of": case.levels,
                "density": case.density,
                "step ms": f"{1000 * step:.2f}",
                "build ms": f"{1000 * build:.2f}",
                "step + build / 5, of dense": f"{ratio:.3f}",
                "limit": "" if limit is None else f"{limit:.2f}",
                "task, of dense": f"{seconds[f'task {case.name}'] / dense_task:.3f}",
            }
        )
    return rows, good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparse", type=float, help="density at which layers are sparse, instead of a measurement")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", default="wall", choices=CLOCKS, help="cpu: processor time, with one thread")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--csv", type=Path, metavar="PATH", help="also write the table here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(header(), "\n")
    sparse, every = cases(arguments.sparse)
    clock = CLOCKS[arguments.clock]
    tasks = {f"task {case.name}": case.whole for case in every}
    seconds = fastest(tasks, turns=max(1, arguments.turns // STEPS), device=CPU, clock=clock)
    builds = {f"build {case.name}": case.build for case in every if case.build() is not None}
    seconds |= fastest(builds, turns=arguments.turns, device=CPU, clock=clock)
    steps = {f"step {case.name}": case.step() for case in every}
    seconds |= fastest(steps, turns=arguments.turns, device=CPU, repeat=2, clock=clock)
    rows, good = rows_of(every, seconds)
    print(markdown(rows))
    print(f"\nLayers that keep at most {sparse} of their weights are sparse.")
    if arguments.csv:
        write_csv(arguments.csv, rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
