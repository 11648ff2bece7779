"""The threaded executor: several tasks at once on a CPU, each with one thread of its own.

PyTorch shares the work of one operation out among threads; with small batches much of it is waiting for each other.
Here every thread trains another client instead. An update is that of the sequential executor with one thread, whatever
the number of threads here. Dropout draws from a generator of the thread's own (`dropout.py`). Read next:
`local_sgd.py`, what a thread does.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch

from fedgmr.exchange import ClientTask, Update
from fedgmr.training.work import LocalTrainer


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
