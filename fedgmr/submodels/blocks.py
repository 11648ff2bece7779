"""Fast passes over long vectors: blocks that stay in a core's cache, and work shared between a processor's threads.

Several operations on a block read and write memory once. On an accelerator a block is the whole vector: there the start
of a kernel costs more than the memory it would save. PyTorch gathers and scatters in one thread on a CPU; here the
threads share the work.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_BLOCK = 2**20
_SHARED = 2**19  # shorter vectors are done before a second thread has begun


def blocks(size: int, device: torch.device, *, step: int = _BLOCK) -> list[slice]:
    """Slices that cover a vector in order; on a CPU of length `step`."""
    step = step if device.type == "cpu" else max(1, size)
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def positions(codes: Tensor, code: int) -> Tensor:
    """Int64: where the uint8 vector has `code`, ascending."""
    if codes.device.type == "cpu":  # numpy compares bytes, and skips what is false, several times faster
        return torch.from_numpy(np.flatnonzero(codes.numpy() == code))
    return torch.nonzero(codes == code).view(-1)


def gather(source: Tensor, index: Tensor) -> Tensor:
    """A new vector: source[index]."""
    out = source.new_empty(len(index))
    _share(lambda a, b: torch.index_select(source, 0, index[a:b], out=out[a:b]), len(index), source.device)
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Addend:
    """Values to add to a vector."""

    values: Tensor
    index: Tensor  # int64: the place of each value, none twice; ascending up to each of `stops`
    stops: Sequence[int]  # ascending; those past the end of `index` have no effect

    def within(self, first: int, stop: int) -> Iterator[slice]:
        """The slices of the values whose places are from `first` to before `stop`."""
        ends = [min(end, len(self.index)) for end in self.stops]
        edges = torch.tensor([first, stop])
        for begin, end in itertools.pairwise([0, *ends]):
            a, b = torch.searchsorted(self.index[begin:end], edges).tolist()
            yield slice(begin + a, begin + b)


def scatter_add(target: Tensor, addends: Sequence[Addend]) -> None:
    """Add the addends to `target` one after the other."""
    if target.device.type != "cpu":
        for addend in addends:
            target.scatter_add_(0, addend.index, addend.values)
        return

    def add(first: int, stop: int) -> None:
        for start in range(first, stop, _BLOCK):
            for addend in addends:
                for part in addend.within(start, min(start + _BLOCK, stop)):
                    target.scatter_add_(0, addend.index[part], addend.values[part])

    if addends:
        _share(add, len(target), target.device)


def _share(work: Callable[[int, int], object], size: int, device: torch.device) -> None:
    """Call `work` on shares of 0..size, in as many threads as PyTorch uses."""
    threads = torch.get_num_threads() if device.type == "cpu" and size >= _SHARED else 1
    cuts = [size * number // threads for number in range(threads + 1)]
    if threads == 1:
        work(0, size)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, cuts, cuts[1:]))
