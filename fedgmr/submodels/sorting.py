"""The groups of `selection.py` by sorting: on a GPU a sort takes less time than one histogram with its collisions.

The same results to the last element. Read next: `selection.py`.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

Part = tuple[int, int]  # (start, stop)


def place_sorted(keys: Sequence[Tensor], ends: Sequence[int], exempt: Tensor | None) -> Tensor:
    """What `selection.place` returns."""
    if exempt is not None:  # NaN comes before every number
        keys = [keys[0].masked_fill(exempt, torch.nan), *keys[1:]]
    order = _descending(keys)
    cuts = _constant(tuple(ends), order.device)
    if exempt is not None:
        cuts = cuts + torch.count_nonzero(exempt)
    return _scattered(order, _groups(torch.arange(len(order), device=order.device), cuts))


def place_across_sorted(
    keys: Sequence[Tensor], parts: Sequence[Part], floors: Sequence[int], ends: Sequence[int]
) -> Tensor:
    """What `selection.place_across` returns."""
    order = _descending(keys)
    # By part, the highest first: their places in `order`. An element's odd number says in which part it is.
    edges = _constant(tuple(edge for part in parts for edge in part), order.device)
    number = torch.bucketize(order, edges, right=True, out_int32=True)
    inside = number % 2 == 1
    by_part = torch.sort(number.to(torch.uint8 if len(edges) < 256 else torch.int32), stable=True).indices
    chosen, start, covered = [], 0, 0
    for (low, high), floor in zip(parts, floors, strict=True):
        start += low - covered  # the gap before the part has a number of its own
        chosen.append(by_part[start : start + floor])
        start += high - low
        covered = high
    first = torch.cat(chosen) if chosen else by_part[:0]
    others = inside.index_fill_(0, first, False)
    cuts = _constant(tuple(end - sum(floors) for end in ends), order.device)
    groups = _groups(others.cumsum(0).sub_(1), cuts)
    return _scattered(order, groups.masked_fill_(~others, 0))


@lru_cache(maxsize=64)
def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Int64, on the device; kept, because to bring it there waits for the device. Never to be written into."""
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def _descending(keys: Sequence[Tensor]) -> Tensor:
    """Int64 [n]: where the elements stand when ranked; later keys decide between equal ones, at last the index."""
    order: Tensor | None = None
    for key in reversed(keys):
        wide = key if key.dtype == torch.float64 else key.to(torch.float32)
        number = wide + 0.0  # makes one zero of two
        found = torch.sort(number if order is None else number.index_select(0, order), descending=True, stable=True)
        order = found.indices if order is None else order.index_select(0, found.indices)
    assert order is not None
    return order


def _groups(ranks: Tensor, cuts: Tensor) -> Tensor:
    return torch.bucketize(ranks, cuts, right=True, out_int32=True).to(torch.uint8)


def _scattered(order: Tensor, groups: Tensor) -> Tensor:
    return torch.empty_like(groups).scatter_(0, order, groups)
