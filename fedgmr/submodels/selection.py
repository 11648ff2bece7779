"""Exact selection by rank without sorting: which of the ordered groups does each element fall into.

A radix selection, 16 bits of a key at a time from the most significant down: a histogram decides every bin that lies
inside one group at once, and only the members of the bins that a boundary cuts are looked at more closely. Equal
elements go on to the next key, then to the index. Several sets of elements (cells) are cut in the same passes. Read
next: `rankings.py`, which has the keys.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedgmr.submodels.blocks import blocks

_DIGIT_BITS = 16
_BINS = 2**_DIGIT_BITS
_UNDECIDED = 255


def place(keys: Sequence[Tensor], ends: Sequence[int], *, exempt: Tensor | None = None) -> Tensor:
    """Uint8 [n]: the group of each element when all are ranked descending and cut at `ends`.

    Group g holds the ranks from ends[g-1] to ends[g] - 1; elements past the last end get group len(ends).

    Args:
        keys: float [n] each; later keys decide between equal earlier ones, the lower index at last.
        ends: non-decreasing ranks, at most 254 of them.
        exempt: bool [n], elements that are in group 0 and take no rank.
    """
    rows = [list(ends), [len(keys[0]) + 1] * len(ends)]
    if exempt is None:
        return _place(len(keys[0]), _digits(keys), None, _matrix(rows[:1], keys[0]))
    return _place(len(keys[0]), _digits(keys), exempt.view(torch.uint8), _matrix(rows, keys[0]))


def place_within(
    keys: Sequence[Tensor], parts: Sequence[tuple[int, int]], ends: Sequence[Sequence[int]], *, elsewhere: int
) -> Tensor:
    """The same within each of several parts of the vectors; elements of no part get group `elsewhere`.

    Args:
        keys: float [n] each.
        parts: (start, stop) of each part; disjoint.
        ends: one list of ends per part, all of the same length.
        elsewhere: 0, or len(ends[0]).
    """
    size, count = len(keys[0]), len(ends[0]) if ends else elsewhere
    assert elsewhere in (0, count), "elements of no part are before or after all ends"
    cell = torch.full((size,), len(parts), dtype=_cell_type(len(parts) + 1), device=keys[0].device)
    for number, (start, stop) in enumerate(parts):
        cell[start:stop] = number
    rest = [size + 1 if elsewhere == 0 else 0] * count
    return _place(size, _digits(keys), cell, _matrix([*ends, rest], keys[0]))


def positions(codes: Tensor, code: int) -> Tensor:
    """Int64: where the uint8 vector has `code`, ascending."""
    if codes.device.type == "cpu":  # numpy compares bytes, and skips what is false, several times faster
        return torch.from_numpy(np.flatnonzero(codes.numpy() == code))
    return torch.nonzero(codes == code).view(-1)


def _matrix(rows: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=like.device).view(len(rows), -1)


def _cell_type(cells: int) -> torch.dtype:
    return torch.uint8 if cells <= 256 else torch.int32


def _digits(keys: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    """(key, shift) for each 16-bit digit, most significant first."""
    digits = []
    for key in keys:
        wide = key if key.dtype in (torch.float32, torch.float64) else key.to(torch.float32)
        bits = 8 * wide.element_size()
        digits += [(wide, shift) for shift in range(bits - _DIGIT_BITS, -1, -_DIGIT_BITS)]
    return digits


def _place(size: int, digits: Sequence[tuple[Tensor, int]], cell: Tensor | None, ends: Tensor) -> Tensor:
    """Groups by in-cell rank; `ends` is int64 [cells, ends], in ranks of the cell, and may lie outside it."""
    cells = len(ends)
    if not digits:
        return _by_index(size, cell, ends)
    bins = _bins(*digits[0], cell)
    population = torch.bincount(bins, minlength=cells * _BINS).view(cells, _BINS)
    through = population.cumsum(1)
    above = through - population
    first = torch.searchsorted(ends, above, right=True)
    last = torch.searchsorted(ends, (through - 1).clamp_(min=0), right=True)
    cut = (first != last) & (population > 0)
    table = first.to(torch.uint8).masked_fill_(cut, _UNDECIDED)
    groups = table.view(-1).index_select(0, bins)
    members = positions(groups, _UNDECIDED)
    if len(members):
        at = torch.nonzero(cut)
        rest = ends[at[:, 0]] - above[at[:, 0], at[:, 1]].view(-1, 1)
        within = None
        if len(at) > 1:
            number = cut.view(-1).cumsum(0).sub_(1).to(_cell_type(len(at)))
            within = number.index_select(0, bins.index_select(0, members))
        closer = _place(len(members), _among(digits[1:], members), within, rest)
        groups.scatter_(0, members, closer)
    return groups


def _among(digits: Sequence[tuple[Tensor, int]], members: Tensor) -> list[tuple[Tensor, int]]:
    keys = {id(key): key for key, _ in digits}
    chosen = {name: key.index_select(0, members) for name, key in keys.items()}
    return [(chosen[id(key)], shift) for key, shift in digits]


def _bins(key: Tensor, shift: int, cell: Tensor | None) -> Tensor:
    """Int32 [n]: the bin of each element, cell by cell and within a cell the largest digit first."""
    whole = torch.int32 if key.dtype == torch.float32 else torch.int64
    bits = 8 * key.element_size()
    top = shift == bits - _DIGIT_BITS
    bins = torch.empty(len(key), dtype=torch.int32, device=key.device)
    for block in blocks(len(key), key.device):
        # Adding zero turns -0.0 into 0.0; flipping the magnitude bits of negatives makes the integers ordered.
        raw = (key[block] + 0.0).view(whole)
        ordered = (raw >> (bits - 1)).bitwise_and_(torch.iinfo(whole).max).bitwise_xor_(raw).bitwise_right_shift_(shift)
        # The top digit is signed; below it the sign bits of the shift must go.
        digit = ordered if top else ordered.bitwise_and_(_BINS - 1)
        out = bins[block].copy_(torch.rsub(digit, _BINS // 2 - 1 if top else _BINS - 1))
        if cell is not None:
            out.add_(cell[block].to(torch.int32), alpha=_BINS)
    return bins


def _by_index(size: int, cell: Tensor | None, ends: Tensor) -> Tensor:
    """Groups of elements whose keys are all equal within their cell: the lower index comes first."""
    ranks = torch.arange(size, device=ends.device)
    if cell is None:
        return torch.searchsorted(ends[0], ranks, right=True).to(torch.uint8)
    order, number = torch.sort(cell, stable=True).indices, cell.to(torch.int32)
    populations = torch.bincount(number, minlength=len(ends))
    begin = populations.cumsum(0) - populations
    ranks = torch.empty_like(ranks).index_copy_(0, order, ranks) - begin.index_select(0, number)
    groups = torch.zeros(size, dtype=torch.uint8, device=ends.device)
    for end in ends.unbind(1):
        groups += ranks >= end.index_select(0, number)
    return groups
