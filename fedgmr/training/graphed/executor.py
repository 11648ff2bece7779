"""The graphed executor: every task in flight has a slot with captured CUDA graphs, and slots run on parallel streams.

A slot is a trainer of its own. All that differs between tasks (values, rates, sample indices, augmentation, classes)
is copied into the slot's memory; then the task's steps are one replay. The host never waits for the device: losses
stay there until the server asks. Read next: `graphed_bench.py`, the memory; `local_sgd.py`, the same as a plain loop.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Update
from fedgmr.training.graphed.bench import GraphedBench
from fedgmr.training.optimizers import SGD, Optimizer
from fedgmr.training.precision import precision
from fedgmr.training.rules import Batch, LocalRule, OrderedDropout
from fedgmr.training.submodel.workspace import Loss
from fedgmr.training.work import LocalTrainer
from fedgmr.transfer import sent

_WARM_UPS = 2  # libraries choose and allocate on first use, which a capture must not see
_MOST_SLOTS = 32
_MEMORY_SHARE = 0.7  # of what is free once the first slot stands


def can_be_graphed(rule: LocalRule, optimizer: Optimizer) -> bool:
    """Whether the steps of a rule can be captured.

    Distillation goes back and forth between two widths, and an optimiser that remembers would forget between them.
    """
    return not isinstance(rule, OrderedDropout) or (not rule.distillation and isinstance(optimizer, SGD))


class Slot:
    """Trains one task at a time on memory of its own; captures what it has not seen before."""

    def __init__(self, trainer: LocalTrainer, stream: torch.cuda.Stream | None) -> None:
        """Without a stream the steps are done at once and nothing is captured, on any device."""
        assert isinstance(trainer.bench, GraphedBench)
        self.trainer, self.bench, self.stream = trainer, trainer.bench, stream
        device, size = trainer.device, trainer.order.batch_size
        self.batches = torch.zeros((trainer.steps, size), dtype=torch.int64, device=device)
        self.drawn: Tensor | None = None
        self.loss = torch.zeros((), device=device)
        self._draws: torch.Generator | None = None  # where a model that draws while it trains does so
        self._absent: Tensor | None = None
        self._absences: dict[int, Tensor] = {}  # by client: the classes it has not
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._pool = None if stream is None else torch.cuda.graph_pool_handle()

    def knows(self, task: ClientTask) -> bool:
        """Whether a task of this level has been captured here."""
        return any(key == self.bench.key(task.level) for key, _ in self._graphs)

    def train(self, task: ClientTask, batches: Tensor, drawn: Tensor | None, loss: Tensor) -> Update:
        """The update for `task`; its loss goes to `loss`."""
        bench, trainer = self.bench, self.trainer
        bench.begin(task, self._loss(task.client))
        report = trainer.report(task)
        levels = trainer.levels(task)
        if self._draws is None and self._knows_all(levels):  # nothing here draws
            self._all_steps(task, levels, batches, drawn, loss)
        else:
            with self._own_draws():
                trainer.seed_draws(task)
                self._all_steps(task, levels, batches, drawn, loss)
        values, buffers = bench.finish()
        return trainer.update(task, values, buffers, loss, report, natural=bench.natural(task.level))

    def _knows_all(self, levels: Sequence[int]) -> bool:
        count = len(levels) if len(set(levels)) == 1 else 1
        return all((self.bench.key(level), count) in self._graphs for level in set(levels))

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
        """The steps on these mini-batches at this level, on what the bench holds."""
        count = len(batches)
        self.batches[:count].copy_(batches)
        if drawn is not None:
            if self.drawn is None:
                self.drawn = drawn.new_empty((self.batches.numel(), drawn.shape[1]))
            self.drawn[: len(drawn)].copy_(drawn)
        self.bench.run(level)
        if self.stream is None:
            self._steps(level, count)
            return
        key = (self.bench.key(level), count)
        if key not in self._graphs:
            self._graphs[key] = self._captured(task, level, count)
        self._graphs[key].replay()

    def _captured(self, task: ClientTask, level: int, count: int) -> torch.cuda.CUDAGraph:
        desk = self.bench.desk_in_use
        flat, buffers = desk.flat.clone(), desk.buffers.clone()
        generator = _generator(self.trainer.device)
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
        desk.flat.copy_(flat)
        desk.buffers.copy_(buffers)
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
        generator = _generator(self.trainer.device)
        shared = generator.graphsafe_get_state()
        generator.graphsafe_set_state(self._draws)
        try:
            yield
        finally:
            generator.graphsafe_set_state(shared)

    def _steps(self, level: int, count: int) -> None:
        """What is captured: `count` steps from where the bench stands."""
        trainer = self.trainer
        with precision(trainer.execution, trainer.device):
            self.bench.reopen()
            size = self.batches.shape[1]
            drawn = None if self.drawn is None else self.drawn[: count * size]
            inputs, targets = trainer.prepared(self.batches[:count], drawn)
            if self.bench.channels_last and inputs.dim() == 5:
                lying = inputs.flatten(0, 1).contiguous(memory_format=torch.channels_last)
                inputs = lying.view(inputs.shape)
            losses = [
                trainer.rule.step(self.bench, Batch(inputs=inputs[step], targets=targets[step], level=level))
                for step in range(count)
            ]
            total = self.bench.run(level).flat.sum()
            # A non-finite weight makes this NaN, so the last step's damage is seen too.
            self.loss.copy_(torch.stack(losses).mean() + (total - total))

    def _loss(self, client: int) -> Loss:
        """The task's loss; where absent classes are left out, which they are lies in the slot's memory."""
        trainer = self.trainer
        if not trainer.rule.masked_loss:
            return trainer.task.loss
        if self._absent is not None:
            self._mark_absent(client)

        def masked(outputs: Tensor, targets: Tensor) -> Tensor:
            if self._absent is None:
                self._absent = torch.zeros(outputs.shape[-1], dtype=torch.bool, device=outputs.device)
                self._mark_absent(client)
            return trainer.task.loss(outputs.masked_fill(self._absent, 0), targets)

        return masked

    def _mark_absent(self, client: int) -> None:
        if self._absent is None:
            return
        if client not in self._absences:
            self._absences[client] = torch.ones_like(self._absent).index_fill_(0, self.trainer.present(client), False)
        self._absent.copy_(self._absences[client])


def _generator(device: torch.device) -> torch.Generator:
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


class GraphedExecutor:
    """Tasks side by side on one GPU."""

    ahead = True

    def __init__(
        self, make_trainer: Callable[[], LocalTrainer], device: torch.device, *, slots: int | None = None
    ) -> None:
        """`make_trainer` makes a trainer on a bench of its own; `slots` limits how many there are at once."""
        self.make_trainer, self.device, self.slots = make_trainer, device, slots
        self._slots: list[Slot] = []
        self._limit = slots or _MOST_SLOTS

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """One update per task, in order."""
        if not tasks:
            return []
        first: list[Update] = []
        if not self._slots:  # its first task says how much memory a slot takes
            self._add_slot()
            first = self._train(tasks[:1])
            self._measure()
        while len(self._slots) < min(len(tasks), self._limit):
            self._add_slot()
        return first + (self._train(tasks[len(first) :]) if len(tasks) > len(first) else [])

    def _add_slot(self) -> None:
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._slots.append(Slot(self.make_trainer(), stream))

    def _train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        trainer = self._slots[0].trainer
        batches = sent(torch.stack([torch.from_numpy(trainer.batches(task)) for task in tasks]), self.device)
        rows = [torch.from_numpy(row) for row in map(trainer.drawn, tasks) if row is not None]
        drawn = sent(torch.stack(rows), self.device) if rows else None
        losses = torch.zeros(len(tasks), dtype=torch.float32, device=self.device)
        for task in tasks:
            task.levels.order  # noqa: B018 - made here once, or the streams would race to make it
        main = torch.cuda.current_stream(self.device)
        ready = main.record_event()
        updates: dict[int, Update] = {}
        for number, slot in self._assigned(tasks):
            assert slot.stream is not None
            slot.stream.wait_event(ready)
            with torch.cuda.stream(slot.stream):
                rows_drawn = None if drawn is None else drawn[number]
                update = slot.train(tasks[number], batches[number], rows_drawn, losses[number])
            update.values.record_stream(main)
            if len(update.buffers):
                update.buffers.record_stream(main)
            updates[number] = update
        for slot in self._slots:
            if slot.stream is not None:
                main.wait_stream(slot.stream)
        return [updates[number] for number in range(len(tasks))]

    def _assigned(self, tasks: Sequence[ClientTask]) -> list[tuple[int, Slot]]:
        """A slot for each task: within a round of slots one that knows the task's level before one that does not."""
        assigned = []
        for start in range(0, len(tasks), len(self._slots)):
            idle = list(self._slots)
            for number in range(start, min(start + len(self._slots), len(tasks))):
                chosen = next((slot for slot in idle if slot.knows(tasks[number])), None)
                slot = chosen or min(idle, key=lambda slot: len(slot._graphs))
                idle.remove(slot)
                assigned.append((number, slot))
        return assigned

    def _measure(self) -> None:
        """How many slots the memory allows, from what the first one took."""
        if self.slots is None:
            free, _ = torch.cuda.mem_get_info(self.device)
            taken = max(1, torch.cuda.memory_reserved(self.device))
            self._limit = max(1, min(_MOST_SLOTS, 1 + int(_MEMORY_SHARE * free / taken)))
