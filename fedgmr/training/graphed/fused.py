"""Fewer passes over memory on a GPU, behind convolutions and for thresholds, with the same mathematics.

`fuse` finds convolution, ReLU and 2 x 2 maximum in a chain (torch.fx) and lets one kernel do what comes after the
convolution. A chain trained with mini-batches of 128, which the stacked executor does not take, gains 30 to 40 %
(H200); one with small mini-batches up to 20 %. With `FusedDropping` a round of ten ResNet-18 clients under FIARSE takes
two thirds of the time. Read next: `kernels.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedgmr.submodels.inputs import as_written
from fedgmr.training.chains import Chain
from fedgmr.training.execution import TRITON
from fedgmr.training.submodel.workspace import SubModel
from fedgmr.training.thresholds import Dropping, Thetas
from fedgmr.training.tracing import is_relu, module_of, only_user

if TRITON:
    from fedgmr.training.graphed import kernels

_ROWS, _CHANNELS = 32, 64
_SIZE = 1024  # weights per block where nothing but memory counts


class _ReluPool(torch.autograd.Function):
    """relu(inputs + bias), with `pool` the 2 x 2 maximum of it; inputs [samples, channels, height, width]."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bias: Tensor, pool: bool) -> Tensor:
        """Outputs, channels last."""
        lying = inputs.contiguous(memory_format=torch.channels_last)
        samples, channels, height, width = lying.shape
        if pool:
            height, width = height // 2, width // 2
        outputs = _empty(lying, (samples, channels, height, width), lying.dtype)
        codes = _empty(lying, outputs.shape, torch.uint8) if pool else outputs
        rows = samples * height * width
        kernels.relu_pool_forward[_grid(rows, channels)](
            lying, bias, outputs, codes, rows, width, channels, pool, _ROWS, _CHANNELS
        )
        ctx.pool, ctx.shape = pool, lying.shape
        ctx.save_for_backward(codes)
        return outputs

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of inputs and bias."""
        slopes = slopes.contiguous(memory_format=torch.channels_last)
        (kept,) = ctx.saved_tensors
        samples, channels, height, width = slopes.shape
        rows = samples * height * width
        into = _empty(slopes, ctx.shape, slopes.dtype)
        grid = _grid(rows, channels)
        sums = torch.empty((grid[0], channels), dtype=torch.float32, device=slopes.device)
        kernels.relu_pool_backward[grid](slopes, kept, into, sums, rows, width, channels, ctx.pool, _ROWS, _CHANNELS)
        return into, sums.sum(0), None


def _conv_relu_pool(inputs: Tensor, weight: Tensor, bias: Tensor, pool: bool, *geometry: Any) -> Tensor:
    """Compute a convolution (stride, padding, dilation, groups) with ReLU, with `pool` the 2 x 2 maximum behind it."""
    folded = functional.conv2d(inputs, weight, None, *geometry)
    even = folded.shape[-1] % 2 == 0 and folded.shape[-2] % 2 == 0
    outputs: Tensor = _ReluPool.apply(folded, bias, pool and even)  # type: ignore[no-untyped-call]
    return functional.max_pool2d(outputs, 2) if pool and not even else outputs


def fuse(model: nn.Module) -> nn.Module:
    """Fuse a chain's convolutions with what follows them, where possible; the layers and parameters are its own.

    Other models stay as they are: their own code may count on the usual order in memory, and look at what a trace does
    not see.
    """
    if Chain.of(model) is None or not all(as_written(module) for module in model.modules()):
        return model
    traced = fx.symbolic_trace(model)
    if not [node for node in list(traced.graph.nodes) if _fuse(traced, node)]:
        return model
    traced.recompile()
    return traced


def _fuse(traced: fx.GraphModule, node: fx.Node) -> bool:
    conv = module_of(traced, node)
    if not isinstance(conv, nn.Conv2d) or conv.bias is None or conv.padding_mode != "zeros":
        return False
    if isinstance(conv.padding, str) or (relu := only_user(node)) is None or not is_relu(traced, relu):
        return False
    pool = only_user(relu)
    pooled = pool is not None and Chain.halves(module_of(traced, pool))
    last = pool if pooled and pool is not None else relu
    with traced.graph.inserting_before(last):
        weight, bias = (traced.graph.get_attr(f"{node.target}.{name}") for name in ("weight", "bias"))
        geometry = (conv.stride, conv.padding, conv.dilation, conv.groups)
        fused = traced.graph.call_function(_conv_relu_pool, (node.args[0], weight, bias, pooled, *geometry))
    last.replace_all_uses_with(fused)
    for old in dict.fromkeys((last, relu, node)):
        traced.graph.erase_node(old)
    return True


def _grid(rows: int, channels: int) -> tuple[int, int]:
    return -(-rows // _ROWS), -(-channels // _CHANNELS)


def _empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


class FusedDropping(Dropping):
    """FIARSE's dropped weights with one kernel before a step of plain SGD and one after it, a rate per weight."""

    def hide(self, sub: SubModel, thetas: Thetas) -> list[Tensor]:
        """Zero the weights below their threshold; returns all weights as they were."""
        whole = []
        for parameter, theta in zip(sub.parameters, thetas, strict=True):
            copy, weight = torch.empty_like(parameter), parameter.detach()
            if theta is None:
                copy.copy_(weight)
            else:
                kernels.hide[(_blocks(weight),)](weight, copy, theta, weight.numel(), _SIZE)
            whole.append(copy.detach())
        return whole

    def descend(
        self, sub: SubModel, whole: Sequence[Tensor], gradients: list[Tensor], thetas: Thetas, *, derivative: bool
    ) -> None:
        """Bring the weights back and step those that are kept."""
        assert sub.rates is not None
        for parameter, weight, gradient, rate, theta in zip(
            sub.parameters, whole, gradients, sub.rates, thetas, strict=True
        ):
            slope = gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)
            least = weight.new_zeros(()) if theta is None else theta
            kernels.step_kept[(_blocks(weight),)](
                parameter.detach(), weight, slope, rate, least, weight.numel(), derivative, _SIZE
            )


def _blocks(weight: Tensor) -> int:
    return -(-weight.numel() // _SIZE)
