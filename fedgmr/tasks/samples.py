"""Samples: inputs and targets, in memory or read when they are needed.

Everything that trains or evaluates sees its data as `Samples`. Targets are always in memory; inputs may stay where they
are, and are then read by a thread of their own, some mini-batches ahead. Read next: `given.py`, which makes samples
from whatever a user has.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgmr.submodels.inputs import Inputs, each

Places = NDArray[np.int64]
Chosen = slice | Tensor | Places
Batch = tuple[Inputs, Tensor]
_AHEAD = 2  # batches that are read while one is worked on


class LazyInputs:
    """Inputs that are read when they are needed, by one thread, so that a source need not bear several at once."""

    def __init__(self, read: Callable[[Places], Inputs]) -> None:
        """`read` returns the inputs at these places, in their order, as tensors."""
        self._read = read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reading")  # which begins with the first read

    def begin(self, places: Places) -> "Future[Inputs]":
        """Have these inputs read, after those asked for before."""
        return self._thread.submit(self._read, places)


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs with their targets."""

    inputs: Inputs | LazyInputs
    targets: Tensor  # their device is that of all that is handed out
    places: Places | None = None  # of lazy inputs: where these samples are among all that can be read

    @property
    def lazy(self) -> bool:
        """Whether inputs are read when they are needed."""
        return isinstance(self.inputs, LazyInputs)

    @property
    def device(self) -> torch.device:
        """The device on which samples are handed out."""
        return self.targets.device

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"<{len(self):,} samples{', lazy' if self.lazy else ''}>"

    def __getitem__(self, chosen: Chosen) -> Batch:
        """The inputs and targets of these samples, as copies: a `prepare`, model or loss may change them in place."""
        if not isinstance(chosen, slice | Tensor | np.ndarray):
            raise TypeError("Samples are chosen by a slice or an array of indices; their parts: .inputs, .targets")
        if not isinstance(self.inputs, LazyInputs):
            return each(lambda tensor: _copied(tensor, chosen), self.inputs), _copied(self.targets, chosen)
        return next(self.ahead([chosen]))

    def classes(self, chosen: Chosen, count: int) -> Tensor:
        """The classes of these samples; negative targets and those from `count` on are none: a loss leaves them out."""
        found: Tensor = torch.unique(self.targets[chosen])
        return found[(found >= 0) & (found.long() < count)]

    def part(self, chosen: Chosen) -> "Samples":
        """Only these samples; what is not in memory stays where it is."""
        if not isinstance(self.inputs, LazyInputs):
            return Samples(*self[chosen])
        return replace(self, targets=self.targets[chosen], places=self._places(chosen))

    def ahead(self, batches: Iterable[Chosen]) -> Iterator[Batch]:
        """The chosen batches one after the other; what must be read is read while the caller works on another."""
        if not isinstance(self.inputs, LazyInputs):
            yield from map(self.__getitem__, batches)
            return
        waiting: deque[tuple[Future[Inputs], Tensor]] = deque()
        for chosen in batches:
            waiting.append((self.inputs.begin(self._places(chosen)), _copied(self.targets, chosen)))
            if len(waiting) > _AHEAD:
                yield self._handed_out(*waiting.popleft())
        while waiting:
            yield self._handed_out(*waiting.popleft())

    def split(self, number: int) -> Iterator[Batch]:
        """All samples in order, in so many parts of equal size; the first ones have one more where it does not fit."""
        size, more = divmod(len(self), number)
        bounds = (part * size + min(part, more) for part in range(number + 1))
        return self.ahead(slice(first, end) for first, end in pairwise(bounds))

    def to(self, device: torch.device) -> "Samples":
        """The same samples, handed out on `device`."""
        inputs = self.inputs if self.lazy else each(lambda tensor: tensor.to(device), self.inputs)
        return replace(self, inputs=inputs, targets=self.targets.to(device))

    def _places(self, chosen: Chosen) -> Places:
        assert self.places is not None
        return self.places[chosen.cpu().numpy() if isinstance(chosen, Tensor) else chosen]

    def _handed_out(self, read: "Future[Inputs]", targets: Tensor) -> Batch:
        return each(lambda tensor: tensor.to(self.device), read.result()), targets


def _copied(tensor: Tensor, chosen: Chosen) -> Tensor:
    return tensor[chosen].clone() if isinstance(chosen, slice) else tensor[chosen]  # arrays of indices copy anyway


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Samples that can be read by their places."""

    count: int
    read: Callable[[Places], Batch]
    targets: Tensor | None = None  # None: only reading tells
    memory: Samples | None = None  # all of them, where they are in memory already
