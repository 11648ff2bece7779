"""Exact selection by rank without sorting: the group of each element when all are ranked and cut.

A radix selection takes 16 bits of a key at a time, the most significant first. A histogram decides every bin that lies
inside one group at once; only the members of the bins that a boundary cuts are examined further. Equal elements go on
to the next key, then to the index. Several sets of elements (cells) are cut in the same passes. Read next:
`rankings.py`, which provides the keys; `sorting.py`, which is faster on a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgmr.submodels.blocks import blocks, positions
from fedgmr.submodels.sorting import Part, Sorting

_DIGIT_BITS = 16
_BINS = 2**_DIGIT_BITS
_UNDECIDED = 255

_Digits = Sequence[tuple[Tensor, int]]  # (key, shift) for each 16-bit digit, most significant first


class Selection:
    """Elements ranked descending by several keys, to be cut into groups of consecutive ranks.

    Later keys decide between equal earlier ones, then the lower index comes first. Every cut returns uint8 [n], the
    group of each element: group g has the ranks from ends[g-1] to ends[g] - 1, and elements past the last end get group
    len(ends). There are at most 254 ends, in non-decreasing order.
    """

    def __init__(self, keys: Sequence[Tensor]) -> None:
        """`keys` are float [n] each."""
        self._keys = [key if key.dtype in (torch.float32, torch.float64) else key.to(torch.float32) for key in keys]
        self._size, self._device = len(keys[0]), keys[0].device
        self._digits = [
            (key, shift)
            for key in self._keys
            for shift in range(8 * key.element_size() - _DIGIT_BITS, -1, -_DIGIT_BITS)
        ]

    def cut(self, ends: Sequence[int], *, exempt: Tensor | None = None) -> Tensor:
        """Cut all elements; those that `exempt`, bool [n], marks are in group 0 and take no rank."""
        self._refuse_nan()
        if self._device.type == "cuda":
            return Sorting(self._keys).cut(ends, exempt)
        rows = [list(ends)] if exempt is None else [list(ends), [self._size + 1] * len(ends)]
        cell = None if exempt is None else exempt.view(torch.uint8)
        return _place(self._size, self._digits, cell, self._matrix(rows))

    def cut_within(self, parts: Sequence[Part], ends: Sequence[Sequence[int]]) -> Tensor:
        """Cut each of several disjoint, ascending parts at ends of its own; elements of no part are in group 0."""
        count = len(ends[0]) if ends else 0
        pieces, rows = self._completed(parts, ends, [self._size + 1] * count)
        bins = _bins(*self._digits[0], None)
        cut = _Cut.of(_histograms(bins, pieces), self._matrix(rows))
        return cut.settle_pieces(bins, pieces, self._digits[1:])

    def cut_across(self, parts: Sequence[Part], floors: Sequence[int], ends: Sequence[int]) -> Tensor:
        """Cut all disjoint, ascending parts together, except that the highest of each come before everything else.

        `floors` says how many of each, together at most ends[0]. Elements of no part are in group 0 and take no rank.
        """
        assert sum(floors) <= ends[0], "the floors fit into the first group"
        self._refuse_nan()
        if self._device.type == "cuda":
            return Sorting(self._keys).cut_across(parts, floors, ends)
        pieces, rows = self._completed(parts, [[floor] for floor in floors], [self._size + 1])
        bins = _bins(*self._digits[0], None)
        histograms = _histograms(bins, pieces)
        cut = _Cut.of(histograms, self._matrix(rows))
        first = positions(cut.settle_pieces(bins, pieces, self._digits[1:]), 0)
        # The others' histogram needs no second pass: it is that of all less that of the few that come first.
        left = histograms.sum(0, keepdim=True) - _histograms(bins.index_select(0, first), [(0, len(first))])
        cut = _Cut.of(left, self._matrix([[end - sum(floors) for end in ends]]))
        groups = cut.table.view(-1).index_select(0, bins).index_fill_(0, first, 0)
        return cut.settle(groups, bins, self._digits[1:])

    def _refuse_nan(self) -> None:
        """Refuse a first key with NaN; on a GPU, where to ask would be to wait, NaN ranks first instead."""
        scores = self._keys[0]
        # The sum tells in one fast pass; only if it is NaN is there a need to look at each.
        if self._device.type != "cuda" and torch.isnan(scores.sum()) and torch.isnan(scores).any():
            raise ValueError("scores holds NaN: rank finite scores only.")

    def _matrix(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self._device).view(len(rows), -1)

    def _completed(
        self, parts: Sequence[Part], rows: Sequence[Sequence[int]], outside: Sequence[int]
    ) -> tuple[list[Part], list[Sequence[int]]]:
        """Parts and their rows with the gaps between them, whose row is `outside`; together they cover everything."""
        pieces: list[Part] = []
        completed: list[Sequence[int]] = []
        for (start, stop), row in zip([*parts, (self._size, self._size)], [*rows, outside], strict=True):
            covered = pieces[-1][1] if pieces else 0
            if start > covered:
                pieces.append((covered, start))
                completed.append(outside)
            pieces.append((start, stop))
            completed.append(row)
        return pieces, completed


def _place(size: int, digits: _Digits, cell: Tensor | None, ends: Tensor) -> Tensor:
    """Groups by in-cell rank; `ends` is int64 [cells, ends], in ranks of the cell, and may lie outside it."""
    if not digits:
        return _by_index(size, cell, ends)
    bins = _bins(*digits[0], cell)
    cut = _Cut.of(_histograms(bins, [(0, size)], cells=len(ends)), ends)
    return cut.settle(cut.table.view(-1).index_select(0, bins), bins, digits[1:])


def _bins(key: Tensor, shift: int, cell: Tensor | None) -> Tensor:
    """Int32 [n]: the bin of each element, cell by cell and within a cell the largest digit first."""
    whole = torch.int32 if key.dtype == torch.float32 else torch.int64
    bits = 8 * key.element_size()
    top = shift == bits - _DIGIT_BITS
    bins = torch.empty(len(key), dtype=torch.int32, device=key.device)
    pieces = blocks(len(key), key.device)
    longest = max((piece.stop - piece.start for piece in pieces), default=0)
    number, flips = key.new_empty(longest), torch.empty(longest, dtype=whole, device=key.device)
    for block in pieces:
        size = block.stop - block.start
        # Adding zero turns -0.0 into 0.0; flipping the magnitude bits of negatives makes the integers ordered.
        raw = torch.add(key[block], 0.0, out=number[:size]).view(whole)
        flip = torch.bitwise_right_shift(raw, bits - 1, out=flips[:size]).bitwise_and_(torch.iinfo(whole).max)
        digit = raw.bitwise_xor_(flip).bitwise_right_shift_(shift)
        # The top digit is signed; below it the sign bits of the shift must go.
        largest = _BINS // 2 - 1 if top else _BINS - 1
        out = torch.sub(digit if top else digit.bitwise_and_(largest), largest, out=bins[block]).neg_()
        if cell is not None:
            out.add_(cell[block].to(torch.int32), alpha=_BINS)
    return bins


def _histograms(bins: Tensor, pieces: Sequence[Part], *, cells: int = 1) -> Tensor:
    """Int32 [pieces x cells, bins]: how many elements of each piece are in each bin; nothing waits for a device."""
    counts = torch.zeros(len(pieces), cells * _BINS, dtype=torch.int32, device=bins.device)
    one = torch.ones(1, dtype=torch.int32, device=bins.device)
    for (start, stop), row in zip(pieces, counts, strict=True):
        row.index_add_(0, bins[start:stop], one.expand(stop - start))
    return counts.view(-1, _BINS)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cut:
    """The places of the ends in the histograms of several cells."""

    ends: Tensor  # int64 [cells, ends]
    above: Tensor  # int64 [cells, bins]: elements of the cell in higher bins
    cut: Tensor  # bool [cells, bins]: an end lies within the bin
    table: Tensor  # uint8 [cells, bins]: the group of a bin's members, undecided where it is cut

    @classmethod
    def of(cls, histograms: Tensor, ends: Tensor) -> "_Cut":
        """The cut of histograms, one row per cell, at the ends of each cell."""
        through = histograms.cumsum(1)
        above = through - histograms
        first = torch.searchsorted(ends, above, right=True)
        last = torch.searchsorted(ends, (through - 1).clamp_(min=0), right=True)
        cut = (first != last) & (histograms > 0)
        return cls(ends=ends, above=above, cut=cut, table=first.to(torch.uint8).masked_fill_(cut, _UNDECIDED))

    def settle_pieces(self, bins: Tensor, pieces: Sequence[Part], digits: _Digits) -> Tensor:
        """Groups of pieces that are cells of their own; `bins` are without the cell."""
        groups = torch.empty(len(bins), dtype=torch.uint8, device=bins.device)
        for (start, stop), table in zip(pieces, self.table, strict=True):
            torch.index_select(table, 0, bins[start:stop], out=groups[start:stop])
        return self.settle(groups, bins, digits, [stop for _, stop in pieces])

    def settle(self, groups: Tensor, bins: Tensor, digits: _Digits, stops: Sequence[int] = ()) -> Tensor:
        """Decide what is undecided by the next digits; `stops`: where cells end, if the bins do not say the cell."""
        members = positions(groups, _UNDECIDED)
        if not len(members):
            return groups
        at = torch.nonzero(self.cut)
        ends = self.ends[at[:, 0]] - self.above[at[:, 0], at[:, 1]].view(-1, 1)
        within = None
        if len(at) > 1:
            where = bins.index_select(0, members)
            if stops:
                cell = torch.bucketize(members, torch.tensor(stops, device=members.device), right=True, out_int32=True)
                where.add_(cell, alpha=_BINS)
            number = self.cut.view(-1).cumsum(0).sub_(1).to(torch.uint8 if len(at) <= 256 else torch.int32)
            within = number.index_select(0, where)
        chosen = {id(key): key.index_select(0, members) for key in {id(key): key for key, _ in digits}.values()}
        closer = [(chosen[id(key)], shift) for key, shift in digits]
        return groups.scatter_(0, members, _place(len(members), closer, within, ends))


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
