"""The stacked executor: the tasks in flight are trained side by side, every kernel working for all of them at once.

A task is a row of a small table (`table.py`). One copy brings the table to the device, one captured CUDA graph does the
rest. Sub-models, also those by width, are whole models with zeros outside. There are two kinds of nets: chains of
convolutions and linear layers, computed in as few kernels as can be (`net.py`), and nets of ordinary layers whose
clients are folded into the batch (`fedgmr/training/folded/net.py`). Read next: these;
`fedgmr/training/graphed/executor.py` (the executor for other models).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Update
from fedgmr.training.execution import TRITON
from fedgmr.training.stacked.rows import Rows
from fedgmr.training.stacked.table import TaskTable
from fedgmr.training.work import LocalWork
from fedgmr.transfer import send

if TRITON:
    from fedgmr.training.stacked.ahead import compile_ahead

MOST = 32  # tasks side by side


class StackedExecutor:
    """Tasks side by side on one GPU, in the same kernels."""

    ahead = True

    def __init__(self, work: LocalWork, net: Rows, *, keeps: bool) -> None:
        """`keeps`: clients keep their velocity from task to task."""
        self.work, self.net, self.device, self.keeps = work, net, work.device, keeps
        self._table = TaskTable(net.most, work.steps, work.order.batch_size, self.device)
        self._drawn: Tensor | None = None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        on_gpu = self.device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if on_gpu else None
        # To capture on; graphs of others do not share it: see `fedgmr/training/evaluation/replayed.py`.
        self._stream = torch.cuda.Stream(self.device) if on_gpu else None  # type: ignore[no-untyped-call]

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """Return one update per task, in order."""
        most = self.net.most
        return [update for start in range(0, len(tasks), most) for update in self._train(tasks[start : start + most])]

    def _train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        count, work, table, net = len(tasks), self.work, self._table, self.net
        values = [torch.empty(task.levels.sizes[task.level], device=self.device) for task in tasks]
        kept = [torch.zeros_like(task.model) if self.keeps else None for task in tasks]
        absent = [work.absent(task.client, net.classes) if net.absent else None for task in tasks]
        seeds = [work.draw_seed(task) if net.draws else 0 for task in tasks]
        rows = zip(tasks, values, kept, absent, seeds, map(work.levels, tasks), map(work.batches, tasks), strict=True)
        table.send([table.row(*row) for row in rows])
        draws = [torch.from_numpy(drawn) for drawn in map(work.drawn, tasks) if drawn is not None]
        if draws:
            if self._drawn is None:
                self._drawn = torch.zeros((net.most, *draws[0].shape), device=self.device)
            send(torch.stack(draws), self._drawn[:count])
        given = torch.stack([task.buffers for task in tasks])
        if net.buffers.numel():
            net.buffers[:count] = given
        self._replay(count)
        losses = net.losses[:count].clone()
        if net.buffers.numel():
            given = torch.where(torch.isfinite(losses)[:, None], net.buffers[:count], given)
        return [
            work.update(task, room, own, loss, None, natural=True, memory=memory)
            for task, room, own, loss, memory in zip(tasks, values, given.unbind(), losses.unbind(), kept, strict=True)
        ]

    def _replay(self, count: int) -> None:
        if self._stream is None:
            self._steps(count)
            return
        if count not in self._graphs:
            before = self.net.buffers[:count].clone()
            if not self._graphs:
                compile_ahead(lambda: self._steps(count))
            self._steps(count)  # compiles what was not seen before
            self.net.buffers[:count].copy_(before)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
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
            given = net.arranged(inputs)
            given, targets = (part.view(count, work.steps, *part.shape[1:]) for part in (given, targets))
            net.lay_out(count)
            for number in range(work.steps):
                net.step(number, given[:, number], targets[:, number], count)
            net.take_out(count)
