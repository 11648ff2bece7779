"""The stacked executor: the tasks in flight are trained side by side, every kernel working for all of them at once.

For chains of convolutions and linear layers under plain SGD. A task is a row of a small table: where its model and
level map lie, its level, rate and mini-batches, where its values go. One copy brings the table to the device, one
captured CUDA graph does the rest. Sub-models, also those by width, are whole models with zeros outside.
Read next: `stack_plan.py` (which models), `stacked_net.py` (the steps), `graphed.py` (the executor for other models).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.exchange import ClientTask, Update
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.tasks.task import Task
from fedgmr.training.execution import ExecutionSettings
from fedgmr.training.optimizers import SGD, Optimizer
from fedgmr.training.precision import precision
from fedgmr.training.rules import LocalRule, OrderedDropout, PlainSGD, ThresholdedSGD, WidthSGD
from fedgmr.training.stacked.net import COLUMNS, StackedNet, Taking, available
from fedgmr.training.stacked.plan import StackPlan, plan_stack
from fedgmr.training.submodel.workspace import Loss
from fedgmr.training.work import LocalTrainer
from fedgmr.transfer import send

_MOST = 32  # tasks side by side
_LOSSES: tuple[Loss, ...] = (one_hot_bce, functional.cross_entropy)


def taking_of(rule: LocalRule) -> Taking | None:
    """Which weights take part in a rule's steps; None where the rule does more than that."""
    if isinstance(rule, PlainSGD):
        return None if rule.proximal else Taking()
    if isinstance(rule, WidthSGD):
        return None if rule.scaler else Taking(narrow=True)
    if isinstance(rule, OrderedDropout):
        return None if rule.distillation else Taking(mode="level", narrow=True)
    if isinstance(rule, ThresholdedSGD):
        return Taking(mode="threshold", derivative=rule.derivative) if rule.scope == "global" else None
    return None


def stack_for(
    task: Task,
    model: nn.Module,
    layout: Layout,
    rule: LocalRule,
    optimizer: Optimizer,
    execution: ExecutionSettings,
    batch: int,
) -> StackPlan | None:
    """How a task is stacked; None where model, loss, rule or number format do not allow it."""
    plain = isinstance(optimizer, SGD) and execution.autocast == "none" and execution.fused
    if not available() or not plain or taking_of(rule) is None or task.loss not in _LOSSES:
        return None
    inputs, targets = task.train
    if targets.dim() != 1 or targets.dtype != torch.int64:
        return None
    sample = task.inputs(inputs[:1])
    return plan_stack(model, layout, sample.shape[1:], batch) if sample.dtype == torch.float32 else None


class StackedExecutor:
    """Tasks side by side on one GPU, in the same kernels."""

    ahead = True

    def __init__(self, trainer: LocalTrainer, plan: StackPlan, *, most: int | None = None) -> None:
        """The trainer says what a task's mini-batches are; `most` limits how many tasks there are at once."""
        taking = taking_of(trainer.rule)
        assert taking is not None
        self.trainer, self.device = trainer, trainer.device
        self.net = StackedNet(
            plan,
            self.device,
            most=most or _MOST,
            batch=trainer.order.batch_size,
            steps=trainer.steps,
            taking=taking,
            binary=trainer.task.loss is one_hot_bce,
            absent=trainer.rule.masked_loss,
            tf32=trainer.execution.tf32,
        )
        steps, batch = trainer.steps, trainer.order.batch_size
        # Of each task: its row of the table, the level of each step, the samples of each step.
        self._letter = torch.zeros(
            (self.net.most, COLUMNS + steps + steps * batch), dtype=torch.int64, device=self.device
        )
        self._drawn: Tensor | None = None
        self._absences: dict[int, Tensor] = {}  # by client: 1 for the classes it has not
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """One update per task, in order."""
        most = self.net.most
        return [update for start in range(0, len(tasks), most) for update in self._train(tasks[start : start + most])]

    def _train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        count, trainer = len(tasks), self.trainer
        values = [torch.empty(task.levels.sizes[task.level], device=self.device) for task in tasks]
        letter = np.empty((count, self._letter.shape[1]), np.int64)
        for row, task, room in zip(letter, tasks, values, strict=True):
            self._write(row, task, room)
        send(torch.from_numpy(letter), self._letter[:count])
        draws = [torch.from_numpy(drawn) for drawn in map(trainer.drawn, tasks) if drawn is not None]
        if draws:
            if self._drawn is None:
                self._drawn = torch.zeros((self.net.most, *draws[0].shape), device=self.device)
            send(torch.stack(draws), self._drawn[:count])
        self._replay(count)
        losses = self.net.losses[:count].clone()
        return [
            trainer.update(task, room, task.buffers, loss, None, natural=task.levels.whole(task.level))
            for task, room, loss in zip(tasks, values, losses.unbind(), strict=True)
        ]

    def _write(self, row: NDArray[np.int64], task: ClientTask, values: Tensor) -> None:
        """A task as numbers; what is named by its address lives as long as the task and its update."""
        trainer, levels = self.trainer, task.levels
        order = None if levels.whole(task.level) else levels.order
        row[: COLUMNS - 1] = (
            task.model.data_ptr(),
            levels.levels.data_ptr(),
            task.level,
            0 if order is None else order.data_ptr(),
            len(values),
            values.data_ptr(),
            self._absent(task.client).data_ptr() if self.net.absent else 0,
        )
        row.view(np.float64)[COLUMNS - 1] = task.learning_rate
        row[COLUMNS : COLUMNS + trainer.steps] = trainer.levels(task)
        row[COLUMNS + trainer.steps :] = trainer.batches(task).reshape(-1)

    def _replay(self, count: int) -> None:
        if self.device.type != "cuda":
            self._steps(count)
            return
        if count not in self._graphs:
            self._steps(count)  # compiles what was not seen before
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._steps(count)
            self._graphs[count] = graph
        self._graphs[count].replay()

    def _steps(self, count: int) -> None:
        """What is captured: all steps of `count` tasks."""
        net, trainer = self.net, self.trainer
        letter = self._letter[:count]
        net.table[:count].copy_(letter[:, :COLUMNS])
        net.rates[:count].copy_(letter.view(torch.float64)[:, COLUMNS - 1])
        net.limits[:, :count].copy_(letter[:, COLUMNS : COLUMNS + trainer.steps].t())
        batches = letter[:, COLUMNS + trainer.steps :].reshape(count * trainer.steps, -1)
        drawn = None if self._drawn is None else self._drawn[:count].flatten(0, 1)
        with precision(trainer.execution, self.device):
            inputs, targets = trainer.prepared(batches, drawn)
        if inputs.dim() == 5:
            inputs = inputs.permute(0, 1, 3, 4, 2)
        inputs = inputs.reshape(count, trainer.steps, -1)
        targets = targets.view(count, trainer.steps, -1)
        net.lay_out(count)
        for number in range(trainer.steps):
            net.step(number, inputs[:, number], targets[:, number], count)
        net.take_out(count)

    def _absent(self, client: int) -> Tensor:
        if client not in self._absences:
            absent = torch.ones(self.net.plan.classes, dtype=torch.uint8, device=self.device)
            self._absences[client] = absent.index_fill_(0, self.trainer.present(client), 0)
        return self._absences[client]
