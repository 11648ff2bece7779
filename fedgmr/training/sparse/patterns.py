"""The places of the kept weights of a linear layer, as the indices of sparse matrices.

Found from a level map, once per map and level. Read next: `linear.py`, which computes with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgmr.submodels.layout import TensorPlace
from fedgmr.submodels.levels import LevelMap


@dataclass(frozen=True, kw_only=True, eq=False)
class Pattern:
    """The kept weights of a matrix [outputs, inputs]: the CSR indices of the matrix and of its transpose."""

    shape: tuple[int, int]
    inputs: int  # columns that the indices count; fewer than the matrix has where empty ones are left out
    kept: Tensor  # int32: their positions in the flattened matrix, ascending
    starts: Tensor  # int32 [outputs + 1]: where each row begins among them
    columns: Tensor  # int32
    across_starts: Tensor  # int32 [inputs + 1]: the same of the transpose
    across_columns: Tensor
    across: Tensor  # int32: for each entry of the transpose, which entry of the matrix it is

    @classmethod
    def of(cls, kept: Tensor, shape: Sequence[int]) -> "Pattern":
        """Make the pattern of ascending int32 positions."""
        outputs, inputs = shape
        starts = torch.searchsorted(kept, torch.arange(outputs + 1, dtype=torch.int32) * inputs, out_int32=True)
        rows = torch.from_numpy(np.repeat(np.arange(outputs, dtype=np.int32), np.diff(starts.numpy())))
        columns = kept - rows * inputs
        # Short numbers are sorted by counting, several times faster than by comparing.
        keys = torch.sort(columns.to(torch.int16) if inputs < 2**15 else columns, stable=True)
        ends = torch.arange(inputs + 1, dtype=keys.values.dtype)
        return cls(
            shape=(outputs, inputs),
            inputs=inputs,
            kept=kept,
            starts=starts,
            columns=columns,
            across_starts=torch.searchsorted(keys.values, ends, out_int32=True),
            across_columns=rows.index_select(0, keys.indices),
            across=keys.indices.to(torch.int32),
        )

    def among(self, columns: Tensor) -> "Pattern":
        """Leave all other columns out: these (int32, ascending) have all kept weights."""
        places = torch.zeros(self.inputs, dtype=torch.int32)
        places[columns] = torch.arange(len(columns), dtype=torch.int32)
        return replace(
            self,
            inputs=len(columns),
            columns=places.index_select(0, self.columns),
            across_starts=torch.cat([self.across_starts[columns], self.across_starts[-1:]]),
        )

    @classmethod
    def find(cls, levels: LevelMap, level: int, place: TensorPlace, *, at_most: int) -> Tensor | None:
        """Int32: the positions in a tensor that `level` keeps, ascending; None if there are none or over `at_most`."""
        if (order := vars(levels).get("order")) is not None:  # known already, because somebody packed or merged values
            return _kept_in_order(order, levels.sizes[: level + 1], place, at_most)
        mask = levels.levels[place.start : place.stop].numpy() <= level
        count = int(np.count_nonzero(mask))
        return torch.from_numpy(cls.positions(mask, count)) if 0 < count <= at_most else None

    @staticmethod
    def positions(mask: NDArray[np.bool_], count: int) -> NDArray[np.int32]:
        """Find where `mask` is true, ascending; `count` is how often."""
        if len(mask) % 8 or 10 * count > len(mask):
            return np.flatnonzero(mask).astype(np.int32)
        # Few are: looking at eight bytes at once skips most of the others.
        words = mask.view(np.uint64)
        places = np.flatnonzero(words != 0)
        within = np.flatnonzero(words[places].view(np.bool_)).astype(np.int32)
        found: NDArray[np.int32] = (places.astype(np.int32) << 3)[within >> 3] + (within & 7)
        return found


def _kept_in_order(order: Tensor, sizes: Sequence[int], place: TensorPlace, at_most: int) -> Tensor | None:
    """Find the same from the level order, in which every increment ascends, without a look at the other weights."""
    runs = []
    for first, last in zip([0, *sizes], sizes, strict=False):
        increment = order[first:last]
        start, stop = torch.searchsorted(increment, torch.tensor([place.start, place.stop])).tolist()
        runs.append(increment[start:stop])
    if not 0 < sum(map(len, runs)) <= at_most:
        return None
    kept = torch.cat(runs).sub_(place.start).to(torch.int32)
    return kept if len(runs) == 1 else torch.from_numpy(np.sort(kept.numpy(), kind="stable"))
