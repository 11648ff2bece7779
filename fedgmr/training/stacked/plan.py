"""Models that can be trained as a stack of clients: chains of convolutions, ReLU, 2 x 2 maxima and linear layers.

In a stack's row of weights each tensor begins at a multiple of 16 numbers, a convolution's weight lies channels last,
and so do the columns of the linear layer behind it: activations keep one order from end to end. Read next:
`net.py`, which computes by the plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedgmr.submodels.layout import Layout
from fedgmr.training.chains import Chain
from fedgmr.training.stacked.rows import RowOrder, RowWriter

_MOST_SAMPLES = 64  # of a mini-batch: linear layers hold all of them at once


@dataclass(frozen=True, kw_only=True)
class Conv:
    """A convolution with zeros around, in a chain with ReLU, and the 2 x 2 maximum if `pool`."""

    weight_at: int
    bias_at: int | None  # None where it has none
    kernel: int
    padding: int
    inputs: int
    outputs: int
    height: int  # of the inputs
    width: int
    pool: bool = False
    stride: int = 1

    @property
    def out_height(self) -> int:
        """Before the maximum."""
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Before the maximum."""
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def sides(self) -> tuple[int, ...]:
        """Of inputs and outputs: height, width, channels."""
        return self.height, self.width, self.inputs, self.out_height, self.out_width, self.outputs

    def rows_before(self, batch: int) -> int:
        """Pixels of the inputs that have one place among stride x stride."""
        return batch * -(-self.height // self.stride) * -(-self.width // self.stride)

    @property
    def depth(self) -> int:
        """Weights per output channel."""
        return self.kernel * self.kernel * self.inputs

    @property
    def numbers(self) -> int:
        """Outputs per sample, after the maximum."""
        return self.out_height * self.out_width * self.outputs // (4 if self.pool else 1)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A linear layer, with ReLU if it is not the last."""

    weight_at: int
    bias_at: int
    inputs: int
    outputs: int
    relu: bool

    @property
    def numbers(self) -> int:
        """Outputs per sample."""
        return self.outputs


@dataclass(frozen=True, kw_only=True, eq=False)
class StackPlan:
    """The layers of a chain, and where each number of a stack's row lies in the model's vector."""

    layers: tuple[Conv | Linear, ...]
    order: RowOrder

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, shape: torch.Size, batch: int) -> "StackPlan | None":
        """Plan a model on inputs of `shape` (one sample, prepared); None where it cannot be stacked."""
        chain = Chain.of(model)
        if chain is None or layout.buffers or layout.dtype != torch.float32 or batch > _MOST_SAMPLES:
            return None
        if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
            return None
        return _Planner(layout).plan(chain.layers, shape)


class _Planner:
    def __init__(self, layout: Layout) -> None:
        self.row, self.layers = RowWriter(layout), list[Conv | Linear]()

    def plan(self, steps: Sequence[tuple[str, nn.Module]], shape: torch.Size) -> StackPlan | None:
        kinds = [type(layer) for _, layer in steps]
        flat = len(shape) == 1
        pixels = None if flat else tuple(shape)  # channels, height, width
        if not flat and len(shape) != 3:
            return None
        at = 0
        while at < len(steps):
            name, layer = steps[at]
            rest = kinds[at + 1 : at + 3]
            if isinstance(layer, nn.Conv2d) and pixels is not None and rest[:1] == [nn.ReLU]:
                pool = rest[1:] == [nn.MaxPool2d] and Chain.halves(steps[at + 2][1])
                pixels = self._conv(name, layer, pixels, pool=pool)
                if pixels is None:
                    return None
                at += 3 if pool else 2
            elif isinstance(layer, nn.Flatten) and pixels is not None and layer.start_dim == 1 and layer.end_dim == -1:
                flat, shape, pixels = True, torch.Size(pixels), None
                at += 1
            elif isinstance(layer, nn.Linear) and flat:
                relu = rest[:1] == [nn.ReLU]
                if not self._linear(name, layer, shape, relu=relu) or (not relu and at != len(steps) - 1):
                    return None
                shape = torch.Size((layer.out_features,))
                at += 2 if relu else 1
            else:
                return None
        done = bool(self.layers) and isinstance(self.layers[-1], Linear) and not self.layers[-1].relu
        order = self.row.finish() if done else None
        return None if order is None else StackPlan(layers=tuple(self.layers), order=order)

    def _conv(self, name: str, layer: nn.Conv2d, pixels: tuple[int, ...], *, pool: bool) -> tuple[int, ...] | None:
        weight, bias = (self.row.coordinates.get(f"{name}.{part}") for part in ("weight", "bias"))
        (channels, height, width), padding = pixels, layer.padding
        plain = (layer.stride, layer.dilation, layer.groups, layer.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        square = layer.kernel_size[0] == layer.kernel_size[1] and isinstance(padding, tuple) and len(set(padding)) == 1
        if not plain or not square or channels != layer.in_channels or weight is None or bias is None:
            return None
        assert isinstance(padding, tuple)
        found = Conv(
            weight_at=self.row.put(weight.permute(0, 2, 3, 1)),
            bias_at=self.row.put(bias),
            kernel=layer.kernel_size[0],
            padding=padding[0],
            inputs=channels,
            outputs=layer.out_channels,
            height=height,
            width=width,
            pool=pool,
        )
        out_height, out_width = found.out_height, found.out_width
        if out_height < 1 or out_width < 1 or (pool and (out_height % 2 or out_width % 2)):
            return None
        self.layers.append(found)
        half = 2 if pool else 1
        return layer.out_channels, out_height // half, out_width // half

    def _linear(self, name: str, layer: nn.Linear, shape: torch.Size, *, relu: bool) -> bool:
        weight, bias = (self.row.coordinates.get(f"{name}.{part}") for part in ("weight", "bias"))
        if weight is None or bias is None or shape.numel() != layer.in_features:
            return False
        outputs, inputs = weight.shape
        if len(shape) == 3:
            weight = weight.view(-1, *shape).permute(0, 2, 3, 1)
        at = {"weight_at": self.row.put(weight), "bias_at": self.row.put(bias)}
        self.layers.append(Linear(**at, inputs=inputs, outputs=outputs, relu=relu))
        return True
