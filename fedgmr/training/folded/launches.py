"""What the launches of this room share: tensors that may be missing, and sums of what several programs have added."""

import triton
import triton.language as tl
from torch import Tensor

_MANY = 4096  # numbers of a part, from which on programs take one part after the other
_SIZE = 512  # of a block then
_FEW, _AT_ONCE = 32, 1024  # numbers of a block otherwise, and those of all parts that are read at once


def optional(tensor: Tensor | None, other: Tensor) -> tuple[Tensor, int]:
    """A tensor and its first stride; where it is missing, what a kernel is given and does not read."""
    return (other, 0) if tensor is None else (tensor, tensor.stride(0))


def add_parts(parts: Tensor, sums: Tensor, more: Tensor | None = None, more_at: int = 0) -> None:
    """Add up parts [clients, parts, numbers]: the first numbers to `sums`, those from `more_at` on to `more`."""
    clients, count, span = parts.shape
    size = _SIZE if span >= _MANY else min(_FEW, int(triton.next_power_of_2(span)))
    at_once = 1 if span >= _MANY else min(_AT_ONCE // size, int(triton.next_power_of_2(count)))
    others, others_row = optional(more, sums)
    _add[(triton.cdiv(span, size), clients)](
        parts, sums, others, sums.stride(0), others_row, span, sums[0].numel(), more_at,
        0 if more is None else more[0].numel(), COUNT=count, AT_ONCE=at_once, SIZE=size,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _add(  # type: ignore[no-untyped-def]
    parts, sums, more, sums_row, more_row, span, numbers, more_at, more_numbers, COUNT: tl.constexpr,
    AT_ONCE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """A block of a client's sums."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    totals = tl.zeros([AT_ONCE, SIZE], tl.float32)
    for start in tl.static_range(0, COUNT, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        inside = (part < COUNT)[:, None] & (at < span)[None, :]
        totals += tl.load(parts + (client * COUNT + part)[:, None] * span + at[None, :], mask=inside, other=0.0)
    total = tl.sum(totals, 0)
    tl.store(sums + client * sums_row + at, total, mask=at < numbers)
    other = at - more_at
    tl.store(more + client * more_row + other, total, mask=(other >= 0) & (other < more_numbers))
