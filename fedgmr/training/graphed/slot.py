"""A slot: trains one task at a time on memory of its own, by graphs captured there.

Everything that differs between tasks (values, rates, sample indices, augmentation, classes) is copied into the slot's
memory; then the task's steps are one replay. Read next: `memory.py`, the workspace; `executor.py`, many slots side by
side; `fedgmr/training/plain/sequential.py`, the same as a plain loop.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Update
from fedgmr.training.graphed.memory import StaticWorkspace
from fedgmr.training.work import LocalWork

_WARM_UPS = 2  # libraries choose and allocate on first use, which a capture must not see


class Slot:
    """Trains one task at a time on memory of its own; captures the steps that are new to it."""

    def __init__(self, work: LocalWork, workspace: StaticWorkspace, stream: torch.cuda.Stream | None) -> None:
        """Without a stream the steps are done at once and nothing is captured, on any device."""
        self.work, self.workspace, self.stream = work, workspace, stream
        device, size = work.device, work.order.batch_size
        self.batches = torch.zeros((work.steps, size), dtype=torch.int64, device=device)
        self.drawn: Tensor | None = None
        self.loss = torch.zeros((), device=device)
        self._draws: torch.Generator | None = None  # for a model that draws while it trains
        self._absent: Tensor | None = None  # bool: the classes that the client does not have
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._pool = None if stream is None else torch.cuda.graph_pool_handle()

    def knows(self, task: ClientTask) -> bool:
        """Whether a task of this level has been captured here."""
        return any(key == self.workspace.cutter.key(task.level) for key, _ in self.graphs)

    def train(self, task: ClientTask, batches: Tensor, drawn: Tensor | None, loss: Tensor) -> Update:
        """The update for `task`; its loss goes to `loss`."""
        work, workspace = self.work, self.workspace
        self._mark_absent(task.client)
        workspace.begin(task, work.loss_of(task.client, self._absent_of))
        report = None if work.held_out is None else work.report(task, workspace.open().module)
        levels = work.levels(task)
        if self._draws is None and self._knows_all(levels):  # nothing here draws
            self._all_steps(task, levels, batches, drawn, loss)
        else:
            with self._own_draws():
                work.seed_draws(task)
                self._all_steps(task, levels, batches, drawn, loss)
        values, buffers, memory = *workspace.finish(natural=True), workspace.memory()
        update = work.update(task, values, buffers, loss, report, natural=True, memory=memory)
        return update.kept_where(torch.isfinite(loss), task)

    def _knows_all(self, levels: Sequence[int]) -> bool:
        count = len(levels) if len(set(levels)) == 1 else 1
        return all((self.workspace.cutter.key(level), count) in self.graphs for level in set(levels))

    def _all_steps(
        self, task: ClientTask, levels: Sequence[int], batches: Tensor, drawn: Tensor | None, loss: Tensor
    ) -> None:
        if len(set(levels)) == 1:
            self._replay(task, levels[0], batches, drawn)
            loss.copy_(self.loss)
        else:
            size = batches.shape[1]
            loss.zero_()
            for step, level in enumerate(levels):
                rows = None if drawn is None else drawn[step * size : (step + 1) * size]
                self._replay(task, level, batches[step : step + 1], rows)
                loss.add_(self.loss, alpha=1 / len(levels))

    def _replay(self, task: ClientTask, level: int, batches: Tensor, drawn: Tensor | None) -> None:
        """The steps on these mini-batches at this level, on the sub-model in the workspace."""
        count = len(batches)
        self.batches[:count].copy_(batches)
        if drawn is not None:
            if self.drawn is None:
                self.drawn = drawn.new_empty((self.batches.numel(), drawn.shape[1]))
            self.drawn[: len(drawn)].copy_(drawn)
        self.workspace.open(level)
        if self.stream is None:
            self._steps(level, count)
            return
        key = (self.workspace.cutter.key(level), count)
        if key not in self.graphs:
            self.graphs[key] = self._captured(task, level, count)
        self.graphs[key].replay()

    def _captured(self, task: ClientTask, level: int, count: int) -> torch.cuda.CUDAGraph:
        module = self.workspace.opened.cut.module
        moving = [module.flat, module.buffers]
        if self.workspace.opened.velocity is not None:
            moving.append(self.workspace.opened.velocity)
        before_steps = [tensor.clone() for tensor in moving]
        generator = _generator(self.work.device)
        before = generator.get_offset()
        for _ in range(_WARM_UPS):
            self._steps(level, count)
        if self._draws is None and generator.get_offset() != before:
            self._draws = generator.clone_state()
        graph = torch.cuda.CUDAGraph()
        assert self.stream is not None
        self.stream.synchronize()
        with (
            self._own_draws(),
            torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"),
        ):
            self._steps(level, count)
        for tensor, start in zip(moving, before_steps, strict=True):
            tensor.copy_(start)
        self._mark_absent(task.client)
        if self._draws is not None:
            with self._own_draws():
                generator.set_offset(before)
        return graph

    @contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Draw from a state of the slot's own: graphs that replay side by side must not share one."""
        if self._draws is None:
            yield
            return
        generator = _generator(self.work.device)
        shared = generator.graphsafe_get_state()
        generator.graphsafe_set_state(self._draws)
        try:
            yield
        finally:
            generator.graphsafe_set_state(shared)

    def _steps(self, level: int, count: int) -> None:
        """Do the `count` steps that are captured, from where the workspace stands."""
        work, workspace = self.work, self.workspace
        with work.execution.number_formats(work.device, training=True):
            workspace.reopen()
            size = self.batches.shape[1]
            drawn = None if self.drawn is None else self.drawn[: count * size]
            inputs, targets = work.prepared(self.batches[:count], drawn)
            if workspace.opened.cut.module.order is not None and inputs.dim() == 5:
                lying = inputs.flatten(0, 1).contiguous(memory_format=torch.channels_last)
                inputs = lying.view(inputs.shape)
            losses = [work.rule.step(workspace, inputs[step], targets[step], level) for step in range(count)]
            self.loss.copy_(work.mean_loss(losses, workspace.open(level).flat))

    def _absent_of(self, client: int, classes: int) -> Tensor:
        """The classes that the client does not have, in the slot's memory."""
        if self._absent is None:
            self._absent = self.work.absent(client, classes).clone()
        return self._absent

    def _mark_absent(self, client: int) -> None:
        if self._absent is not None:
            self._absent.copy_(self.work.absent(client, len(self._absent)))


def _generator(device: torch.device) -> torch.Generator:
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
