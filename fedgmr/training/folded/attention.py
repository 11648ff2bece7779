"""Self-attention between the projections of many clients at once: scores, mask, softmax, dropout, sum of values.

A program works for one head of one sample. It reads queries, keys and values where the input projection has left them
and writes what the output projection reads; scores stay on the chip. Longer samples are walked over in blocks, with a
pass for the gradient of the queries and one for keys and values, so that nothing is added from several programs.

Dropout: the row of a query, numbered within its client, takes two words from the client's seed and the call's number as
in `dropout.py`; every key's number is then mixed with them (multiplied and shifted: a whole Philox for every score
would cost more than the attention). So the mask depends on the client's own places alone.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.folded.dropout import words

Hidden = Literal["none", "causal"] | Tensor  # which keys a query does not see

_ONE_BLOCK = 128  # queries that one program takes in the backward pass
_LOG2E = tl.constexpr(1.4426950408889634)
_CAUSAL, _GIVEN = tl.constexpr(1), tl.constexpr(2)


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Queries and keys of a block, and how a program runs it."""

    queries: int
    keys: int
    warps: int
    stages: int = 2


FORWARD = Tiles(queries=64, keys=32, warps=4)
BACKWARD = Tiles(queries=_ONE_BLOCK, keys=64, warps=8)  # where one program takes all queries
BACKWARD_LONG = Tiles(queries=64, keys=64, warps=4)
EXACT = Tiles(queries=32, keys=32, warps=4)  # for "ieee", whose products are not for matrix units


def forward(
    qkv: Tensor, heads: int, hidden: Hidden, precision: str, *,
    p: float = 0.0, seeds: Tensor | None = None, number: int = 0, tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Softmax(queries · keysᵀ / √size) · values for every head.

    Args:
        qkv: [clients · samples, length, 3 · heads · size], contiguous: queries, keys, values, each by head.
        heads: how many there are.
        hidden: "none", "causal", or a bool tensor [queries, keys] with True for what is not seen; a query that sees
            nothing gives zeros.
        precision: "tf32" or "ieee".
        p: the share of the softmax's results that is dropped.
        seeds: of the clients in this step, [clients], int64; needed for dropout.
        number: of the call within the step.
        tiles: other block sizes.

    Returns:
        [clients · samples, length, heads · size], and the log-sum-exp of the scores [clients · samples, heads, length]
        in powers of two.
    """
    samples, length, size = _sizes(qkv, heads)
    out = qkv.new_empty((samples, length, heads * size))
    heights = qkv.new_empty((samples, heads, length))
    tiles = tiles or (FORWARD if precision == "tf32" else EXACT)
    queries, keys = (min(most, _power(length)) for most in (tiles.queries, tiles.keys))
    _attend[(samples * heads, triton.cdiv(length, queries))](
        qkv, *_shared(qkv, hidden, p, seeds), out, heights, length, heads, number, p, size**-0.5, HEAD=size,
        WIDTH=_power(size), QUERIES=queries, KEYS=keys, HIDDEN=_kind(hidden), DROP=p > 0.0, PRECISION=precision,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out, heights


def backward(
    dout: Tensor, qkv: Tensor, out: Tensor, heights: Tensor, heads: int, hidden: Hidden, precision: str, *,
    p: float = 0.0, seeds: Tensor | None = None, number: int = 0, tiles: Tiles | None = None,
) -> Tensor:  # fmt: skip
    """The gradient of `qkv`, from that of the result; the other arguments are those of `forward`, and what it gave."""
    samples, length, size = _sizes(qkv, heads)
    dqkv = torch.empty_like(qkv)
    whole = length <= (_ONE_BLOCK if precision == "tf32" else EXACT.queries)
    tiles = tiles or ((BACKWARD if whole else BACKWARD_LONG) if precision == "tf32" else EXACT)
    queries, keys = (min(most, _power(length)) for most in (_ONE_BLOCK if whole else tiles.queries, tiles.keys))
    shared = _shared(qkv, hidden, p, seeds)
    deltas = torch.empty_like(heights)
    if whole:
        _all_back[(samples * heads,)](
            qkv, *shared, out, dout, heights, dqkv, length, heads, number, p, size**-0.5, HEAD=size, WIDTH=_power(size),
            QUERIES=queries, KEYS=keys, HIDDEN=_kind(hidden), DROP=p > 0.0, PRECISION=precision,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        return dqkv
    _queries_back[(samples * heads, triton.cdiv(length, queries))](
        qkv, *shared, out, dout, heights, deltas, dqkv, length, heads, number, p, size**-0.5, HEAD=size,
        WIDTH=_power(size), QUERIES=queries, KEYS=keys, HIDDEN=_kind(hidden), DROP=p > 0.0, PRECISION=precision,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    _keys_back[(samples * heads, triton.cdiv(length, keys))](
        qkv, *shared, dout, heights, deltas, dqkv, length, heads, number, p, size**-0.5, HEAD=size,
        WIDTH=_power(size), QUERIES=queries, KEYS=keys, HIDDEN=_kind(hidden), DROP=p > 0.0, PRECISION=precision,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return dqkv


def _sizes(qkv: Tensor, heads: int) -> tuple[int, int, int]:
    samples, length, columns = qkv.shape
    return samples, length, columns // (3 * heads)


def _power(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _kind(hidden: Hidden) -> int:
    return 2 if isinstance(hidden, Tensor) else int(hidden == "causal")


def _shared(qkv: Tensor, hidden: Hidden, p: float, seeds: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """The mask as bytes, the seeds, and how many samples a client has; where they are not read, anything."""
    assert p == 0.0 or seeds is not None
    mask = hidden.contiguous().view(torch.uint8) if isinstance(hidden, Tensor) else qkv
    return mask, qkv if seeds is None else seeds, len(qkv) // (1 if seeds is None else len(seeds))


@triton.jit  # type: ignore[untyped-decorator]
def _seen(query, key, hidden, length, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which keys the queries see; one of both is a row, the other a column."""
    seen = (query < length) & (key < length)
    if HIDDEN == _CAUSAL:
        seen = seen & (key <= query)
    if HIDDEN == _GIVEN:
        seen = seen & (tl.load(hidden + query * length + key, mask=seen, other=1) == 0)
    return seen


@triton.jit
def _row_words(seeds, number, sample, head, query, samples, length, heads):  # type: ignore[no-untyped-def]
    """Two random words for the row of every query."""
    client = sample // samples
    counter = (((sample - client * samples) * heads + head) * length + query).to(tl.int32)
    first, second, _, _ = words(tl.load(seeds + client), number, counter)
    return first, second


@triton.jit
def _factor(first, second, key, p):  # type: ignore[no-untyped-def]
    """Zero where a weight is dropped, else 1 / (1 - p)."""
    word = first + key.to(tl.uint32) * 0x9E3779B9
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15) ^ second) * 0x846CA68B
    word = word ^ (word >> 16)
    return tl.where(tl.uint_to_uniform_float(word) >= p, 1.0 / (1.0 - p), 0.0)


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    qkv, hidden, seeds, samples, out, heights, length, heads, number, p, scale, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, HIDDEN: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries over all keys that they see."""
    sample = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    columns = heads * HEAD
    qkv += sample * length * 3 * columns + head * HEAD
    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    column = tl.arange(0, WIDTH)
    known = column < HEAD
    real = query < length
    mine = real[:, None] & known[None, :]
    queries = tl.load(qkv + query[:, None] * 3 * columns + column[None, :], mask=mine, other=0.0)
    if DROP:
        first, second = _row_words(seeds, number, sample, head, query, samples, length, heads)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, WIDTH], tl.float32)
    last = length
    if HIDDEN == _CAUSAL:
        last = tl.minimum(length, (tl.program_id(1) + 1) * QUERIES)
    for start in range(0, last, KEYS):
        key = start + tl.arange(0, KEYS)
        there = key < length
        at = columns + key[None, :] * 3 * columns + column[:, None]
        keys = tl.load(qkv + at, mask=there[None, :] & known[:, None], other=0.0)
        at = 2 * columns + key[:, None] * 3 * columns + column[None, :]
        values = tl.load(qkv + at, mask=there[:, None] & known[None, :], other=0.0)
        score = tl.dot(queries, keys, input_precision=PRECISION) * (scale * _LOG2E)
        seen = _seen(query[:, None], key[None, :], hidden, length, HIDDEN)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        power = tl.exp2(score - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(power, 1)
        top = higher
        if DROP:
            power = power * _factor(first[:, None], second[:, None], key[None, :], p)
        sums = tl.dot(power, values, sums * shrink[:, None], input_precision=PRECISION)
    blind = total == 0.0
    total = tl.where(blind, 1.0, total)
    to = (sample * length + query[:, None]) * columns + head * HEAD + column[None, :]
    tl.store(out + to, sums / total[:, None], mask=mine)
    height = tl.where(blind, float("inf"), top + tl.log2(total))
    tl.store(heights + (sample * heads + head) * length + query, height, mask=real)


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _all_back(  # type: ignore[no-untyped-def]
    qkv, hidden, seeds, samples, out, dout, heights, dqkv, length, heads, number, p, scale, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, HIDDEN: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """All gradients of a head whose queries are one block."""
    sample = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    columns = heads * HEAD
    qkv += sample * length * 3 * columns + head * HEAD
    dqkv += sample * length * 3 * columns + head * HEAD
    query = tl.arange(0, QUERIES)
    column = tl.arange(0, WIDTH)
    known = column < HEAD
    real = query < length
    mine = real[:, None] & known[None, :]
    place = query[:, None] * 3 * columns + column[None, :]
    to = (sample * length + query[:, None]) * columns + head * HEAD + column[None, :]
    queries = tl.load(qkv + place, mask=mine, other=0.0)
    slopes = tl.load(dout + to, mask=mine, other=0.0)
    delta = tl.sum(slopes * tl.load(out + to, mask=mine, other=0.0), 1)
    height = tl.load(heights + (sample * heads + head) * length + query, mask=real, other=float("inf"))
    if DROP:
        first, second = _row_words(seeds, number, sample, head, query, samples, length, heads)
    sums = tl.zeros([QUERIES, WIDTH], tl.float32)
    for start in range(0, length, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = (key < length)[:, None] & known[None, :]
        at = columns + key[:, None] * 3 * columns + column[None, :]
        keys = tl.load(qkv + at, mask=inside, other=0.0)
        values = tl.load(qkv + columns + at, mask=inside, other=0.0)
        score = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * (scale * _LOG2E)
        seen = _seen(query[:, None], key[None, :], hidden, length, HIDDEN)
        power = tl.exp2(tl.where(seen, score, float("-inf")) - height[:, None])
        pull = tl.dot(slopes, tl.trans(values), input_precision=PRECISION)
        weight = power
        if DROP:
            factor = _factor(first[:, None], second[:, None], key[None, :], p)
            weight = power * factor
            pull = pull * factor
        tl.store(dqkv + columns + at, tl.dot(tl.trans(weight), slopes, input_precision=PRECISION), mask=inside)
        slope = power * (pull - delta[:, None]) * scale
        tl.store(dqkv + at, tl.dot(tl.trans(slope), queries, input_precision=PRECISION), mask=inside)
        sums = tl.dot(slope, keys, sums, input_precision=PRECISION)
    tl.store(dqkv + place, sums, mask=mine)


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _queries_back(  # type: ignore[no-untyped-def]
    qkv, hidden, seeds, samples, out, dout, heights, deltas, dqkv, length, heads, number, p, scale, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, HIDDEN: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries, over all keys that they see; leaves slope · result of each for the keys."""
    sample = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    columns = heads * HEAD
    qkv += sample * length * 3 * columns + head * HEAD
    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    column = tl.arange(0, WIDTH)
    known = column < HEAD
    real = query < length
    mine = real[:, None] & known[None, :]
    place = query[:, None] * 3 * columns + column[None, :]
    to = (sample * length + query[:, None]) * columns + head * HEAD + column[None, :]
    queries = tl.load(qkv + place, mask=mine, other=0.0)
    slopes = tl.load(dout + to, mask=mine, other=0.0)
    delta = tl.sum(slopes * tl.load(out + to, mask=mine, other=0.0), 1)
    row = (sample * heads + head) * length + query
    tl.store(deltas + row, delta, mask=real)
    height = tl.load(heights + row, mask=real, other=float("inf"))
    if DROP:
        first, second = _row_words(seeds, number, sample, head, query, samples, length, heads)
    sums = tl.zeros([QUERIES, WIDTH], tl.float32)
    last = length
    if HIDDEN == _CAUSAL:
        last = tl.minimum(length, (tl.program_id(1) + 1) * QUERIES)
    for start in range(0, last, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = (key < length)[:, None] & known[None, :]
        at = columns + key[:, None] * 3 * columns + column[None, :]
        keys = tl.load(qkv + at, mask=inside, other=0.0)
        values = tl.load(qkv + columns + at, mask=inside, other=0.0)
        score = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * (scale * _LOG2E)
        seen = _seen(query[:, None], key[None, :], hidden, length, HIDDEN)
        power = tl.exp2(tl.where(seen, score, float("-inf")) - height[:, None])
        pull = tl.dot(slopes, tl.trans(values), input_precision=PRECISION)
        if DROP:
            pull = pull * _factor(first[:, None], second[:, None], key[None, :], p)
        slope = power * (pull - delta[:, None]) * scale
        sums = tl.dot(slope, keys, sums, input_precision=PRECISION)
    tl.store(dqkv + sample * length * 3 * columns + head * HEAD + place, sums, mask=mine)


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _keys_back(  # type: ignore[no-untyped-def]
    qkv, hidden, seeds, samples, dout, heights, deltas, dqkv, length, heads, number, p, scale, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, HIDDEN: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and their values, over all queries that see them; tiles are [keys, queries]."""
    sample = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    columns = heads * HEAD
    qkv += sample * length * 3 * columns + head * HEAD
    dqkv += sample * length * 3 * columns + head * HEAD
    dout += sample * length * columns + head * HEAD
    heights += (sample * heads + head) * length
    deltas += (sample * heads + head) * length
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    column = tl.arange(0, WIDTH)
    known = column < HEAD
    inside = (key < length)[:, None] & known[None, :]
    at = columns + key[:, None] * 3 * columns + column[None, :]
    keys = tl.load(qkv + at, mask=inside, other=0.0)
    values = tl.load(qkv + columns + at, mask=inside, other=0.0)
    key_sums = tl.zeros([KEYS, WIDTH], tl.float32)
    value_sums = tl.zeros([KEYS, WIDTH], tl.float32)
    begin = 0
    if HIDDEN == _CAUSAL:
        begin = (tl.program_id(1) * KEYS) // QUERIES * QUERIES
    for start in range(begin, length, QUERIES):
        query = start + tl.arange(0, QUERIES)
        real = query < length
        mine = real[:, None] & known[None, :]
        queries = tl.load(qkv + query[:, None] * 3 * columns + column[None, :], mask=mine, other=0.0)
        slopes = tl.load(dout + query[:, None] * columns + column[None, :], mask=mine, other=0.0)
        height = tl.load(heights + query, mask=real, other=float("inf"))
        delta = tl.load(deltas + query, mask=real, other=0.0)
        score = tl.dot(keys, tl.trans(queries), input_precision=PRECISION) * (scale * _LOG2E)
        seen = _seen(query[None, :], key[:, None], hidden, length, HIDDEN)
        power = tl.exp2(tl.where(seen, score, float("-inf")) - height[None, :])
        pull = tl.dot(values, tl.trans(slopes), input_precision=PRECISION)
        weight = power
        if DROP:
            first, second = _row_words(seeds, number, sample, head, query, samples, length, heads)
            factor = _factor(first[None, :], second[None, :], key[:, None], p)
            weight = power * factor
            pull = pull * factor
        slope = power * (pull - delta[None, :]) * scale
        value_sums = tl.dot(weight, slopes, value_sums, input_precision=PRECISION)
        key_sums = tl.dot(slope, queries, key_sums, input_precision=PRECISION)
    tl.store(dqkv + at, key_sums, mask=inside)
    tl.store(dqkv + columns + at, value_sums, mask=inside)
