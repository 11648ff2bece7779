"""The stacked executor: the tasks in flight are trained side by side, every kernel working for all of them at once.

For chains of convolutions and linear layers under SGD. A task is a row of a small table (`table.py`). One copy
brings the table to the device, one captured CUDA graph does the rest. Sub-models, also those by width, are whole models
with zeros outside. Read next: `plan.py` (which models), `net.py` (the steps), `fedgmr/training/graphed/executor.py`
(the executor for other models).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.exchange import ClientTask, Update
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.training.execution import TRITON
from fedgmr.training.optimizers import SGD, Optimizer
from fedgmr.training.stacked.net import StackedNet
from fedgmr.training.stacked.plan import StackPlan
from fedgmr.training.stacked.table import TaskTable
from fedgmr.training.work import LocalWork
from fedgmr.transfer import send

_MOST = 32  # tasks side by side
_LOSSES = (one_hot_bce, functional.cross_entropy)


class StackedExecutor:
    """Tasks side by side on one GPU, in the same kernels."""

    ahead = True

    def __init__(self, work: LocalWork, plan: StackPlan, optimizer: Optimizer, *, most: int | None = None) -> None:
        """`plan` is the model's; `most` limits how many tasks are trained at once."""
        self.work, self.device, self.keeps = work, work.device, optimizer.memory == "kept"
        self.net = StackedNet(plan, work, optimizer if isinstance(optimizer, SGD) else SGD(), most=most or _MOST)
        self._table = TaskTable(self.net.most, work.steps, work.order.batch_size, self.device)
        self._drawn: Tensor | None = None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @staticmethod
    def plan_for(work: LocalWork, model: nn.Module, layout: Layout, optimizer: Optimizer) -> StackPlan | None:
        """Plan the model's stack; None where model, loss, rule or number format do not allow one."""
        targets = work.task.train.targets
        stacking, exact = work.rule.stacking, work.execution.autocast == "none" and work.held_out is None
        if not TRITON or not exact or stacking is None or work.task.loss not in _LOSSES:
            return None
        # What has fallen below a threshold stays where it is in a stack, and would have to go on with its velocity.
        if not optimizer.plain and not (isinstance(optimizer, SGD) and stacking.mode != "threshold"):
            return None
        if targets.dim() != 1 or targets.dtype != torch.int64:
            return None
        sample = work.task.example(1)
        if sample.dtype != torch.float32:
            return None
        return StackPlan.of(model, layout, sample.shape[1:], work.order.batch_size)

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """Return one update per task, in order."""
        most = self.net.most
        return [update for start in range(0, len(tasks), most) for update in self._train(tasks[start : start + most])]

    def _train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        count, work, table, plan = len(tasks), self.work, self._table, self.net.plan
        values = [torch.empty(task.levels.sizes[task.level], device=self.device) for task in tasks]
        kept = [torch.zeros_like(task.model) if self.keeps else None for task in tasks]
        absent = [work.absent(task.client, plan.classes) if self.net.absent else None for task in tasks]
        rows = zip(tasks, values, kept, absent, map(work.levels, tasks), map(work.batches, tasks), strict=True)
        table.send([table.row(*row) for row in rows])
        draws = [torch.from_numpy(drawn) for drawn in map(work.drawn, tasks) if drawn is not None]
        if draws:
            if self._drawn is None:
                self._drawn = torch.zeros((self.net.most, *draws[0].shape), device=self.device)
            send(torch.stack(draws), self._drawn[:count])
        self._replay(count)
        losses = self.net.losses[:count].clone()
        return [
            work.update(task, room, task.buffers, loss, None, natural=True, memory=memory)
            for task, room, loss, memory in zip(tasks, values, losses.unbind(), kept, strict=True)
        ]

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
        """Do all steps of `count` tasks; this is captured."""
        net, work = self.net, self.work
        columns, rates, levels, batches = self._table.parts(count)
        net.table[:count].copy_(columns)
        net.rates[:count].copy_(rates)
        net.limits[:, :count].copy_(levels.t())
        drawn = None if self._drawn is None else self._drawn[:count].flatten(0, 1)
        with work.execution.number_formats(self.device, training=True):
            inputs, targets = work.prepared(batches, drawn)
        if inputs.dim() == 5:
            inputs = inputs.permute(0, 1, 3, 4, 2)
        inputs = inputs.reshape(count, work.steps, -1)
        targets = targets.view(count, work.steps, -1)
        net.lay_out(count)
        for number in range(work.steps):
            net.step(number, inputs[:, number], targets[:, number], count)
        net.take_out(count)
