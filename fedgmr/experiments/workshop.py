"""Where a run's tasks are trained: which bench fits the method, and which executor is the fastest here.

`auto` is decided by a probe: a few tasks with each executor. Read next: `fedgmr/training/graphed/executor.py`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from fedgmr.exchange import ClientTask
from fedgmr.methods import Method
from fedgmr.recipe import Recipe
from fedgmr.server.server import Server
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.layout import Layout, lies_channels_last
from fedgmr.submodels.widths import RollingWindow
from fedgmr.tasks.partition import Indices, SampleOrder
from fedgmr.tasks.task import Task
from fedgmr.training.execution import ExecutionSettings
from fedgmr.training.executor import Executor, SequentialExecutor
from fedgmr.training.graphed import fused
from fedgmr.training.graphed.bench import GraphedBench, GraphedMasked, GraphedSliced
from fedgmr.training.graphed.executor import GraphedExecutor, can_be_graphed
from fedgmr.training.graphed.memory import Fusion
from fedgmr.training.optimizers import SGD, Optimizer
from fedgmr.training.plain.dropout import with_own_dropout
from fedgmr.training.plain.threaded import ThreadedExecutor
from fedgmr.training.sparse.break_even import ASSUMED, break_even, observe_layers
from fedgmr.training.sparse.cut import SparseBench, large_layers
from fedgmr.training.stacked.executor import StackedExecutor, stack_for
from fedgmr.training.submodel.sliced_bench import SlicedBench
from fedgmr.training.submodel.workspace import Bench, MaskedBench
from fedgmr.training.work import LocalTrainer

_PROBED = 4  # tasks side by side
_OnGPU = Literal["sequential", "graphed", "stacked"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Workshop:
    """What executors are made of."""

    recipe: Recipe
    task: Task
    layout: Layout
    plan: ChannelPlan | None
    order: SampleOrder
    held_out: Sequence[Indices] | None
    device: torch.device

    def sequential(self, *, natural: bool = False) -> SequentialExecutor:
        """One task after the other; `natural`: whole models are handed over in natural order."""
        return SequentialExecutor(self._trainer(self._bench(torch.default_generator), natural=natural))

    def threaded(self) -> ThreadedExecutor:
        """A task per thread."""
        return ThreadedExecutor(self.threaded_trainer, torch.get_num_threads())

    def threaded_trainer(self) -> LocalTrainer:
        """A trainer that shares nothing with another but the data."""
        draws = torch.Generator()
        return self._trainer(self._bench(draws), natural=True, draws=draws)

    def graphed(self) -> GraphedExecutor:
        """Tasks side by side in CUDA graphs."""
        return GraphedExecutor(self.graphed_trainer, self.device, slots=self.recipe.execution.slots)

    def graphed_trainer(self) -> LocalTrainer:
        """A trainer whose steps can be captured."""
        execution = self.recipe.execution
        return self._trainer(make_graphed_bench(*self._bench_parts(), self.recipe.training.optimizer, execution))

    def stacked(self) -> StackedExecutor | None:
        """Tasks side by side in the same kernels; None where model, method or data do not allow it."""
        recipe = self.recipe
        _, model, layout, _, device = self._bench_parts()
        if self.held_out is not None:
            return None
        training, execution = recipe.training, recipe.execution
        plan = stack_for(
            self.task, model, layout, recipe.method.local, training.optimizer, execution, training.batch_size
        )
        if plan is None:
            return None
        trainer = self._trainer(
            MaskedBench(model, layout, device)
        )  # for its mini-batches; nothing is done on the bench
        return StackedExecutor(trainer, plan, most=execution.slots)

    def chosen(self, server: Server) -> tuple[Recipe, Executor]:
        """The recipe's executor; for `auto` the faster one, written into the recipe."""
        wanted = self.recipe.execution.executor
        possible = self.device.type == "cuda" and can_be_graphed(
            self.recipe.method.local, self.recipe.training.optimizer
        )
        if wanted == "graphed" and not possible:
            raise ValueError(
                f"execution.executor is graphed, which needs a CUDA device (here: {self.device.type}), and for ordered "
                "dropout plain SGD without distillation: set execution.executor to sequential or auto."
            )
        if wanted == "threaded" and self.device.type != "cpu":
            raise ValueError(
                f"execution.executor is threaded, which is for a CPU (here: {self.device.type}): "
                "set execution.executor to graphed or auto."
            )
        stacked = self.stacked() if self.device.type == "cuda" and wanted in ("auto", "stacked") else None
        if wanted == "stacked" and stacked is None:
            raise ValueError(
                "execution.executor is stacked, which needs a CUDA device, Triton, a chain of convolutions, ReLU, 2 x "
                "2 maxima and linear layers in float32, and plain SGD: set execution.executor to graphed or auto."
            )
        if wanted == "auto":
            wanted = self._fastest(server, stacked) if possible else "sequential"
        settled = replace(self.recipe.execution, executor=wanted, sparse=self._sparse_density())
        recipe = replace(self.recipe, execution=settled)
        if wanted == "stacked":
            assert stacked is not None
            return recipe, stacked
        if wanted == "graphed":
            return recipe, self.graphed()
        here = replace(self, recipe=recipe)
        return recipe, here.threaded() if wanted == "threaded" else here.sequential(natural=True)

    def _sparse_density(self) -> float:
        """At which density large linear layers are sparse: as the recipe says; for `auto` what is faster here."""
        execution, method = self.recipe.execution, self.recipe.method
        if execution.sparse != "auto":
            return execution.sparse
        if self.device.type != "cpu" or method.by_width or min(method.levels_in_ladder) == 1:
            return 0.0
        model = self.task.initial_model(self.recipe.seed)
        layers = large_layers(model, self.layout, execution.sparse_from)
        if not layers or execution.autocast != "none":
            return 0.0
        inputs = self.task.inputs(self.task.train[0][: self.recipe.training.batch_size])
        works = observe_layers(model, layers, inputs)
        if not works:
            return 0.0
        largest = max(works, key=lambda work: work.products)
        return break_even(largest, steps=self.recipe.training.steps, dtype=self.layout.dtype)

    def _fastest(self, server: Server, stacked: StackedExecutor | None) -> _OnGPU:
        """The executor that trains a few tasks in the least time."""
        tasks = _probe_tasks(server)
        seconds: dict[_OnGPU, float] = {"sequential": _seconds(self.sequential(), tasks)}
        if stacked is not None:
            seconds["stacked"] = _seconds(stacked, tasks)
        try:
            seconds["graphed"] = _seconds(self.graphed(), tasks)
        except RuntimeError:  # a model that waits for the device in its forward pass cannot be captured
            torch.cuda.synchronize(self.device)
        return min(seconds, key=seconds.__getitem__)

    def _trainer(self, bench: Bench, *, natural: bool = False, draws: torch.Generator | None = None) -> LocalTrainer:
        return LocalTrainer(
            self.task,
            bench,
            self.order,
            steps=self.recipe.training.steps,
            seed=self.recipe.seed,
            rule=self.recipe.method.local,
            held_out=self.held_out,
            execution=self.recipe.execution,
            natural=natural,
            draws=draws,
        )

    def _bench(self, draws: torch.Generator) -> Bench:
        """A bench; on a CPU dropout draws from `draws`."""
        method, model, layout, plan, device = self._bench_parts()
        if device.type == "cpu":
            model = with_own_dropout(model, draws)
        return make_bench(method, model, layout, plan, device, self.recipe.training.optimizer, self.recipe.execution)

    def _bench_parts(self) -> tuple[Method, nn.Module, Layout, ChannelPlan | None, torch.device]:
        return self.recipe.method, self.task.initial_model(self.recipe.seed), self.layout, self.plan, self.device


def make_bench(
    method: Method,
    model: nn.Module,
    layout: Layout,
    plan: ChannelPlan | None,
    device: torch.device,
    optimizer: Optimizer,
    execution: ExecutionSettings,
) -> Bench:
    """Where a client of this method trains: small modules for sub-models by width, a masked or sparse one otherwise."""
    if not method.by_width and device.type != "cpu":
        return MaskedBench(model, layout, device, optimizer)
    if not method.by_width:
        density = ASSUMED if execution.sparse == "auto" else execution.sparse
        return SparseBench(model, layout, device, optimizer, density=density, smallest=execution.sparse_from)
    _check_rolling(method, model, layout)
    assert plan is not None
    return SlicedBench(model, layout, plan, method.levels_in_ladder, method.local, device, optimizer)


def make_graphed_bench(
    method: Method,
    model: nn.Module,
    layout: Layout,
    plan: ChannelPlan | None,
    device: torch.device,
    optimizer: Optimizer,
    execution: ExecutionSettings,
) -> GraphedBench:
    """The same with memory that stays where it is."""
    plain = isinstance(optimizer, SGD)
    fusion = _fusion(method, layout, execution) if plain else None
    lying = plain and (lies_channels_last(layout) or fusion is not None)
    if not method.by_width:
        keep_mask = not plain or method.local.kind == "thresholded_sgd"
        return GraphedMasked(model, layout, device, optimizer, channels_last=lying, keep_mask=keep_mask, fusion=fusion)
    _check_rolling(method, model, layout)
    assert plan is not None
    ladder = method.levels_in_ladder
    return GraphedSliced(
        model, layout, plan, ladder, method.local, device, optimizer, channels_last=lying, fusion=fusion
    )


def _fusion(method: Method, layout: Layout, execution: ExecutionSettings) -> Fusion | None:
    """Fused kernels compute in float32; a rule that changes gradients must be given them."""
    if not execution.fused or layout.dtype != torch.float32 or not fused.available():
        return None
    changes = method.local.kind == "thresholded_sgd" or getattr(method.local, "proximal", 0) > 0
    return Fusion(linear=not changes, tf32=execution.tf32)


def _check_rolling(method: Method, model: nn.Module, layout: Layout) -> None:
    frozen = any(not parameter.requires_grad for parameter in model.parameters())
    if isinstance(method.ranking, RollingWindow) and (frozen or (layout.buffers and method.local.norm == "running")):
        raise ValueError(
            "method.ranking is rolling_window and the model has frozen parameters or running statistics, which "
            "do not roll: use width_prefix, or local: {kind: width_sgd, norm: batch}."
        )


def _probe_tasks(server: Server) -> list[ClientTask]:
    """Tasks like the first ones, whose updates nobody uses."""
    return [
        ClientTask(
            client=client,
            version=0,
            level=server.client_levels[client],
            levels=server.levels,
            map_version=server.map_version,
            model=server.model,
            buffers=server.buffers,
            learning_rate=server.workload.learning_rate(0.0),
            first_batch=0,
        )
        for client in range(min(_PROBED, len(server.profiles)))
    ]


def _seconds(executor: Executor, tasks: Sequence[ClientTask]) -> float:
    """Time of the faster of two passes, after two that set up: what is new to a slot is captured in passing."""
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        executor.train(tasks)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[2:])
