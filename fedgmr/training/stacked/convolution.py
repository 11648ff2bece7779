"""A convolution of many clients: the block sizes of its three products, and the launches of their kernels.

Chains use it with all that stands around a convolution there (`net.py`), nets of ordinary layers as three plain
products (`fedgmr/training/folded/convolution.py`). Block sizes and parts depend on the layer and the mini-batch alone,
so a client's bits do not depend on its company. Read next: `conv_kernels.py`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedgmr.training.execution import TRITON
from fedgmr.training.stacked.plan import Conv
from fedgmr.training.stacked.rows import Descent, Rules

if TRITON:
    from fedgmr.training.stacked import conv_kernels

_ENOUGH = 64  # programs a client should keep busy in a weight gradient
_LEAST_ROWS = 512  # of a weight gradient's share


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """The block sizes of matrix products, which only change the speed."""

    rows: int
    columns: int
    depth: int = 0  # where the whole depth is one block
    warps: int = 4
    stages: int = 3

    @property
    def launch(self) -> dict[str, Any]:
        """What a kernel's launch is told of them."""
        return {"num_warps": self.warps, "num_stages": self.stages}


EXACT = Tiles(rows=32, columns=32, depth=16, stages=2)  # without tensor cores; large tiles take long to compile


class Ranges(NamedTuple):
    """The channels of each client that a step has: of the inputs, of the outputs, [2, clients] with some apart."""

    given: Tensor
    wanted: Tensor
    stride: int  # from a client's first channel to its last
    narrow: bool = False  # otherwise all of them, whatever the tensors say


def everything(some: Tensor) -> Ranges:
    """All channels; kernels are given a tensor that they do not read."""
    return Ranges(some, some, 0)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """The kernels of one layer; `relu` has one behind its outputs, and before its inputs."""

    layer: Conv
    batch: int
    precision: str
    forward_tiles: Tiles
    backward_tiles: Tiles
    step_tiles: Tiles
    relu: bool = True

    @classmethod
    def of_chain(cls, layer: Conv, batch: int, precision: str) -> "Convolution":
        """With the block sizes that are the fastest on an H200 for a chain's layers of this size."""
        tiles = _forward_tiles(layer, batch), _backward_tiles(layer, batch), step_tiles(layer, batch, chain=True)
        forward, backward, step = (EXACT,) * 3 if precision == "ieee" else tiles
        return cls(
            layer=layer, batch=batch, precision=precision, forward_tiles=forward, backward_tiles=backward,
            step_tiles=step,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """Pixels of the outputs, before the maximum."""
        return self.batch * self.layer.out_height * self.layer.out_width

    @property
    def share(self) -> tuple[int, int]:
        """Rows per part of a weight gradient, and the number of parts."""
        splits = max(1, min(cdiv(_ENOUGH, self.step_programs), self.rows // _LEAST_ROWS))
        return self.share_of(splits)

    def share_of(self, splits: int) -> tuple[int, int]:
        """Rows per part where there should be `splits`, whole tiles, and how many parts that makes."""
        depth = self.step_tiles.depth
        share = cdiv(cdiv(self.rows, splits), depth) * depth
        return share, cdiv(self.rows, share)

    @property
    def step_programs(self) -> int:
        """Tiles of the weight gradient."""
        return cdiv(self.layer.outputs, self.step_tiles.rows) * self._step_columns

    @property
    def _step_columns(self) -> int:
        layer, tiles = self.layer, self.step_tiles
        if is_flat(layer):
            return cdiv(layer.depth, tiles.columns)
        return layer.kernel * layer.kernel * cdiv(layer.inputs, tiles.columns)

    def forward(
        self, inputs: Tensor, weights: Tensor, ranges: Ranges, outputs: Tensor, codes: Tensor, count: int,
        splits: int = 1,
    ) -> None:  # fmt: skip
        """The outputs of `count` clients, in `splits` parts for each; weights begin `weight_at` each row of theirs."""
        layer, tiles = self.layer, self.forward_tiles
        grid = (cdiv(self.rows, tiles.rows), cdiv(layer.outputs, tiles.columns), count * splits)
        conv_kernels.conv_forward[grid](
            inputs, weights, *ranges[:3], outputs, codes, weights.stride(0), layer.weight_at, layer.bias_at or 0,
            inputs.stride(0), outputs.stride(0), self.rows, *layer.sides, layer.padding, layer.kernel, tiles.rows,
            tiles.columns, tiles.depth, is_flat(layer), layer.inputs % tiles.depth == 0, layer.pool, ranges.narrow,
            layer.stride, layer.bias_at is not None, self.relu, splits, self.precision, **tiles.launch,
        )  # fmt: skip

    def backward(
        self, slopes: Tensor, weights: Tensor, ranges: Ranges, inputs: Tensor, codes: Tensor, before: Tensor,
        count: int, *, pooled: bool = False, turned: bool = False, splits: int = 1,
    ) -> None:  # fmt: skip
        """The gradient `before` the layer; the inputs with their codes are asked where ReLU and maximum stand there.

        If `turned`, inputs and outputs of the weights are exchanged.
        """
        layer, tiles = self.layer, self.backward_tiles
        rows = layer.rows_before(self.batch)
        grid = (layer.stride**2 * cdiv(rows, tiles.rows), cdiv(layer.inputs, tiles.columns), count * splits)
        conv_kernels.conv_backward[grid](
            slopes, weights, *ranges[:3], inputs, codes, before, weights.stride(0), layer.weight_at, slopes.stride(0),
            inputs.stride(0), before.stride(0), rows, *layer.sides, layer.padding, layer.kernel, tiles.rows,
            tiles.columns, tiles.depth, layer.outputs % tiles.depth == 0, pooled, ranges.narrow, layer.stride,
            self.relu, turned, splits, self.precision, **tiles.launch,
        )  # fmt: skip

    def step(
        self, inputs: Tensor, slopes: Tensor, descent: Descent, rules: Rules, ranges: Ranges, parts: Tensor, span: int,
        count: int, share: tuple[int, int], *, apart: bool,
    ) -> None:  # fmt: skip
        """The weights' step, or if `apart` their gradient by `share`, each part's `span` numbers behind the last's."""
        layer, tiles = self.layer, self.step_tiles
        grid = (cdiv(layer.outputs, tiles.rows), self._step_columns, count * share[1])
        conv_kernels.conv_step[grid](
            inputs, slopes, *descent, *ranges[:3], parts, descent.weights.stride(0), layer.weight_at,
            layer.bias_at or 0, inputs.stride(0), slopes.stride(0), self.rows, *layer.sides, layer.padding, *share,
            span, layer.kernel, tiles.rows, tiles.columns, tiles.depth, is_flat(layer), apart, *rules, ranges.narrow,
            layer.stride, layer.bias_at is not None, self.precision, **tiles.launch,
        )  # fmt: skip


def is_flat(layer: Conv) -> bool:
    """Whether there are too few input channels to fill a tile: then taps and channels are one dimension."""
    return layer.inputs < 16


# Two warps keep a product on the older tensor instructions, which take TF32 operands that lie crosswise; in forward
# products they lie as the newer ones want them.


def _forward_tiles(layer: Conv, batch: int) -> Tiles:
    if is_flat(layer):
        return Tiles(rows=128, columns=min(64, power(layer.outputs)), depth=32)
    if batch * layer.out_height * layer.out_width <= 128:
        return Tiles(rows=64, columns=min(64, power(layer.outputs)), depth=64)
    return Tiles(rows=64, columns=min(128, power(layer.outputs)), depth=32)


def _backward_tiles(layer: Conv, batch: int) -> Tiles:
    if batch * layer.height * layer.width <= 128:
        return Tiles(rows=32, columns=min(64, power(layer.inputs)), depth=64, warps=4, stages=4)
    return Tiles(rows=64, columns=min(64, power(layer.inputs)), depth=32, warps=2, stages=3)


def step_tiles(layer: Conv, batch: int, *, chain: bool) -> Tiles:
    """Of weight gradients: rows are outputs, columns are inputs, and the depth is samples' pixels."""
    if is_flat(layer) and chain:
        return Tiles(rows=32, columns=32, depth=32)
    outputs = 128 if chain else power(layer.outputs)
    if is_flat(layer):
        return Tiles(rows=min(64, outputs), columns=32, depth=64, warps=2)
    if layer.inputs <= 32:
        return Tiles(rows=min(64, outputs), columns=32, depth=128, warps=2)
    if layer.inputs <= 64:
        return Tiles(rows=min(128, outputs), columns=64, depth=32, warps=2)
    if batch * layer.out_height * layer.out_width <= 128:
        return Tiles(rows=min(64, outputs), columns=64, depth=16, warps=2, stages=4)
    return Tiles(rows=min(64, outputs), columns=128, depth=32, warps=2)


def cdiv(whole: int, part: int) -> int:
    """How many parts the whole has, the last perhaps not full."""
    return -(-whole // part)


def power(number: int) -> int:
    """The next power of two, at least 16."""
    return max(16, 1 << (number - 1).bit_length())
