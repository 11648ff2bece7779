"""Embeddings of many clients at once: rows of each client's table by number, and the sums that are their gradient.

Rows of the gradient's table are added up without atomic operations, so that their bits do not depend on chance. Every
position counts how many others come before it when positions are ordered by number, equal ones as they stand: that is
its place, and positions with the same number lie side by side. The first of each 64 of such a group adds these up in
float32, the first of all adds up the sums if there are several; the rows of numbers that do not occur are zero.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.folded.launches import add_parts
from fedgmr.training.stacked.convolution import cdiv

_POSITIONS, _OTHERS = 32, 128  # of a block of comparisons
_AT_ONCE = 16  # rows that are added at a time
_CHUNK = 64  # rows that one program adds


def forward(ids: Tensor, table: Tensor) -> Tensor:
    """The rows [clients, positions, width] of tables [clients, numbers, width], by ids [clients, positions]."""
    clients, positions = ids.shape
    numbers, width = table.shape[1:]
    y = table.new_empty((clients, positions, width))
    wide = min(128, int(triton.next_power_of_2(width)))
    high = min(64, 2048 // wide)
    _look_up[(cdiv(positions, high), cdiv(width, wide), clients)](
        ids, table, y, ids.stride(0), table.stride(0), positions, numbers, width, ROWS=high, WIDTH=wide
    )
    return y


def backward(ids: Tensor, dy: Tensor, dtable: Tensor, padding: int | None) -> None:
    """Write the gradient of the tables to `dtable`; the number `padding` gets none.

    Ids [positions] are those of all samples of all clients; dy is [clients, samples, positions, width] then.
    """
    if ids.dim() == 1:
        sums = dy.new_empty((len(dy), *dy.shape[2:]))
        add_parts(dy.flatten(2), sums)
        ids, dy = ids.expand(len(dy), -1), sums
    clients, positions, width = dy.shape
    numbers = dtable.shape[1]
    dtable.zero_()
    order, ranks, sizes = (ids.new_empty((clients, positions), dtype=torch.int32) for _ in range(3))
    _order[(cdiv(positions, _POSITIONS), clients)](
        ids, order, ranks, sizes, ids.stride(0), positions, -1 if padding is None else padding,
        POSITIONS=_POSITIONS, OTHERS=_OTHERS,
    )  # fmt: skip
    wide = min(128, int(triton.next_power_of_2(width)))
    parts = torch.empty_like(dy) if positions > _CHUNK else dy
    for first in (True, False) if positions > _CHUNK else (True,):
        _add_groups[(positions, cdiv(width, wide), clients)](
            ids, order, ranks, sizes, dy, parts, dtable, ids.stride(0), dtable.stride(0), positions, numbers,
            width, FIRST=first, CHUNK=_CHUNK, ROWS=_AT_ONCE, WIDTH=wide, num_warps=1,
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _look_up(  # type: ignore[no-untyped-def]
    ids, table, y, ids_row, table_row, positions, numbers, width, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """A block of positions; numbers that the table does not have give zeros."""
    client = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = (position < positions)[:, None] & (column < width)[None, :]
    number = tl.load(ids + client * ids_row + position, mask=position < positions, other=-1)
    known = inside & ((number >= 0) & (number < numbers))[:, None]
    value = tl.load(table + client * table_row + number[:, None] * width + column[None, :], mask=known, other=0.0)
    tl.store(y + (client * positions + position)[:, None] * width + column[None, :], value, mask=inside)


@triton.jit(do_not_specialize=["padding"])  # type: ignore[untyped-decorator]
def _order(  # type: ignore[no-untyped-def]
    ids, order, ranks, sizes, ids_row, positions, padding, POSITIONS: tl.constexpr, OTHERS: tl.constexpr
):
    """By number: a block of positions, their ranks in their groups, and how large these are."""
    client = tl.program_id(1).to(tl.int64)
    ids += client * ids_row
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    number = tl.load(ids + position, mask=position < positions, other=0).to(tl.int32)
    lower = tl.zeros([POSITIONS, OTHERS], tl.int32)  # others with a smaller number
    sooner = tl.zeros([POSITIONS, OTHERS], tl.int32)  # with the same, before this one
    equal = tl.zeros([POSITIONS, OTHERS], tl.int32)  # with the same
    for start in range(0, positions, OTHERS):
        other = start + tl.arange(0, OTHERS)
        its = tl.load(ids + other, mask=other < positions, other=2147483647).to(tl.int32)
        same = its[None, :] == number[:, None]
        before = other[None, :] < position[:, None]
        lower += (its[None, :] < number[:, None]).to(tl.int32)
        sooner += (same & before).to(tl.int32)
        equal += same.to(tl.int32)
    rank = tl.sum(sooner, 1)
    place = tl.sum(lower, 1) + rank
    size = tl.where(number == padding, 0, tl.sum(equal, 1))
    at, real = client * positions + place, position < positions
    tl.store(order + at, position, mask=real)
    tl.store(ranks + at, rank, mask=real)
    tl.store(sizes + at, size, mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _add_groups(  # type: ignore[no-untyped-def]
    ids, order, ranks, sizes, dy, parts, dtable, ids_row, dtable_row, positions, numbers, width,
    FIRST: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """FIRST: the sum of a chunk of a group, for the table if it is the only one; then of a group's several sums."""
    client = tl.program_id(2).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = column < width
    own = client * positions + tl.program_id(0)
    size = tl.load(sizes + own)
    rank = tl.load(ranks + own)
    if FIRST:
        count = tl.where(rank % CHUNK == 0, tl.minimum(CHUNK, size - rank), 0)
    else:
        count = tl.where(rank == 0, tl.where(size > CHUNK, tl.cdiv(size, CHUNK), 0), 0)
    if count > 0:
        sums = tl.zeros([ROWS, WIDTH], tl.float32)
        for start in range(0, count, ROWS):
            part = start + tl.arange(0, ROWS)
            inside = (part < count)[:, None] & there[None, :]
            if FIRST:
                position = client * positions + tl.load(order + own + part, mask=part < count, other=0)
                sums += tl.load(dy + position[:, None] * width + column[None, :], mask=inside, other=0.0)
            else:
                place = own + part * CHUNK
                sums += tl.load(parts + place[:, None] * width + column[None, :], mask=inside, other=0.0)
        total = tl.sum(sums, 0)
        number = tl.load(ids + client * ids_row + tl.load(order + own))
        known = tl.where(number < numbers, tl.where(number >= 0, width, 0), 0)
        if FIRST:
            known = tl.where(size > CHUNK, 0, known)
            tl.store(parts + own * width + column, total, mask=column < tl.where(size > CHUNK, width, 0))
        tl.store(dtable + client * dtable_row + number * width + column, total, mask=column < known)
