"""Self-attention between the projections of many clients at once: scores, mask, softmax, dropout, sum of values.

A program works for one head of one sample. It reads queries, keys and values where the input projection has left them
and writes what the output projection reads; scores stay on the chip. On the way back one program has all queries of a
sample, so that nothing is added from several programs: samples have at most 128 positions (`plan.py`).

Dropout: the row of a query, numbered within its client, takes two words from the client's seed and the call's number as
in `dropout.py`; every key's number is then mixed with them (multiplied and shifted: a whole Philox for every score
would cost more than the attention). So the mask depends on the client's own places alone.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.folded.dropout import words
from fedgmr.training.stacked.convolution import EXACT, Tiles, cdiv, power

Hidden = Literal["none", "causal"] | Tensor  # which keys a query does not see: [queries, keys], True for those

_LOG2E = tl.constexpr(1.4426950408889634)
_CAUSAL, _GIVEN = tl.constexpr(1), tl.constexpr(2)
# Rows are queries, columns are keys.
_FORWARD = Tiles(rows=64, columns=32, stages=2)
_BACKWARD = Tiles(rows=128, columns=64, warps=8, stages=2)
_BACKWARD_EXACT = Tiles(rows=128, columns=16, warps=8, stages=2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention:
    """Softmax(queries · keysᵀ / √size) · values for every head; a query that sees nothing gives zeros."""

    heads: int
    hidden: Hidden
    precision: str
    p: float = 0.0  # the share of the softmax's results that is dropped
    seeds: Tensor | None = None  # of the clients in this step, int64; needed for dropout
    number: int = 0  # of the call within the step
    scales: Tensor | None = None  # 1 / √size of each client, where it does not have all of a head

    def forward(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """The results [samples, length, heads · size], and the log-sum-exp of scores [samples, heads, length].

        `qkv` is [clients · samples, length, 3 · heads · size]: queries, keys, values, each by head. The log-sum-exp is
        one of powers of two.
        """
        samples, length, columns = qkv.shape
        out, heights = qkv.new_empty((samples, length, columns // 3)), qkv.new_empty((samples, self.heads, length))
        self._launch(_attend, _FORWARD if self.precision == "tf32" else EXACT, qkv, out, heights)
        return out, heights

    def backward(self, dout: Tensor, qkv: Tensor, out: Tensor, heights: Tensor) -> Tensor:
        """The gradient of `qkv`, from that of the results and what `forward` gave."""
        tiles, dqkv = _BACKWARD if self.precision == "tf32" else _BACKWARD_EXACT, torch.empty_like(qkv)
        assert qkv.shape[1] <= tiles.rows
        self._launch(_attend_back, tiles, qkv, out, dout, heights, dqkv)
        return dqkv

    def _launch(self, kernel: Any, tiles: Tiles, qkv: Tensor, *others: Tensor) -> None:
        """Launch a kernel whose programs have a head and a block of queries; what is not read may be anything."""
        assert self.p == 0.0 or self.seeds is not None
        (samples, length, columns), hidden = qkv.shape, self.hidden
        mask, kind = qkv, int(not isinstance(hidden, Tensor) and hidden == "causal")
        if isinstance(hidden, Tensor):
            mask, kind = hidden.contiguous().view(torch.uint8), 2
        clients = next((len(each) for each in (self.seeds, self.scales) if each is not None), 1)
        seeds, scales = (qkv if each is None else each for each in (self.seeds, self.scales))
        size, longest = columns // (3 * self.heads), power(length)
        kernel[(samples * self.heads, cdiv(length, min(tiles.rows, longest)))](
            qkv, mask, seeds, scales, samples // clients, *others, length, self.heads, self.number, self.p, size**-0.5,
            HEAD=size, WIDTH=power(size), QUERIES=min(tiles.rows, longest), KEYS=min(tiles.columns, longest),
            HIDDEN=kind, DROP=self.p > 0.0, NARROW=self.scales is not None, PRECISION=self.precision, **tiles.launch,
        )  # fmt: skip


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


@triton.jit  # type: ignore[untyped-decorator]
def _place(length, heads, HEAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program's sample and head, the columns of all heads, and where the head's queries begin."""
    sample = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    columns = heads * HEAD
    return sample, head, columns, sample * length * 3 * columns + head * HEAD


@triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    qkv, hidden, seeds, scales, samples, out, heights, length, heads, number, p, scale, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, HIDDEN: tl.constexpr, DROP: tl.constexpr,
    NARROW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries over all keys that they see."""
    sample, head, columns, first_at = _place(length, heads, HEAD)
    if NARROW:
        scale = tl.load(scales + sample // samples)
    qkv += first_at
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
def _attend_back(  # type: ignore[no-untyped-def]
    qkv, hidden, seeds, scales, samples, out, dout, heights, dqkv, length, heads, number, p, scale, HEAD: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, HIDDEN: tl.constexpr, DROP: tl.constexpr,
    NARROW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of all queries, and of keys and values block by block."""
    sample, head, columns, first_at = _place(length, heads, HEAD)
    if NARROW:
        scale = tl.load(scales + sample // samples)
    qkv += first_at
    dqkv += first_at
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
