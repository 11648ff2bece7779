"""Where the kept weights of a linear layer lie, as the indices of sparse matrices.

Found from a layer's levels, once per level map and level. The layer is looked at in two halves, side by side where
there are two threads; the transpose stays in two blocks, so that neither half waits for the other. Read next:
`sparse_linear.py`, which computes with it.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_HALVES = 2  # however many threads there are: sums must not depend on that
_A = TypeVar("_A")
_B = TypeVar("_B")


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """The transpose of some rows of a matrix, as a CSR matrix."""

    rows: slice
    entries: slice  # its own among those of all blocks
    starts: Tensor  # int32 [inputs + 1]
    columns: Tensor  # int32

    @property
    def outputs(self) -> int:
        """Its number of columns."""
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pattern:
    """The kept weights of a matrix [outputs, inputs]."""

    shape: tuple[int, int]
    kept: Tensor  # int32: their positions in the flattened matrix, ascending
    starts: Tensor  # int32 [outputs + 1]: where each row begins among them
    columns: Tensor  # int32
    across: Tensor  # int32: for each entry of the blocks, which entry of the matrix it is
    blocks: Sequence[Block] = ()

    @classmethod
    def empty(cls, shape: tuple[int, int], count: int) -> "Pattern":
        """With room for `count` weights."""
        starts, room = torch.zeros(shape[0] + 1, dtype=torch.int32), torch.empty(3, count, dtype=torch.int32)
        return cls(shape=shape, kept=room[0], starts=starts, columns=room[1], across=room[2])


def find_pattern(codes: NDArray[np.uint8], level: int, shape: Sequence[int], *, at_most: int) -> Pattern | None:
    """The pattern of the weights whose level is at most `level`; None if there are none or more than `at_most`."""
    outputs, inputs = shape
    middle = outputs // _HALVES
    spans = [(first, last) for first, last in ((0, middle), (middle, outputs)) if last > first]
    parts = [codes[first * inputs : last * inputs] for first, last in spans]
    masks, counts = zip(*_side_by_side(lambda part: _kept(part, level), parts), strict=True)
    if not 0 < sum(counts) <= at_most:
        return None
    firsts = np.cumsum([0, *counts]).tolist()
    pattern = Pattern.empty((outputs, inputs), firsts[-1])
    halves = [
        _Half(rows=slice(*span), entries=slice(*entries), mask=mask)
        for span, entries, mask in zip(spans, pairwise(firsts), masks, strict=True)
    ]
    blocks = _side_by_side(lambda half: half.fill(pattern), halves)
    return replace(pattern, blocks=[block for block, count in zip(blocks, counts, strict=True) if count])


def true_positions(mask: NDArray[np.bool_], count: int) -> NDArray[np.int32]:
    """Where `mask` is true, ascending; `count` is how often."""
    if len(mask) % 8 or 10 * count > len(mask):
        return np.flatnonzero(mask).astype(np.int32)
    # Few are: looking at eight bytes at once skips most of the others.
    words = mask.view(np.uint64)
    places = np.flatnonzero(words != 0)
    within = np.flatnonzero(words[places].view(np.bool_)).astype(np.int32)
    found: NDArray[np.int32] = (places.astype(np.int32) << 3)[within >> 3] + (within & 7)
    return found


def _kept(codes: NDArray[np.uint8], level: int) -> tuple[NDArray[np.bool_], int]:
    mask = codes <= level
    return mask, int(np.count_nonzero(mask))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Half:
    """Some rows of a matrix, and where their entries go."""

    rows: slice
    entries: slice
    mask: NDArray[np.bool_]

    def fill(self, pattern: Pattern) -> Block:
        """Write the entries of these rows into the pattern; returns their transpose."""
        inputs, outputs, first = pattern.shape[1], self.rows.stop - self.rows.start, self.entries.start
        kept = true_positions(self.mask, self.entries.stop - first)
        np.add(kept, np.int32(self.rows.start * inputs), out=pattern.kept.numpy()[self.entries])
        starts = np.searchsorted(kept, np.arange(outputs + 1, dtype=np.int32) * np.int32(inputs))
        pattern.starts.numpy()[self.rows.start : self.rows.stop + 1] = starts + first
        rows = np.repeat(np.arange(outputs, dtype=np.int32), np.diff(starts))
        columns = np.subtract(kept, rows * np.int32(inputs), out=pattern.columns.numpy()[self.entries])
        # Numbers of 16 bits are sorted by counting, several times faster than by comparing.
        keys = columns.astype(np.uint16) if inputs <= 2**16 else columns
        across = np.argsort(keys, kind="stable")
        np.add(across, first, out=pattern.across.numpy()[self.entries], casting="unsafe")
        across_starts = np.zeros(inputs + 1, dtype=np.int32)
        np.cumsum(np.bincount(keys, minlength=inputs), out=across_starts[1:])
        return Block(
            rows=self.rows,
            entries=self.entries,
            starts=torch.from_numpy(across_starts),
            columns=torch.from_numpy(rows).index_select(0, torch.from_numpy(across)),
        )


def _side_by_side(do: Callable[[_A], _B], parts: Iterable[_A]) -> list[_B]:
    if torch.get_num_threads() == 1:
        return [do(part) for part in parts]
    with ThreadPoolExecutor(_HALVES) as pool:
        return list(pool.map(do, parts))
