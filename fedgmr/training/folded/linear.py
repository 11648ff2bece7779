"""Linear layers of many clients at once, forward and backward; `ranges` are the channels that clients have."""

import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.folded.launches import add_parts, optional
from fedgmr.training.stacked.convolution import Ranges, Tiles, cdiv, everything
from fedgmr.training.stacked.linear_kernels import linear_product
from fedgmr.training.stacked.range_kernels import meets

_ENOUGH = 96  # programs a client should keep busy in a weight gradient
_LEAST_ROWS = 128  # of a share of a weight gradient
_WIDEST = 128  # columns of a block


def forward(x: Tensor, w: Tensor, b: Tensor | None, precision: str, ranges: Ranges | None = None) -> Tensor:
    """Outputs [clients, rows, outputs] of x [clients, rows, inputs]; w is [clients, outputs, inputs]."""
    return _multiplied(x, w, b, precision, ranges or everything(x), crosswise=False)


def input_gradients(dy: Tensor, w: Tensor, precision: str, ranges: Ranges | None = None) -> Tensor:
    """The gradient of the inputs."""
    ranges = ranges or everything(dy)
    turned = ranges._replace(given=ranges.wanted, wanted=ranges.given)
    return _multiplied(dy, w, None, precision, turned, crosswise=True)


def weight_gradients(
    dy: Tensor, x: Tensor, dw: Tensor, db: Tensor | None, precision: str, ranges: Ranges | None = None
) -> None:
    """Write the gradients of weights and biases to `dw` and `db`."""
    ranges = ranges or everything(x)
    (clients, rows, outputs), inputs = dy.shape, x.shape[2]
    tiles = Tiles(rows=32, columns=_breadth(inputs), depth=64, stages=2)  # both lie crosswise
    blocks = cdiv(outputs, tiles.rows), cdiv(inputs, tiles.columns)
    splits = max(1, min(cdiv(_ENOUGH, blocks[0] * blocks[1]), rows // _LEAST_ROWS))
    share = cdiv(cdiv(rows, splits), tiles.depth) * tiles.depth
    splits = cdiv(rows, share)
    bias_at = cdiv(outputs * inputs, 16) * 16
    split = splits > 1
    to = x.new_empty((clients, splits, bias_at + cdiv(outputs, 16) * 16)) if split else dw
    biases, bias_row = optional(db, dw)
    _gradients[(*blocks, clients * splits)](
        dy, x, to, biases, *ranges[:3], to.shape[2] if split else dw.stride(0), bias_row, bias_at, rows, outputs,
        inputs, share, splits, OUTPUTS=tiles.rows, INPUTS=tiles.columns, ROWS=tiles.depth, SPLIT=split,
        BIAS=db is not None, NARROW=ranges.narrow, PRECISION=precision, **tiles.launch,
    )  # fmt: skip
    if split:
        add_parts(to, dw, db, bias_at)


def _multiplied(x: Tensor, w: Tensor, b: Tensor | None, precision: str, ranges: Ranges, *, crosswise: bool) -> Tensor:
    """X · weightᵀ + bias; x · weight if `crosswise`. The ranges are those of x and of the result."""
    (clients, rows, depth), (_, outputs, inputs) = x.shape, w.shape
    columns, steps = (inputs, (inputs, 1)) if crosswise else (outputs, (1, inputs))
    y = x.new_empty((clients, rows, columns))
    tiles = _product_tiles(rows, columns, depth, crosswise=crosswise)
    biases, bias_row = optional(b, x)
    linear_product[(cdiv(rows, tiles.rows), cdiv(columns, tiles.columns), clients)](
        x, w, biases, y, *ranges[:3], rows * depth, w.stride(0), bias_row, rows * columns, rows, columns, depth, *steps,
        tiles.rows, tiles.columns, tiles.depth, depth % tiles.depth == 0, b is not None, False, ranges.narrow,
        precision, **tiles.launch,
    )  # fmt: skip
    return y


def _product_tiles(rows: int, columns: int, depth: int, *, crosswise: bool) -> Tiles:
    """For [rows, depth] x [depth, columns]; many rows make wide blocks.

    With 64 rows and 4 warps the compiler takes Hopper's newer matrix instruction, which wants the sum's numbers side by
    side in both operands. Weights that lie `crosswise` it would bring there one by one, so they get 32 rows.
    """
    height = next((height for height in (16, 32) if rows <= height), 32 if crosswise else 64)
    breadth = _breadth(columns) if rows > 32 else 32
    return Tiles(rows=height, columns=breadth, depth=64 if depth >= 512 else 32, stages=2 if crosswise else 3)


def _breadth(columns: int) -> int:
    """The width of a block: one that holds all columns, or the widest of which little is empty in the last block."""
    if columns <= _WIDEST:
        return max(32, int(triton.next_power_of_2(columns)))
    return next((width for width in (_WIDEST, 64) if 8 * (-columns % width) <= columns), 32)


@triton.jit  # type: ignore[untyped-decorator]
def _gradients(  # type: ignore[no-untyped-def]
    slopes, inputs, dw, db, given, wanted, range_stride, dw_row, db_row, bias_at, rows, outputs_count, inputs_count,
    share, splits, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
    BIAS: tl.constexpr, NARROW: tl.constexpr, PRECISION: tl.constexpr,
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
    useful = meets(wanted, client, range_stride, tl.program_id(0), OUTPUTS, NARROW)
    useful *= meets(given, client, range_stride, tl.program_id(1), INPUTS, NARROW)
    sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for start in range(split * share, last * useful, ROWS):
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
