"""The threaded executor: several tasks at once on a CPU, each with one thread of its own.

PyTorch divides one operation among threads, which with small batches spend much of their time waiting for each other.
Here every thread trains another client instead. An update equals that of the sequential executor with one thread,
whatever the number of threads here. Dropout draws from a generator of the thread's own (`dropout.py`). Read next:
`sequential.py`, the loop of each thread.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch

from fedgmr.exchange import ClientTask, Update
from fedgmr.seeding import borrowed_generator
from fedgmr.training.plain.sequential import SequentialExecutor


class ThreadedExecutor:
    """Tasks side by side on the cores of a CPU."""

    ahead = True

    def __init__(self, make_loop: Callable[[], SequentialExecutor], threads: int) -> None:
        """`make_loop` makes a sequential executor with a workspace and a generator of its own."""
        self.threads = threads
        self._loops: SimpleQueue[SequentialExecutor] = SimpleQueue()
        for _ in range(threads):
            self._loops.put(make_loop())
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        self._checked = False

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """Return one update per task, in order."""
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
        loop = self._loops.get()
        try:
            return loop.train([task])[0]
        finally:
            self._loops.put(loop)

    def _check(self, task: ClientTask) -> Update:
        """Train the first task alone, to see that nothing draws from the generator that all threads share."""
        with borrowed_generator():  # or another run in this process may draw meanwhile
            before = torch.default_generator.get_state()
            update = self._train(task)
            drawn = not torch.equal(torch.default_generator.get_state(), before)
        if drawn:
            raise ValueError(
                "execution.executor is threaded, and the model draws random numbers other than by nn.Dropout, which "
                "threads would mix up: set execution.executor to sequential."
            )
        self._checked = True
        return update
