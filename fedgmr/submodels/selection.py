"""Exact selection by rank without sorting: which of the ordered groups does each element fall into.

A radix selection from the most significant 16 bits down: a histogram decides every bin that lies inside one group
at once, and only the bins that a boundary cuts are looked at more closely. Equal elements go on to the next key,
then to the index.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_DIGIT_BITS = 16
_UNDECIDED = 255


def place(keys: Sequence[Tensor], ends: Sequence[int]) -> Tensor:
    """Uint8 [n]: the group of each element when all are ranked descending and cut at `ends`.

    Group g holds the ranks from ends[g-1] to ends[g] - 1; elements past the last end get group len(ends).

    Args:
        keys: float [n] each; later keys decide between equal earlier ones, the lower index at last.
        ends: non-decreasing ranks, at most 254 of them.
    """
    digits = [(ordered, shift) for key in keys for ordered, shift in _digits(key)]
    device = keys[0].device
    return _place(digits, torch.tensor(list(ends), dtype=torch.int64, device=device), len(keys[0]))


def _digits(key: Tensor) -> list[tuple[Tensor, int]]:
    """(integers in the order of `key`, shift) for each 16-bit digit, most significant first."""
    if key.dtype == torch.float64:
        whole, bits = torch.int64, 64
    else:
        key, whole, bits = key.to(torch.float32), torch.int32, 32
    # Adding zero turns -0.0 into 0.0; flipping the magnitude bits of negatives makes the integers ordered.
    raw = (key + 0.0).contiguous().view(whole)
    ordered = torch.where(raw < 0, raw ^ torch.iinfo(whole).max, raw)
    return [(ordered, shift) for shift in range(bits - _DIGIT_BITS, -1, -_DIGIT_BITS)]


def _place(digits: Sequence[tuple[Tensor, int]], ends: Tensor, size: int) -> Tensor:
    if not digits:
        ranks = torch.arange(size, device=ends.device)
        return torch.searchsorted(ends, ranks, right=True).to(torch.uint8)
    ordered, shift = digits[0]
    top = ordered.element_size() * 8 - _DIGIT_BITS == shift
    digit = ordered >> shift
    # The top digit is signed; below it the sign bits of the shift must go.
    digit = digit + 2 ** (_DIGIT_BITS - 1) if top else digit & (2**_DIGIT_BITS - 1)
    population = torch.bincount(digit, minlength=2**_DIGIT_BITS)
    above = population.flip(0).cumsum(0).flip(0) - population
    first = torch.searchsorted(ends, above, right=True)
    last = torch.searchsorted(ends, above + (population - 1).clamp(min=0), right=True)
    groups = torch.where(first == last, first, _UNDECIDED).to(torch.uint8)[digit.long()]
    for cut in torch.nonzero((first != last) & (population > 0)).view(-1).tolist():
        members = torch.nonzero(digit == cut).view(-1)
        rest = [(integers[members], s) for integers, s in digits[1:]]
        groups[members] = _place(rest, ends - above[cut], len(members))
    return groups
