"""Where the kept weights of a linear layer lie, as the indices of sparse matrices.

Found from a layer's levels, once per level map and level. The layer is looked at in two halves, side by side where
there are two threads; the transpose stays in two blocks, so that neither half waits for the other. Read next:
`sparse_linear.py`, which computes with it.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
    blocks: Sequence[Block]


def find_pattern(codes: NDArray[np.uint8], level: int, shape: Sequence[int], *, at_most: int) -> Pattern | None:
    """The pattern of the weights whose level is at most `level`; None if there are none or more than `at_most`."""
    outputs, inputs = shape
    bounds = np.linspace(0, outputs, _HALVES + 1).astype(int)
    spans = [(int(first), int(last)) for first, last in pairwise(bounds) if last > first]
    masks = list(_side_by_side(lambda span: codes[span[0] * inputs : span[1] * inputs] <= level, spans))
    counts = [int(np.count_nonzero(mask)) for mask in masks]
    if not 0 < sum(counts) <= at_most:
        return None
    halves = list(_side_by_side(lambda half: _find_half(*half, inputs), zip(masks, counts, spans, strict=True)))
    firsts = [0, *np.cumsum(counts).tolist()]
    starts = [half.starts + first for half, first in zip(halves, firsts, strict=False)]
    blocks = [
        Block(
            rows=slice(*span),
            entries=slice(first, first + count),
            starts=torch.from_numpy(half.across_starts),
            columns=half.across_columns,
        )
        for half, span, first, count in zip(halves, spans, firsts, counts, strict=False)
    ]
    return Pattern(
        shape=(outputs, inputs),
        kept=_joined([half.kept for half in halves]),
        starts=_joined([part[:-1] for part in starts] + [starts[-1][-1:]]),
        columns=_joined([half.columns for half in halves]),
        across=_joined([half.across + np.int32(first) for half, first in zip(halves, firsts, strict=False)]),
        blocks=[block for block, count in zip(blocks, counts, strict=True) if count],
    )


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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Half:
    kept: NDArray[np.int32]
    starts: NDArray[np.int32]
    columns: NDArray[np.int32]
    across: NDArray[np.int32]
    across_starts: NDArray[np.int32]
    across_columns: Tensor


def _find_half(mask: NDArray[np.bool_], count: int, span: tuple[int, int], inputs: int) -> _Half:
    outputs = span[1] - span[0]
    kept = true_positions(mask, count)
    starts = np.searchsorted(kept, np.arange(outputs + 1, dtype=np.int32) * np.int32(inputs)).astype(np.int32)
    rows = np.repeat(np.arange(outputs, dtype=np.int32), np.diff(starts))
    columns = kept - rows * np.int32(inputs)
    # Numbers of 16 bits are sorted by counting, several times faster than by comparing.
    keys = columns.astype(np.uint16) if inputs <= 2**16 else columns
    across = np.argsort(keys, kind="stable")
    across_starts = np.zeros(inputs + 1, dtype=np.int32)
    np.cumsum(np.bincount(keys, minlength=inputs), out=across_starts[1:])
    return _Half(
        kept=kept + np.int32(span[0] * inputs),
        starts=starts,
        columns=columns,
        across=across.astype(np.int32),
        across_starts=across_starts,
        across_columns=torch.from_numpy(rows).index_select(0, torch.from_numpy(across)),
    )


def _side_by_side(do: Callable[[_A], _B], parts: Iterable[_A]) -> Iterable[_B]:
    if torch.get_num_threads() == 1:
        return [do(part) for part in parts]
    with ThreadPoolExecutor(_HALVES) as pool:
        return list(pool.map(do, parts))


def _joined(parts: Sequence[NDArray[np.int32]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
