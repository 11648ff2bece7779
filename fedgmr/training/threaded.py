"""The threaded executor: several tasks at once on a CPU, each with one thread of its own.

PyTorch shares the work of one operation out among threads; with small batches much of it is waiting for each other.
Here every thread trains another client instead. An update is that of the sequential executor with one thread, whatever
the number of threads here. Dropout draws from a generator of the thread's own. Read next: `local_sgd.py`, what a thread
does.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask, Update
from fedgmr.training.local_sgd import LocalTrainer


class OwnDropout(nn.Dropout):
    """Dropout that draws from a given generator, the same numbers as PyTorch's would from the same state."""

    def __init__(self, p: float, generator: torch.Generator) -> None:
        super().__init__(p)
        self.generator = generator

    def __deepcopy__(self, memo: dict[int, Any]) -> "OwnDropout":
        """A copy that draws from the same generator, as PyTorch's copies do."""
        return OwnDropout(self.p, self.generator).train(self.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs, each zero with probability p or else divided by 1 - p."""
        if not self.training or self.p == 0:
            return inputs
        if self.p == 1:
            return inputs * 0
        kept = torch.empty_like(inputs).bernoulli_(1 - self.p, generator=self.generator)
        return inputs * kept.div_(1 - self.p)


def with_own_dropout(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """The model, its dropout layers drawing from `generator`; what draws otherwise stays as it is."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout and not child.inplace:
                setattr(parent, name, OwnDropout(child.p, generator).train(child.training))
    return model


class ThreadedExecutor:
    """Tasks side by side on the cores of a CPU."""

    ahead = True

    def __init__(self, make_trainer: Callable[[], LocalTrainer], threads: int) -> None:
        """`make_trainer` makes a trainer on a bench of its own, with draws of its own."""
        self.threads = threads
        self._trainers: SimpleQueue[LocalTrainer] = SimpleQueue()
        for _ in range(threads):
            self._trainers.put(make_trainer())
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        self._checked = False

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """One update per task, in order."""
        if not tasks:
            return []
        for task in tasks:
            task.levels.order  # noqa: B018 - made here once, not in every thread
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # MKL knows one number for all threads
        try:
            first = [] if self._checked else [self._pool.submit(self._check, tasks[0]).result()]
            return first + list(self._pool.map(self._train, tasks[len(first) :]))
        finally:
            torch.set_num_threads(before)

    def _train(self, task: ClientTask) -> Update:
        trainer = self._trainers.get()
        try:
            return trainer.train(task)
        finally:
            self._trainers.put(trainer)

    def _check(self, task: ClientTask) -> Update:
        """The first task alone, to see that nothing draws from the generator all threads share."""
        before = torch.default_generator.get_state()
        update = self._train(task)
        if not torch.equal(torch.default_generator.get_state(), before):
            raise ValueError(
                "execution.executor is threaded, and the model draws random numbers other than by nn.Dropout, which "
                "threads would mix up: set execution.executor to sequential."
            )
        self._checked = True
        return update
