"""Layer normalisation of many clients at once, and scale and shift per channel behind other normalisations.

Activations are [clients, rows, width], a client's scale and shift lie in a row of a matrix. A weight gradient is the
sum of a column: programs add shares of the rows, and one more kernel adds the shares in their order. How many rows
a share has follows from the sizes of one client.
"""

import triton
import triton.language as tl
from torch import Tensor

_SHARES = 128  # of a client's rows, at most
_LEAST_ROWS = 32  # of a share


def forward(x: Tensor, g: Tensor | None, b: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Each row to mean 0 and variance 1, times scale plus shift.

    Args:
        x: [clients, rows, width].
        g: the scale, [clients, width], or None.
        b: the shift, [clients, width], or None.
        eps: added to the variance.

    Returns:
        The result, and the mean and the inverse standard deviation of each row, [clients, rows].
    """
    clients, rows, width = x.shape
    y = x.new_empty(x.shape)
    mean, rstd = x.new_empty((clients, rows)), x.new_empty((clients, rows))
    wide, high = _block(width)
    _normalise[(triton.cdiv(rows, high), clients)](
        x, x if g is None else g, x if b is None else b, y, mean, rstd, 0 if g is None else g.stride(0),
        0 if b is None else b.stride(0), rows, width, eps, ROWS=high, WIDTH=wide, SCALE=g is not None,
        SHIFT=b is not None, num_warps=_warps(wide),
    )  # fmt: skip
    return y, mean, rstd


def backward(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, g: Tensor | None, dg: Tensor | None, db: Tensor | None
) -> Tensor:
    """Write the gradients of scale and shift where they are wished; return that of the inputs.

    Args:
        dy: the gradient of the result, [clients, rows, width].
        x: the inputs.
        mean: of each row, as `forward` gave it.
        rstd: likewise.
        g: the scale, or None.
        dg: where its gradient is written, [clients, width].
        db: where that of the shift is written.
    """
    clients, rows, width = x.shape
    dx = x.new_empty(x.shape)
    wide, high = _block(width)
    share, shares = _shared(rows, high)
    wished = dg is not None or db is not None
    parts = x.new_empty((clients, shares, 2, width)) if wished else dx
    _normalise_back[(shares, clients)](
        dy, x, mean, rstd, x if g is None else g, dx, parts, 0 if g is None else g.stride(0), rows, width, share,
        shares, ROWS=high, WIDTH=wide, SCALE=g is not None, WISHED=wished, num_warps=_warps(wide),
    )  # fmt: skip
    _add_up(parts, dg, db, width)
    return dx


def affine_forward(x: Tensor, g: Tensor, b: Tensor | None) -> Tensor:
    """X · scale + shift, with a scale and a shift [clients, width] per client and number of a row."""
    clients, rows, width = x.shape
    y = x.new_empty(x.shape)
    wide, high = _block(min(width, 128))
    _affine[(triton.cdiv(rows, high), triton.cdiv(width, wide), clients)](
        x, g, x if b is None else b, y, g.stride(0), 0 if b is None else b.stride(0), rows, width,
        ROWS=high, WIDTH=wide, SHIFT=b is not None,
    )  # fmt: skip
    return y


def affine_backward(dy: Tensor, x: Tensor, g: Tensor, dg: Tensor, db: Tensor | None) -> Tensor:
    """Write the gradients of scale and shift; return that of the inputs."""
    clients, rows, width = x.shape
    dx = x.new_empty(x.shape)
    wide, high = _block(min(width, 128))
    share, shares = _shared(rows, high)
    parts = x.new_empty((clients, shares, 2, width))
    _affine_back[(shares, triton.cdiv(width, wide), clients)](
        dy, x, g, dx, parts, g.stride(0), rows, width, share, shares, ROWS=high, WIDTH=wide
    )
    _add_up(parts, dg, db, width)
    return dx


def _block(width: int) -> tuple[int, int]:
    """Numbers and rows of a block: whole rows, and as many as fill a program."""
    wide: int = triton.next_power_of_2(width)
    return wide, max(1, min(64, 2048 // wide))


def _warps(wide: int) -> int:
    return 4 if wide <= 2048 else 8


def _shared(rows: int, high: int) -> tuple[int, int]:
    """Rows of a share, and how many shares there are."""
    share = triton.cdiv(max(_LEAST_ROWS, triton.cdiv(rows, _SHARES)), high) * high
    return share, triton.cdiv(rows, share)


def _add_up(parts: Tensor, dg: Tensor | None, db: Tensor | None, width: int) -> None:
    if dg is not None or db is not None:
        clients, shares = parts.shape[:2]
        _add_parts[(triton.cdiv(width, 32), 2, clients)](
            parts, parts if dg is None else dg, parts if db is None else db, 0 if dg is None else dg.stride(0),
            0 if db is None else db.stride(0), shares, width if dg is not None else 0, width if db is not None else 0,
            width, COLUMNS=32,
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    x, g, b, y, means, rstds, g_row, b_row, rows, width, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    SCALE: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """A block of rows."""
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    real, there = row < rows, column < width
    inside = real[:, None] & there[None, :]
    at = (client * rows + row)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0)
    mean = tl.sum(value, 1) / width
    value = tl.where(inside, value - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(value * value, 1) / width + eps)
    value = value * rstd[:, None]
    if SCALE:
        value = value * tl.load(g + client * g_row + column, mask=there, other=0.0)[None, :]
    if SHIFT:
        value = value + tl.load(b + client * b_row + column, mask=there, other=0.0)[None, :]
    tl.store(y + at, value, mask=inside)
    tl.store(means + client * rows + row, mean, mask=real)
    tl.store(rstds + client * rows + row, rstd, mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _normalise_back(  # type: ignore[no-untyped-def]
    dy, x, means, rstds, g, dx, parts, g_row, rows, width, share, shares, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    SCALE: tl.constexpr, WISHED: tl.constexpr,
):  # fmt: skip
    """The gradient of a share of rows, and its part of the columns' sums."""
    client = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, WIDTH)
    there = column < width
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
        mean = tl.load(means + client * rows + row, mask=real, other=0.0)
        rstd = tl.load(rstds + client * rows + row, mask=real, other=0.0)
        slope = tl.load(dy + at, mask=inside, other=0.0)
        value = (tl.load(x + at, mask=inside, other=0.0) - mean[:, None]) * rstd[:, None]
        value = tl.where(inside, value, 0.0)
        if WISHED:
            scales += slope * value
            shifts += slope
        if SCALE:
            slope = slope * scale
        along = tl.sum(slope * value, 1) / width
        level = tl.sum(slope, 1) / width
        tl.store(dx + at, (slope - value * along[:, None] - level[:, None]) * rstd[:, None], mask=inside)
    if WISHED:
        to = parts + (client * shares + tl.program_id(0)) * 2 * width + column
        tl.store(to, tl.sum(scales, 0), mask=there)
        tl.store(to + width, tl.sum(shifts, 0), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _affine(  # type: ignore[no-untyped-def]
    x, g, b, y, g_row, b_row, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr, SHIFT: tl.constexpr
):
    """A block of rows and columns."""
    client = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = column < width
    inside = (row < rows)[:, None] & there[None, :]
    at = (client * rows + row)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0)
    value = value * tl.load(g + client * g_row + column, mask=there, other=0.0)[None, :]
    if SHIFT:
        value = value + tl.load(b + client * b_row + column, mask=there, other=0.0)[None, :]
    tl.store(y + at, value, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _affine_back(  # type: ignore[no-untyped-def]
    dy, x, g, dx, parts, g_row, rows, width, share, shares, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """The gradient of a share of rows, and its part of the columns' sums."""
    client = tl.program_id(2).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = column < width
    scale = tl.load(g + client * g_row + column, mask=there, other=0.0)[None, :]
    scales = tl.zeros([ROWS, WIDTH], tl.float32)
    shifts = tl.zeros([ROWS, WIDTH], tl.float32)
    first = tl.program_id(0) * share
    for start in range(first, tl.minimum(rows, first + share), ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & there[None, :]
        at = (client * rows + row)[:, None] * width + column[None, :]
        slope = tl.load(dy + at, mask=inside, other=0.0)
        scales += slope * tl.load(x + at, mask=inside, other=0.0)
        shifts += slope
        tl.store(dx + at, slope * scale, mask=inside)
    to = parts + (client * shares + tl.program_id(0)) * 2 * width + column
    tl.store(to, tl.sum(scales, 0), mask=there)
    tl.store(to + width, tl.sum(shifts, 0), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _add_parts(  # type: ignore[no-untyped-def]
    parts, dg, db, dg_row, db_row, shares, scales, shifts, width, COLUMNS: tl.constexpr
):
    """The sum of a client's shares of the scale, or of the shift, which is the second; as many numbers as wished."""
    second = tl.program_id(1)
    client = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < width
    sums = tl.zeros([32, COLUMNS], tl.float32)
    for start in range(0, shares, 32):
        share = start + tl.arange(0, 32)
        at = ((client * shares + share)[:, None] * 2 + second) * width + column[None, :]
        sums += tl.load(parts + at, mask=(share < shares)[:, None] & there[None, :], other=0.0)
    total = tl.sum(sums, 0)
    tl.store(dg + client * dg_row + column, total, mask=column < tl.where(second == 0, scales, 0))
    tl.store(db + client * db_row + column, total, mask=column < tl.where(second == 0, 0, shifts))
