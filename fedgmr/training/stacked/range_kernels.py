"""Where sub-models are by width: a step's channels lie in a range of a client's own, and products stop at its ends.

These kernels and parts of kernels find the ranges and keep to them (NARROW). Read next: `conv_kernels.py`.
"""

import triton
import triton.language as tl

from fedgmr.training.stacked.row_kernels import NOWHERE


@triton.jit  # type: ignore[untyped-decorator]
def find_range(  # type: ignore[no-untyped-def]
    levels, limits, first, last, size, weight_at, bias_at, depth, SIZE: tl.constexpr
):
    """The range of a convolution's outputs that have a weight or bias in this step: `first` to before `last`."""
    output = tl.program_id(0)
    client = tl.program_id(1).to(tl.int64)
    levels += client * size
    limit = tl.load(limits + client)
    least = tl.load(levels + bias_at + output).to(tl.int32)
    for start in range(0, depth, SIZE):
        part = start + tl.arange(0, SIZE)
        level = tl.load(levels + weight_at + output * depth + part, mask=part < depth, other=NOWHERE).to(tl.int32)
        least = tl.minimum(least, tl.min(level, 0))
    if least <= limit:
        tl.atomic_min(first + client, output)
        tl.atomic_max(last + client, output + 1)


@triton.jit  # type: ignore[untyped-decorator]
def span(ranges, client, stride, count, SIZE: tl.constexpr, NARROW: tl.constexpr):  # type: ignore[no-untyped-def]
    """First block of channels in a client's range, and how many blocks; all of them unless NARROW."""
    if NARROW:
        first = tl.load(ranges + client) // SIZE
        return first, tl.maximum(tl.cdiv(tl.load(ranges + stride + client), SIZE) - first, 0)
    else:
        return 0, tl.cdiv(count, SIZE)


@triton.jit  # type: ignore[untyped-decorator]
def meets(ranges, client, stride, block, SIZE: tl.constexpr, NARROW: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 where a block of channels has some in the client's range, otherwise 0; 1 unless NARROW."""
    if NARROW:
        low, high = tl.load(ranges + client), tl.load(ranges + stride + client)
        return ((block * SIZE < high) & ((block + 1) * SIZE > low)).to(tl.int32)
    else:
        return 1
