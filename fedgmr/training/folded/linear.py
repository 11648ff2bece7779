"""Linear layers of many clients at once, forward and backward.

The last grid dimension is the client. A client's inputs are [rows, inputs] and contiguous; its weights [outputs,
inputs] lie in a row of a matrix, so that only their first stride is free. Tiles and shares follow from the sizes of one
client alone, and shares are added in the order of their rows: a client's bits do not depend on its company.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

_ENOUGH = 96  # programs a client should keep busy in a weight gradient
_LEAST_ROWS = 128  # of a share of a weight gradient
_SIZE = 1024  # of a block of weights whose shares are added


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """The block sizes of a matrix product, and how a program runs it."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


def forward(x: Tensor, w: Tensor, b: Tensor | None, precision: str, *, tiles: Tiles | None = None) -> Tensor:
    """Inputs · weightᵀ + bias.

    Args:
        x: the inputs, [clients, rows, inputs].
        w: the weights, [clients, outputs, inputs].
        b: the biases, [clients, outputs].
        precision: "tf32" or "ieee".
        tiles: other block sizes than those for the sizes at hand.

    Returns:
        [clients, rows, outputs].
    """
    clients, rows, inputs = x.shape
    outputs = w.shape[1]
    y = x.new_empty((clients, rows, outputs))
    tiles = tiles or product_tiles(rows, outputs, inputs)
    grid = (triton.cdiv(rows, tiles.rows), triton.cdiv(outputs, tiles.columns), clients)
    _product[grid](
        x, w, x if b is None else b, y, w.stride(0), 0 if b is None else b.stride(0), rows, outputs, inputs, 1, inputs,
        ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=tiles.depth, EVEN=inputs % tiles.depth == 0, BIAS=b is not None,
        PRECISION=precision, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return y


def input_gradients(dy: Tensor, w: Tensor, precision: str, *, tiles: Tiles | None = None) -> Tensor:
    """The gradient of the inputs.

    Args:
        dy: the gradient of the outputs, [clients, rows, outputs].
        w: the weights, [clients, outputs, inputs].
        precision: "tf32" or "ieee".
        tiles: other block sizes.
    """
    clients, rows, outputs = dy.shape
    inputs = w.shape[2]
    dx = dy.new_empty((clients, rows, inputs))
    tiles = tiles or product_tiles(rows, inputs, outputs, crosswise=True)
    grid = (triton.cdiv(rows, tiles.rows), triton.cdiv(inputs, tiles.columns), clients)
    _product[grid](
        dy, w, dy, dx, w.stride(0), 0, rows, inputs, outputs, inputs, 1,
        ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=tiles.depth, EVEN=outputs % tiles.depth == 0, BIAS=False,
        PRECISION=precision, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return dx


def weight_gradients(
    dy: Tensor, x: Tensor, dw: Tensor, db: Tensor | None, precision: str, *, tiles: Tiles | None = None
) -> None:
    """Write the gradients of weights and biases.

    Args:
        dy: the gradient of the outputs, [clients, rows, outputs].
        x: the inputs, [clients, rows, inputs].
        dw: where the gradient of the weights is written, [clients, outputs, inputs].
        db: where the gradient of the biases is written, [clients, outputs].
        precision: "tf32" or "ieee".
        tiles: other block sizes.
    """
    (clients, rows, outputs), inputs = dy.shape, x.shape[2]
    tiles = tiles or gradient_tiles(inputs)
    blocks = triton.cdiv(outputs, tiles.rows), triton.cdiv(inputs, tiles.columns)
    splits = max(1, min(triton.cdiv(_ENOUGH, blocks[0] * blocks[1]), rows // _LEAST_ROWS))
    share = triton.cdiv(triton.cdiv(rows, splits), tiles.depth) * tiles.depth
    splits = triton.cdiv(rows, share)
    bias_at = triton.cdiv(outputs * inputs, 16) * 16
    span = bias_at + triton.cdiv(outputs, 16) * 16
    split = splits > 1
    parts = x.new_empty((clients, splits, span)) if split else dw
    _gradients[(*blocks, clients * splits)](
        dy, x, parts, dw if db is None else db, span if split else dw.stride(0), 0 if db is None else db.stride(0),
        bias_at, rows, outputs, inputs, share, splits, OUTPUTS=tiles.rows, INPUTS=tiles.columns, ROWS=tiles.depth,
        SPLIT=split, BIAS=db is not None, PRECISION=precision, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if split:
        _add_shares[(triton.cdiv(span, _SIZE), clients)](
            parts, dw, dw if db is None else db, dw.stride(0), 0 if db is None else db.stride(0), splits, span,
            outputs * inputs, bias_at, 0 if db is None else outputs, SIZE=_SIZE,
        )  # fmt: skip


def product_tiles(rows: int, columns: int, depth: int, *, crosswise: bool = False) -> Tiles:
    """For [rows, depth] x [depth, columns]: wide where little of the last block is empty, else 32 columns.

    With 64 rows and 4 warps the compiler takes Hopper's newer matrix instruction, which wants the sum's numbers side by
    side in both operands. Weights that lie `crosswise` it would bring there one by one, so they get 32 rows.
    """
    height = next((height for height in (16, 32) if rows <= height), 32 if crosswise else 64)
    wide = next((width for width in (128, 64) if 8 * (-columns % width) <= columns), 32)
    return Tiles(rows=height, columns=wide if rows > 32 else 32, depth=64 if depth >= 512 else 32)


def gradient_tiles(inputs: int) -> Tiles:
    """For a weight gradient, added up over rows: both operands lie crosswise."""
    return Tiles(rows=32, columns=64 if 8 * (-inputs % 64) <= inputs else 32, depth=64)


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x, w, b, y, w_row, b_row, rows, columns, depth, deeper, further, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X · w + bias; in w the next number of the sum is `deeper` away, the next column is `further` away."""
    client = tl.program_id(2).to(tl.int64)
    x += client * rows * depth
    y += client * rows * columns
    w += client * w_row
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real, there = row < rows, column < columns
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        part = start + tl.arange(0, DEPTH)
        inside, known = real[:, None], there[None, :]
        if not EVEN:
            inside = inside & (part < depth)[None, :]
            known = known & (part < depth)[:, None]
        value = tl.load(x + row[:, None] * depth + part[None, :], mask=inside, other=0.0)
        weight = tl.load(w + part[:, None] * deeper + column[None, :] * further, mask=known, other=0.0)
        sums = tl.dot(value, weight, sums, input_precision=PRECISION)
    if BIAS:
        sums += tl.load(b + client * b_row + column, mask=there, other=0.0)[None, :]
    tl.store(y + row[:, None] * columns + column[None, :], sums, mask=real[:, None] & there[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _gradients(  # type: ignore[no-untyped-def]
    slopes, inputs, dw, db, dw_row, db_row, bias_at, rows, outputs_count, inputs_count, share, splits,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Slopesᵀ · inputs and the sum of slopes, over `share` rows; if SPLIT, into a row of shares of their own."""
    client = (tl.program_id(2) // splits).to(tl.int64)
    split = tl.program_id(2) % splits
    slopes += client * rows * outputs_count
    inputs += client * rows * inputs_count
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    column = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    there, known = output < outputs_count, column < inputs_count
    last = tl.minimum(rows, (split + 1) * share)
    sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for start in range(split * share, last, ROWS):
        row = start + tl.arange(0, ROWS)
        real = row < last
        slope = tl.load(
            slopes + row[None, :] * outputs_count + output[:, None], mask=real[None, :] & there[:, None], other=0.0
        )
        value = tl.load(
            inputs + row[:, None] * inputs_count + column[None, :], mask=real[:, None] & known[None, :], other=0.0
        )
        sums = tl.dot(slope, value, sums, input_precision=PRECISION)
    if SPLIT:
        dw += tl.program_id(2).to(tl.int64) * dw_row
    else:
        dw += client * dw_row
    tl.store(dw + output[:, None] * inputs_count + column[None, :], sums, mask=there[:, None] & known[None, :])
    if BIAS:  # by the programs of the first inputs
        bias_sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for start in range(split * share, tl.where(tl.program_id(1) == 0, last, 0), ROWS):
            row = start + tl.arange(0, ROWS)
            inside = (row < last)[:, None] & there[None, :]
            bias_sums += tl.load(slopes + row[:, None] * outputs_count + output[None, :], mask=inside, other=0.0)
        to = dw + bias_at if SPLIT else db + client * db_row
        mine = output < tl.where(tl.program_id(1) == 0, outputs_count, 0)
        tl.store(to + output, tl.sum(bias_sums, 0), mask=mine)


@triton.jit  # type: ignore[untyped-decorator]
def _add_shares(  # type: ignore[no-untyped-def]
    parts, dw, db, dw_row, db_row, splits, span, weights, bias_at, biases, SIZE: tl.constexpr
):
    """The sum of a client's shares, in their order: weights, and biases from `bias_at` on."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    sums = tl.zeros([SIZE], tl.float32)
    for split in range(0, splits):
        sums += tl.load(parts + (client * splits + split) * span + at, mask=at < span, other=0.0)
    tl.store(dw + client * dw_row + at, sums, mask=at < weights)
    bias = at - bias_at
    tl.store(db + client * db_row + bias, sums, mask=(bias >= 0) & (bias < biases))
