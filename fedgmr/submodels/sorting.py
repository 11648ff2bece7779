"""The cuts of `selection.py` by sorting: on a GPU a sort takes less time than one histogram with its collisions.

The results are the same to the last element. Read next: `selection.py`.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

Part = tuple[int, int]  # (start, stop)


class Sorting:
    """Elements ranked descending by several keys, each float32 or float64; see `Selection`."""

    def __init__(self, keys: Sequence[Tensor]) -> None:
        self.keys, self.device = keys, keys[0].device

    def cut(self, ends: Sequence[int], exempt: Tensor | None) -> Tensor:
        """The result of `Selection.cut`."""
        first = self.keys[0] if exempt is None else self.keys[0].masked_fill(exempt, torch.nan)  # NaN ranks first
        order = self._order([first, *self.keys[1:]])
        cuts = _constant(tuple(ends), self.device)
        if exempt is not None:
            cuts = cuts + torch.count_nonzero(exempt)
        groups = _groups(torch.arange(len(order), device=self.device), cuts)
        return torch.empty_like(groups).scatter_(0, order, groups)

    def cut_across(self, parts: Sequence[Part], floors: Sequence[int], ends: Sequence[int]) -> Tensor:
        """The result of `Selection.cut_across`."""
        order = self._order(self.keys)
        # By part, the highest first: their places in `order`. An element's odd number says in which part it is.
        edges = _constant(tuple(edge for part in parts for edge in part), self.device)
        number = torch.bucketize(order, edges, right=True, out_int32=True)
        inside = number % 2 == 1
        by_part = torch.sort(number.to(torch.uint8 if len(edges) < 256 else torch.int32), stable=True).indices
        # Gaps have numbers of their own, so a part begins there where it begins among the elements.
        chosen = [by_part[low : low + floor] for (low, _), floor in zip(parts, floors, strict=True)]
        first = torch.cat(chosen) if chosen else by_part[:0]
        others = inside.index_fill_(0, first, False)
        cuts = _constant(tuple(end - sum(floors) for end in ends), self.device)
        groups = _groups(others.cumsum(0).sub_(1), cuts).masked_fill_(~others, 0)
        return torch.empty_like(groups).scatter_(0, order, groups)

    @staticmethod
    def _order(keys: Sequence[Tensor]) -> Tensor:
        """Int64 [n]: the elements from the highest to the lowest."""
        order: Tensor | None = None
        for key in reversed(keys):
            number = key + 0.0  # makes one zero of two
            found = torch.sort(number if order is None else number.index_select(0, order), descending=True, stable=True)
            order = found.indices if order is None else order.index_select(0, found.indices)
        assert order is not None
        return order


@lru_cache(maxsize=64)
def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Int64, on the device; kept, because a copy to the device waits for it. Never write into it."""
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def _groups(ranks: Tensor, cuts: Tensor) -> Tensor:
    return torch.bucketize(ranks, cuts, right=True, out_int32=True).to(torch.uint8)
