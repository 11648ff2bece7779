"""Streams beside the one of a step: what the step needs later is computed there, at the same time."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Sides:
    """Some streams that take turns; without a GPU there are none, and everything is done where it stands."""

    def __init__(self, device: torch.device, count: int) -> None:
        self.device, on_gpu = device, device.type == "cuda"
        streams = (torch.cuda.Stream(device) for _ in range(count if on_gpu else 0))  # type: ignore[no-untyped-call]
        self.streams = deque(streams)
        self._at_work: list[tuple[torch.cuda.Stream, Sequence[Tensor]]] = []  # and what they still read

    @contextmanager
    def beside(self, *read: Tensor) -> Iterator[None]:
        """Compute on the next stream, after what the present one has to do; `read` stays as it is until `wait`."""
        if not self.streams:
            yield
            return
        side = self.streams[0]
        self.streams.rotate()
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            yield
        self._at_work.append((side, read))

    def wait(self) -> None:
        """Let the present stream go on when the others are done."""
        for side in dict.fromkeys(side for side, _ in self._at_work):
            torch.cuda.current_stream(self.device).wait_stream(side)
        self.forget()

    def forget(self) -> None:
        """Wait for nothing of what was begun, because it broke off."""
        self._at_work.clear()
