"""The graphed executor: every task in flight has a slot with captured CUDA graphs, and slots run on parallel streams.

The host never waits for the device: losses stay there until the server asks. Read next: `slot.py`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from fedgmr.exchange import ClientTask, Update
from fedgmr.seeding import borrowed_generator
from fedgmr.submodels.inputs import outputs_of
from fedgmr.training.graphed.memory import StaticWorkspace
from fedgmr.training.graphed.slot import Slot
from fedgmr.training.work import LocalWork
from fedgmr.transfer import sent

_MOST_SLOTS = 32
_MEMORY_SHARE = 0.7  # of what is free once the first slot stands


class GraphedExecutor:
    """Tasks side by side on one GPU."""

    ahead = True

    def __init__(
        self, work: LocalWork, make_workspace: Callable[[], StaticWorkspace], *, slots: int | None = None
    ) -> None:
        """`slots` limits how many tasks are trained at once; each slot has a workspace of its own."""
        self.work, self.make_workspace, self.device, self.slots = work, make_workspace, work.device, slots
        self._slots: list[Slot] = []
        self._limit = slots or _MOST_SLOTS

    @staticmethod
    def can_capture(work: LocalWork, model: nn.Module) -> bool:
        """Try to capture a forward and a backward pass: a model that waits for the device in between cannot be."""
        model, parameters = model.to(work.device).train(), [p for p in model.parameters() if p.requires_grad]
        chosen = torch.zeros((1, work.order.batch_size), dtype=torch.int64, device=work.device)

        def step() -> None:
            inputs, targets = work.prepared(chosen, None)
            torch.autograd.grad(work.task.loss(outputs_of(model, inputs[0]), targets[0]), parameters, allow_unused=True)

        stream = torch.cuda.Stream(work.device)  # type: ignore[no-untyped-call]
        with borrowed_generator(work.device), torch.cuda.stream(stream):
            step()
            stream.synchronize()
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
                    step()
            except RuntimeError:
                torch.cuda.synchronize(work.device)
                return False
        return True

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """Return one update per task, in order."""
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
        self._slots.append(Slot(self.work, self.make_workspace(), stream))

    def _train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        work = self.work
        batches = sent(torch.stack([torch.from_numpy(work.batches(task)) for task in tasks]), self.device)
        rows = [torch.from_numpy(row) for row in map(work.drawn, tasks) if row is not None]
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
            for tensor in (update.values, update.buffers, update.memory):
                if tensor is not None and len(tensor):
                    tensor.record_stream(main)
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
                slot = chosen or min(idle, key=lambda slot: len(slot.graphs))
                idle.remove(slot)
                assigned.append((number, slot))
        return assigned

    def _measure(self) -> None:
        """The number of slots that the memory allows, from the size of the first one."""
        if self.slots is None:
            free, _ = torch.cuda.mem_get_info(self.device)
            taken = max(1, torch.cuda.memory_reserved(self.device))
            self._limit = max(1, min(_MOST_SLOTS, 1 + int(_MEMORY_SHARE * free / taken)))
