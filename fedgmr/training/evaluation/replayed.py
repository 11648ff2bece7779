"""A computation on memory that stays: done eagerly the first time, then captured as a CUDA graph and replayed.

For the host, replaying is one call where the computation has hundreds. What waits for the device in between (a metric
of a user's that counts on the host) cannot be captured and stays eager. A graph is captured on the stream that it is
replayed on: PyTorch keeps a workspace for matrix products by stream, and graphs that run at the same time must not
share one. Read next: `evaluator.py`, which uses it.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Sums = tuple[Tensor, tuple[int, ...]]  # of every metric its sums and over how many; and how many sums each has


class Replayed:
    """Calls a function that returns a tensor and numbers, always from the same inputs in the same places."""

    def __init__(self, compute: Callable[[], Sums], stream: torch.cuda.Stream | None) -> None:
        """`stream` is the current one of every call, not a device's default one; None: not on a GPU."""
        self._compute, self._stream = compute, stream
        self._capturable: bool | None = False if stream is None else None  # None: not tried yet
        self._graph: torch.cuda.CUDAGraph | None = None
        self._sums: Sums | None = None  # where the graph leaves them

    def __call__(self) -> Sums:
        """The current result of the function."""
        if self._capturable is None:
            return self._first()
        if not self._capturable:
            return self._compute()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
                self._sums = self._compute()
        assert self._sums is not None
        self._graph.replay()
        return self._sums[0].clone(), self._sums[1]

    def _first(self) -> Sums:
        try:
            with _never_waiting():
                sums = self._compute()
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            self._capturable = False
            return self._compute()
        self._capturable = True
        return sums


@contextmanager
def _never_waiting() -> Iterator[None]:
    """Within the block an operation that waits for the device raises a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode does not find every such operation
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
