"""The three products of a convolution for many clients, each with its own weights.

Activations are [client, sample, height, width, channel], weights are columns of a matrix with a row per client, in the
order output, height, width, input. `ranges` are the channels that clients have. A client that is trained alone must
keep the device busy too, so a long sum over few tiles is cut into parts, which a second kernel adds. Read next:
`fedgmr/training/stacked/convolution.py`.
"""

from dataclasses import replace

from torch import Tensor

from fedgmr.training.execution import TRITON
from fedgmr.training.stacked.convolution import (
    EXACT,
    Convolution,
    Ranges,
    Tiles,
    cdiv,
    everything,
    is_flat,
    power,
    step_tiles,
)
from fedgmr.training.stacked.plan import Conv
from fedgmr.training.stacked.rows import Descent

if TRITON:
    from fedgmr.training.folded.launches import add_parts

_ENOUGH = 64  # programs that a client should keep busy; more are no longer cut
_ENOUGH_FLAT = 128  # the same for the weight gradient of few input channels, whose parts are small
_LEAST_DEPTH = 576  # numbers that a part adds up: with fewer, its way through memory takes longer than it saves
_LEAST_ROWS = 160  # the same for weight gradients
_ALIGNED = 16


class ConvProducts:
    """A convolution with zeros around it, without dilation and groups."""

    def __init__(self, layer: Conv, batch: int, precision: str) -> None:
        """`batch` is a client's samples."""
        exact, self.layer = precision == "ieee", layer
        self.kernels = Convolution(
            layer=layer,
            batch=batch,
            precision=precision,
            forward_tiles=EXACT if exact else _forward_tiles(layer, batch),
            backward_tiles=EXACT if exact else _backward_tiles(layer, batch),
            step_tiles=EXACT if exact else step_tiles(layer, batch, chain=False),
            relu=False,
        )
        blocks = cdiv(self.kernels.rows, self.kernels.forward_tiles.rows)
        programs = blocks * cdiv(layer.outputs, self.kernels.forward_tiles.columns)
        self.forward_splits = 1 if is_flat(layer) else _splits(programs, layer.depth)  # the flat sum is short
        tiles, taps = self.kernels.backward_tiles, cdiv(layer.kernel, layer.stride) ** 2
        blocks = layer.stride**2 * cdiv(layer.rows_before(batch), tiles.rows)
        self.backward_splits = _splits(blocks * cdiv(layer.inputs, tiles.columns), taps * layer.outputs)
        enough = (_ENOUGH_FLAT if is_flat(layer) else _ENOUGH) // self.kernels.step_programs
        self.step_splits = max(1, min(enough, self.kernels.rows // _LEAST_ROWS))

    def forward(self, x: Tensor, weights: Tensor, ranges: Ranges | None = None) -> Tensor:
        """The outputs [C, B, oh, ow, O] of x [C, B, H, W, I] with the rows of weights [C, ...]."""
        layer, count, splits = self.layer, len(x), self.forward_splits
        y = x.new_empty((count, self.kernels.batch, layer.out_height, layer.out_width, layer.outputs))
        to = y if splits == 1 else y.new_empty((count * splits, y[0].numel()))
        self.kernels.forward(x, weights, ranges or everything(x), to, to, count, splits)
        if splits > 1:
            add_parts(to.view(count, splits, -1), y)
        return y

    def input_gradient(self, dy: Tensor, turned: Tensor, ranges: Ranges | None = None) -> Tensor:
        """The gradient [C, B, H, W, I] of the inputs, with its turned weights [C, ...] (`turned.py`)."""
        layer, count, splits = self.layer, len(dy), self.backward_splits
        kernels = replace(self.kernels, layer=replace(layer, weight_at=0))
        dx = dy.new_empty((count, self.kernels.batch, layer.height, layer.width, layer.inputs))
        to = dx if splits == 1 else dx.new_empty((count * splits, dx[0].numel()))
        kernels.backward(dy, turned, ranges or everything(dy), dx, dx, to, count, turned=True, splits=splits)
        if splits > 1:
            add_parts(to.view(count, splits, -1), dx)
        return dx

    def weight_gradient(self, x: Tensor, dy: Tensor, gradients: Tensor, ranges: Ranges | None = None) -> None:
        """Write the gradients of weights and biases to rows [C, ...] like those of the weights."""
        layer, count, share = self.layer, len(x), self.kernels.share_of(self.step_splits)
        dw = gradients[:, layer.weight_at : layer.weight_at + layer.depth * layer.outputs]
        db = None if layer.bias_at is None else gradients[:, layer.bias_at : layer.bias_at + layer.outputs]
        kernels, to, span = self.kernels, dw, gradients.stride(0)
        if share[1] > 1:
            bias_at = cdiv(dw.shape[1], _ALIGNED) * _ALIGNED
            span = bias_at + (0 if db is None else cdiv(layer.outputs, _ALIGNED) * _ALIGNED)
            kernels = replace(kernels, layer=replace(layer, weight_at=0, bias_at=None if db is None else bias_at))
            to = dw.new_empty((count, share[1], span))
        unread, ranges = Descent(*(dw,) * 7), ranges or everything(x)
        kernels.step(x, dy, unread, ("all", False, 0.0, 0.0), ranges, to, span, count, share, apart=True)
        if share[1] > 1:
            add_parts(to, dw, db, bias_at)


# Wide tiles read less: with 64 x 64 numbers at a time, reading takes longer than computing.


def _forward_tiles(layer: Conv, batch: int) -> Tiles:
    if is_flat(layer):
        return Tiles(rows=128, columns=min(64, power(layer.outputs)), depth=32)
    return _wide(batch * layer.out_height * layer.out_width, layer.outputs)


def _backward_tiles(layer: Conv, batch: int) -> Tiles:
    return _wide(layer.rows_before(batch), layer.inputs)


def _wide(rows: int, channels: int) -> Tiles:
    columns = power(channels)
    return Tiles(rows=64, columns=min(128, columns), depth=32, stages=4 if rows <= 128 or columns <= 64 else 3)


def _splits(programs: int, depth: int) -> int:
    return max(1, min(_ENOUGH // programs, depth // _LEAST_DEPTH))
