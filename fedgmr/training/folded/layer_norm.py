"""Layer normalisation of many clients at once, or scale and shift alone, behind other normalisations.

A weight gradient is the sum of a column: programs add shares of the rows, and one more kernel adds the shares.
"""

import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.folded.launches import add_parts, optional
from fedgmr.training.stacked.convolution import cdiv

_SHARES = 128  # of a client's rows, at most
_LEAST_ROWS = 32  # of a share


def forward(
    x: Tensor, g: Tensor | None, b: Tensor | None, eps: float | None, kept: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of x [clients, rows, width] to mean 0 and variance 1, then times scale plus shift [clients, width].

    Returns the result, and the mean and the inverse standard deviation [clients, rows]. Without `eps` there is only
    scale and shift, and the latter two are empty. Where `kept` (bool [clients, width]) says no, there is no number: it
    does not count, and the result is zero.
    """
    assert kept is None or eps is not None
    clients, rows, width = x.shape
    y = x.new_empty(x.shape)
    mean, rstd = (x.new_empty((clients, 0 if eps is None else rows)) for _ in range(2))
    high, blocks, sizes = _block(width, whole=eps is not None)
    (scale, scale_row), (shift, shift_row) = optional(g, x), optional(b, x)
    _normalise[(cdiv(rows, high), clients, blocks)](
        x, scale, shift, y, mean, rstd, x if kept is None else kept, scale_row, shift_row, rows, width, eps or 0.0,
        SCALE=g is not None, SHIFT=b is not None, NORM=eps is not None, NARROW=kept is not None, **sizes,
    )  # fmt: skip
    return y, mean, rstd


def backward(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, g: Tensor | None, dg: Tensor | None, db: Tensor | None,
    kept: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Write the gradients of scale and shift, where there are such; return that of the inputs."""
    clients, rows, width = x.shape
    dx, norm = x.new_empty(x.shape), mean.numel() > 0
    high, blocks, sizes = _block(width, whole=norm)
    share = cdiv(max(_LEAST_ROWS, cdiv(rows, _SHARES)), high) * high
    shares = cdiv(rows, share)
    parts = dx if dg is None else x.new_empty((clients, shares, 2 * width))
    scale, scale_row = optional(g, x)
    _normalise_back[(shares, clients, blocks)](
        dy, x, mean, rstd, scale, dx, parts, x if kept is None else kept, scale_row, rows, width, share, shares,
        SCALE=g is not None, WISHED=dg is not None, NORM=norm, NARROW=kept is not None, **sizes,
    )  # fmt: skip
    if dg is not None:
        add_parts(parts, dg, db, width)
    return dx


def _block(width: int, *, whole: bool) -> tuple[int, int, dict[str, int]]:
    """Rows of a block, blocks of a row, which are one if it must be `whole`, and what a kernel is told of them."""
    wide = int(triton.next_power_of_2(width if whole else min(width, 128)))
    high = max(1, min(64, 2048 // wide))
    return high, cdiv(width, wide), {"ROWS": high, "WIDTH": wide, "num_warps": 4 if wide <= 2048 else 8}


@triton.jit
def _counted(kept, client, column, there, width):  # type: ignore[no-untyped-def]
    """Which columns a client has, and how many."""
    there = there & (tl.load(kept + client * width + column, mask=there, other=0) != 0)
    return there, tl.sum(there.to(tl.int32), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    x, g, b, y, means, rstds, kept, g_row, b_row, rows, width, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    SCALE: tl.constexpr, SHIFT: tl.constexpr, NORM: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """A block of rows; if not NORM, of some of their columns."""
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    if not NORM:
        column += tl.program_id(2) * WIDTH
    real, there = row < rows, column < width
    room = real[:, None] & there[None, :]
    count = width
    if NARROW:
        there, count = _counted(kept, client, column, there, width)
    inside = real[:, None] & there[None, :]
    at = (client * rows + row)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0)
    if NORM:
        mean = tl.sum(value, 1) / count
        value = tl.where(inside, value - mean[:, None], 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(value * value, 1) / count + eps)
        value = value * rstd[:, None]
    if SCALE:
        value = value * tl.load(g + client * g_row + column, mask=there, other=0.0)[None, :]
    if SHIFT:
        value = value + tl.load(b + client * b_row + column, mask=there, other=0.0)[None, :]
    tl.store(y + at, value, mask=room)
    if NORM:
        tl.store(means + client * rows + row, mean, mask=real)
        tl.store(rstds + client * rows + row, rstd, mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _normalise_back(  # type: ignore[no-untyped-def]
    dy, x, means, rstds, g, dx, parts, kept, g_row, rows, width, share, shares, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, SCALE: tl.constexpr, WISHED: tl.constexpr, NORM: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """The gradient of a share of rows, and its part of the columns' sums."""
    client = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, WIDTH)
    if not NORM:
        column += tl.program_id(2) * WIDTH
    known = column < width
    there, count = known, width
    if NARROW:
        there, count = _counted(kept, client, column, known, width)
    if SCALE:
        scale = tl.load(g + client * g_row + column, mask=there, other=0.0)[None, :]
    scales = tl.zeros([ROWS, WIDTH], tl.float32)
    shifts = tl.zeros([ROWS, WIDTH], tl.float32)
    first = tl.program_id(0) * share
    for start in range(first, tl.minimum(rows, first + share), ROWS):
        row = start + tl.arange(0, ROWS)
        real = row < rows
        inside = real[:, None] & there[None, :]
        at = (client * rows + row)[:, None] * width + column[None, :]
        if NORM:
            mean = tl.load(means + client * rows + row, mask=real, other=0.0)
            rstd = tl.load(rstds + client * rows + row, mask=real, other=0.0)
        slope = tl.load(dy + at, mask=inside, other=0.0)
        value = tl.load(x + at, mask=inside, other=0.0)
        if NORM:
            value = (value - mean[:, None]) * rstd[:, None]
            value = tl.where(inside, value, 0.0)
        if WISHED:
            scales += slope * value
            shifts += slope
        if SCALE:
            slope = slope * scale
        if NORM:
            along = tl.sum(slope * value, 1) / count
            level = tl.sum(slope, 1) / count
            slope = (slope - value * along[:, None] - level[:, None]) * rstd[:, None]
        if NARROW:
            slope = tl.where(inside, slope, 0.0)
        tl.store(dx + at, slope, mask=real[:, None] & known[None, :])
    if WISHED:
        to = parts + (client * shares + tl.program_id(0)) * 2 * width + column
        tl.store(to, tl.sum(scales, 0), mask=known)
        tl.store(to + width, tl.sum(shifts, 0), mask=known)
