"""Long vectors in pieces: blocks that stay in a core's cache, and shares for the threads of a processor.

Several operations on a block read and write memory once. On an accelerator a block is the whole vector: there a
kernel's start costs more than the memory it would save. Gathering and scattering, which torch does in one thread on
a CPU, are shared out here.
"""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

_BLOCK = 2**20
_SHARED = 2**19  # shorter vectors are done before a second thread has begun


def blocks(size: int, device: torch.device) -> list[slice]:
    """Slices that cover a vector in order."""
    step = _BLOCK if device.type == "cpu" else max(1, size)
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def gather(source: Tensor, index: Tensor) -> Tensor:
    """A new vector: source[index]."""
    out = source.new_empty(len(index))
    _share(lambda a, b: torch.index_select(source, 0, index[a:b], out=out[a:b]), len(index), source.device)
    return out


def scatter_add(target: Tensor, index: Tensor, stops: Sequence[int], values: Tensor) -> None:
    """Add `values` to `target` at `index`, in which no entry comes twice.

    Args:
        target: float [N].
        index: int64; ascending up to each of `stops`, where it begins anew.
        stops: ascending; those past the end of `index` do not matter.
        values: float, as many as `index` has.
    """
    if target.device.type != "cpu":
        target.scatter_add_(0, index, values)
        return
    ends = [min(stop, len(index)) for stop in stops]

    def add(first: int, stop: int) -> None:
        for begin, end in itertools.pairwise([0, *ends]):
            run = index[begin:end]
            a, b = (begin + int(torch.searchsorted(run, edge)) for edge in (first, stop))
            target.scatter_add_(0, index[a:b], values[a:b])

    _share(add, len(target), target.device)


def _share(work: Callable[[int, int], object], size: int, device: torch.device) -> None:
    """`work` on shares of 0..size, in as many threads as torch uses."""
    threads = torch.get_num_threads() if device.type == "cpu" and size >= _SHARED else 1
    cuts = [size * number // threads for number in range(threads + 1)]
    if threads == 1:
        work(0, size)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, cuts, cuts[1:]))
