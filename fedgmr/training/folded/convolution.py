"""The three products of a convolution for many clients, each with its own weights.

Activations are [client, sample, height, width, channel], weights [client, output, height, width, input]. A client that
is trained alone must keep the device busy too, so a long sum over few tiles is cut into parts, which a second kernel
adds. Read next: `fedgmr/training/stacked/convolution.py`.
"""

from dataclasses import replace

from torch import Tensor

from fedgmr.training.execution import TRITON
from fedgmr.training.stacked.convolution import EXACT, Convolution, Descent, Ranges, Tiles, cdiv, is_flat, power
from fedgmr.training.stacked.plan import Conv

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
            step_tiles=EXACT if exact else _step_tiles(layer, batch),
            bias=False,
            relu=False,
        )
        blocks = cdiv(self.kernels.rows, self.kernels.forward_tiles.rows)
        programs = blocks * cdiv(layer.outputs, self.kernels.forward_tiles.columns)
        self.forward_splits = 1 if is_flat(layer) else _splits(programs, layer.depth)  # the flat sum is short
        tiles, taps = self.kernels.backward_tiles, cdiv(layer.kernel, layer.stride) ** 2
        blocks = layer.stride**2 * cdiv(_rows_before(layer, batch), tiles.rows)
        self.backward_splits = _splits(blocks * cdiv(layer.inputs, tiles.columns), taps * layer.outputs)
        enough = (_ENOUGH_FLAT if is_flat(layer) else _ENOUGH) // self.kernels.step_programs
        self.step_splits = max(1, min(enough, self.kernels.rows // _LEAST_ROWS))

    def forward(self, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        """The outputs [C, B, oh, ow, O] of x [C, B, H, W, I]; w [C, O, k, k, I] and b [C, O] are parts of rows."""
        layer, count, splits = self.layer, len(x), self.forward_splits
        y = x.new_empty((count, self.kernels.batch, layer.out_height, layer.out_width, layer.outputs))
        to = y if splits == 1 else y.new_empty((count * splits, y[0].numel()))
        self._beside(w, b).forward(x, w, _every(w), to, to, count, splits)
        if splits > 1:
            add_parts(to.view(count, splits, -1), y)
        return y

    def input_gradient(self, dy: Tensor, w: Tensor) -> Tensor:
        """The gradient [C, B, H, W, I] of the inputs."""
        layer, count, splits = self.layer, len(dy), self.backward_splits
        dx = dy.new_empty((count, self.kernels.batch, layer.height, layer.width, layer.inputs))
        to = dx if splits == 1 else dx.new_empty((count * splits, dx[0].numel()))
        self.kernels.backward(dy, w, _every(w), dx, dx, to, count, pooled=False, splits=splits)
        if splits > 1:
            add_parts(to.view(count, splits, -1), dx)
        return dx

    def weight_gradient(self, x: Tensor, dy: Tensor, dw: Tensor, db: Tensor | None) -> None:
        """Write the gradients of the weights and the biases to dw [C, O, k, k, I] and db [C, O]."""
        count, share = len(x), self.kernels.share_of(self.step_splits)
        kernels, to, span, bias_at = self._beside(dw, db), dw, dw.stride(0), 0
        if share[1] > 1:
            bias_at = cdiv(dw[0].numel(), _ALIGNED) * _ALIGNED
            span = bias_at + (0 if db is None else cdiv(self.layer.outputs, _ALIGNED) * _ALIGNED)
            kernels = replace(kernels, layer=replace(self.layer, bias_at=bias_at))
            to = dw.new_empty((count, share[1], span))
        descent = Descent(weights=dw, levels=dw, fallen=dw, velocities=dw, limits=dw, thetas=dw, rates=dw)
        kernels.step(x, dy, descent, _every(dw), to, span, count, share, apart=True)
        if share[1] > 1:
            add_parts(to, dw, db, bias_at)

    def _beside(self, w: Tensor, b: Tensor | None) -> Convolution:
        """The kernels, told where the biases lie in the rows that hold the weights."""
        if b is None:
            return self.kernels
        assert len(w) == 1 or w.stride(0) == b.stride(0)
        distance = (b.data_ptr() - w.data_ptr()) // w.element_size()
        return replace(self.kernels, bias=True, layer=replace(self.layer, bias_at=distance))


def _every(tensor: Tensor) -> Ranges:
    """All channels: the tensor stands for ranges that nobody reads."""
    return Ranges(given=tensor, wanted=tensor, narrow=False)


# As for the chains, two warps keep a product on the older tensor instructions where TF32 operands lie crosswise. Wide
# tiles read less: with 64 x 64 numbers at a time, reading takes longer than computing.


def _forward_tiles(layer: Conv, batch: int) -> Tiles:
    rows, columns = batch * layer.out_height * layer.out_width, power(layer.outputs)
    if is_flat(layer):
        return Tiles(rows=128, columns=min(64, columns), depth=32)
    return Tiles(rows=64, columns=min(128, columns), depth=32, stages=4 if rows <= 128 or columns <= 64 else 3)


def _backward_tiles(layer: Conv, batch: int) -> Tiles:
    columns = min(64, power(layer.inputs))
    if _rows_before(layer, batch) <= 128:
        return Tiles(rows=32, columns=columns, depth=64, warps=2)
    return Tiles(rows=64, columns=columns, depth=32, warps=2)


def _step_tiles(layer: Conv, batch: int) -> Tiles:
    """Rows are outputs, columns are inputs, and the depth is samples' pixels."""
    rows = power(layer.outputs)
    if is_flat(layer):
        return Tiles(rows=min(64, rows), columns=32, depth=64, warps=2)
    if layer.inputs <= 32:
        return Tiles(rows=min(64, rows), columns=32, depth=128, warps=2)
    if layer.inputs <= 64:
        return Tiles(rows=min(128, rows), columns=64, depth=32, warps=2)
    if batch * layer.out_height * layer.out_width <= 128:
        return Tiles(rows=min(64, rows), columns=64, depth=16, warps=2, stages=4)
    return Tiles(rows=min(64, rows), columns=128, depth=32, warps=2)


def _rows_before(layer: Conv, batch: int) -> int:
    """Pixels of the inputs that have one place among stride x stride."""
    return batch * cdiv(layer.height, layer.stride) * cdiv(layer.width, layer.stride)


def _splits(programs: int, depth: int) -> int:
    return max(1, min(_ENOUGH // programs, depth // _LEAST_DEPTH))
