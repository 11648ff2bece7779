"""Dropout of many clients at once, drawn from each client's own seed.

A client's seed differs from step to step; `number` tells the calls of a step apart, such as the layers of a net. The
random words of a place come from Philox with the seed as key and (counter, number, 0, 0) as block. One block of four
words serves four elements: in every 2,048 elements of a client, element i + 512·q takes word q of the counter
512·(block of 2,048) + i. So the mask depends on seed, number and place within the client alone: not on its company,
and the backward pass draws the same one. An element is kept where its word, as a uniform number, is at least p.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_SIZE = 512  # part of the construction: another one draws other masks


def drop(x: Tensor, p: float, seeds: Tensor, number: int) -> Tensor:
    """X with a share `p` of each client's elements zero and the others divided by 1 - p; for its gradient the same.

    Seeds are those of the clients in this step, int64; both passes give the same `number` of the call.
    """
    y = torch.empty_like(x)
    clients, count = len(x), x[0].numel()
    _drop[(triton.cdiv(count, 4 * _SIZE), clients)](
        x, y, seeds, count, number, float(p), 1.0 / (1.0 - p) if p < 1.0 else 0.0, SIZE=_SIZE
    )
    return y


@triton.jit
def words(seed, number, counter):  # type: ignore[no-untyped-def]
    """Four random words for every counter."""
    nothing = counter * 0
    return tl.philox(seed, counter, nothing + number, nothing, nothing)


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _drop(x, y, seeds, count, number, p, scale, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Four times SIZE elements of a client."""
    client = tl.program_id(1).to(tl.int64)
    place = tl.arange(0, SIZE)
    first, second, third, fourth = words(tl.load(seeds + client), number, tl.program_id(0) * SIZE + place)
    x += client * count
    y += client * count
    at = tl.program_id(0) * 4 * SIZE + place
    _scale(x, y, at, count, first, p, scale)
    _scale(x, y, at + SIZE, count, second, p, scale)
    _scale(x, y, at + 2 * SIZE, count, third, p, scale)
    _scale(x, y, at + 3 * SIZE, count, fourth, p, scale)


@triton.jit
def _scale(x, y, at, count, word, p, scale):  # type: ignore[no-untyped-def]
    value = tl.load(x + at, mask=at < count, other=0.0)
    kept = tl.uint_to_uniform_float(word) >= p
    tl.store(y + at, tl.where(kept, value * scale, 0.0), mask=at < count)
