"""A computation on memory that stays: done eagerly the first time, then captured as a CUDA graph and replayed.

For the host, replaying is one call where the computation has hundreds. What waits for the device in between (a metric
that counts on the host) cannot be captured and stays eager. Read next: `evaluator.py`, which uses it.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Sums = tuple[Tensor, tuple[tuple[int, int], ...]]  # and of every metric: how many sums, over how many


class Replayed:
    """Calls a function that returns a tensor and numbers, always from the same inputs in the same places."""

    def __init__(self, compute: Callable[[], Sums], device: torch.device) -> None:
        self._compute, self._device = compute, device
        self._capturable: bool | None = None if device.type == "cuda" else False  # None: not tried yet
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
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
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
