"""Fewer passes over memory on the GPU, with the same mathematics: what follows a convolution, and large linear steps.

`fuse` finds convolution, ReLU and 2 x 2 maximum in a model (torch.fx) and lets one kernel do what comes
after the convolution. `StepLinear` keeps what the gradient of a linear layer is made of, so that the step can be
done without writing the gradient. Models in which nothing is found stay as they are.
"""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedgmr.training.dropping import Dropping, Thetas
from fedgmr.training.plain.chains import halves

if TYPE_CHECKING:
    from fedgmr.training.submodel.workspace import LocalRun

try:
    from fedgmr.training.graphed import kernels
except ModuleNotFoundError:  # no Triton: CPU builds of PyTorch
    kernels = None  # type: ignore[assignment]

_ROWS, _CHANNELS = 32, 64
_OUTPUTS, _INPUTS, _SAMPLES = 32, 128, 32
_WARPS = 4  # of a linear step
_SIZE = 1024  # weights per block where nothing but memory counts
_LARGE = 1 << 20  # coordinates of a linear layer from which its gradient is worth not writing


def available() -> bool:
    """Whether there is a Triton to compile the kernels."""
    return kernels is not None


class ReluPool(torch.autograd.Function):
    """relu(inputs + bias), then the 2 x 2 maximum if wished; inputs [samples, channels, height, width]."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bias: Tensor, pool: bool) -> Tensor:
        """Outputs, channels last."""
        lying = inputs.contiguous(memory_format=torch.channels_last)
        samples, channels, height, width = lying.shape
        ctx.pool, ctx.shape = pool, lying.shape
        if not pool:
            outputs = torch.empty_like(lying)
            rows = samples * height * width
            kernels.relu_forward[_grid(rows, channels)](lying, bias, outputs, rows, channels, _ROWS, _CHANNELS)
            ctx.save_for_backward(outputs)
            return outputs
        height, width = height // 2, width // 2
        outputs = _empty(lying, (samples, channels, height, width), lying.dtype)
        codes = _empty(lying, (samples, channels, height, width), torch.uint8)
        rows = samples * height * width
        kernels.pool_forward[_grid(rows, channels)](
            lying, bias, outputs, codes, rows, height, width, channels, _ROWS, _CHANNELS
        )
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
        if ctx.pool:
            kernels.pool_backward[grid](slopes, kept, into, sums, rows, height, width, channels, _ROWS, _CHANNELS)
        else:
            kernels.relu_backward[grid](slopes, kept, into, sums, rows, channels, _ROWS, _CHANNELS)
        return into, sums.sum(0), None


def conv_relu_pool(inputs: Tensor, weight: Tensor, bias: Tensor, pool: bool, *geometry: Any) -> Tensor:
    """A convolution (stride, padding, dilation, groups) with ReLU, and the 2 x 2 maximum if wished."""
    folded = functional.conv2d(inputs, weight, None, *geometry)
    even = folded.shape[-1] % 2 == 0 and folded.shape[-2] % 2 == 0
    outputs: Tensor = ReluPool.apply(folded, bias, pool and even)  # type: ignore[no-untyped-call]
    return functional.max_pool2d(outputs, 2) if pool and not even else outputs


class Ledger:
    """What the gradients of large linear layers are made of, from a backward pass until the step."""

    def __init__(self) -> None:
        self.names: list[str] = []  # of the weights that are stepped without a gradient
        self.entries: dict[str, tuple[Tensor, Tensor]] = {}  # slopes [samples, outputs], inputs [samples, inputs]

    def step(self, name: str, weight: Tensor, rates: Tensor, *, tf32: bool) -> None:
        """Weight -= rates · gradient."""
        slopes, inputs = self.entries.pop(name)
        outputs, width = weight.shape
        grid = (-operator.floordiv(-outputs, _OUTPUTS), -operator.floordiv(-width, _INPUTS))
        kernels.linear_step[grid](
            weight, rates, slopes, inputs, outputs, width, len(slopes),
            _OUTPUTS, _INPUTS, _SAMPLES, "tf32" if tf32 else "ieee", num_warps=_WARPS,
        )  # fmt: skip


class FusedDropping(Dropping):
    """Weights below a threshold left out of a step, in two passes over memory; plain SGD with a rate per weight."""

    def __init__(self, rates: Sequence[Tensor]) -> None:
        """`rates` are shaped and lie like the parameters."""
        self.rates = rates

    def hide(self, run: "LocalRun", thetas: Thetas) -> list[Tensor]:
        """Zero what is below its threshold; returns all weights as they were."""
        whole = []
        for parameter, theta in zip(run.parameters, thetas, strict=True):
            copy, weight = torch.empty_like(parameter), parameter.detach()
            if theta is None:
                copy.copy_(weight)
            else:
                kernels.hide[(_blocks(weight),)](weight, copy, theta, weight.numel(), _SIZE)
            whole.append(copy.detach())
        return whole

    def descend(
        self, run: "LocalRun", whole: Sequence[Tensor], gradients: list[Tensor], thetas: Thetas, *, derivative: bool
    ) -> None:
        """Bring the weights back and step those that are kept."""
        for parameter, weight, gradient, rate, theta in zip(
            run.parameters, whole, gradients, self.rates, thetas, strict=True
        ):
            slope = gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)
            least = weight.new_zeros(()) if theta is None else theta
            kernels.step_kept[(_blocks(weight),)](
                parameter.detach(), weight, slope, rate, least, weight.numel(), derivative, _SIZE
            )


class _NotedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, ledger: Ledger, name: str) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.ledger, ctx.name, ctx.biased = ledger, name, bias is not None
        return functional.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        flat = slopes.reshape(-1, slopes.shape[-1]).contiguous()
        ctx.ledger.entries[ctx.name] = (flat, inputs.reshape(-1, inputs.shape[-1]).contiguous())
        into = slopes.to(weight.dtype) @ weight if ctx.needs_input_grad[0] else None
        return into, None, flat.sum(0) if ctx.biased else None, None, None


class StepLinear(nn.Module):
    """A linear layer whose weight gradient is noted in a ledger instead of computed."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__()
        self.ledger, self.name = ledger, name

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Inputs · weightᵀ + bias."""
        outputs: Tensor = _NotedLinear.apply(inputs, weight, bias, self.ledger, self.name)  # type: ignore[no-untyped-call]
        return outputs


def fuse(model: nn.Module, ledger: Ledger | None) -> nn.Module:
    """The model with its convolutions fused where possible, and large linear layers noted if there is a ledger.

    Parameters keep their names.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return model
    try:
        traced = fx.symbolic_trace(model)
    except Exception:  # a model that cannot be traced computes as it is
        return model
    found = [node for node in list(traced.graph.nodes) if _fuse(traced, node)]
    if ledger is not None:
        found += [node for node in list(traced.graph.nodes) if _note(traced, node, ledger)]
    if not found:
        return model
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _fuse(traced: fx.GraphModule, node: fx.Node) -> bool:
    conv = _module(traced, node)
    if not isinstance(conv, nn.Conv2d) or conv.bias is None or conv.padding_mode != "zeros":
        return False
    if isinstance(conv.padding, str) or (relu := _only_user(node)) is None or not _is_relu(traced, relu):
        return False
    pool = _only_user(relu)
    pooled = pool is not None and halves(_module(traced, pool))
    last = pool if pooled and pool is not None else relu
    with traced.graph.inserting_before(last):
        weight, bias = (traced.graph.get_attr(f"{node.target}.{name}") for name in ("weight", "bias"))
        geometry = (conv.stride, conv.padding, conv.dilation, conv.groups)
        fused = traced.graph.call_function(conv_relu_pool, (node.args[0], weight, bias, pooled, *geometry))
    last.replace_all_uses_with(fused)
    for old in dict.fromkeys((last, relu, node)):
        traced.graph.erase_node(old)
    return True


def _note(traced: fx.GraphModule, node: fx.Node, ledger: Ledger) -> bool:
    linear = _module(traced, node)
    if not isinstance(linear, nn.Linear) or linear.weight.numel() < _LARGE:
        return False
    uses = [n for n in traced.graph.nodes if n.op == "call_module" and _module(traced, n) is linear]
    shared = sum(p is linear.weight for m in traced.modules() for p in m._parameters.values()) > 1
    if len(uses) > 1 or shared:
        return False
    name = f"{node.target}.weight"
    step = f"noted_{len(ledger.names)}"
    traced.add_submodule(step, StepLinear(ledger, name))
    with traced.graph.inserting_before(node):
        weight = traced.graph.get_attr(name)
        bias = None if linear.bias is None else traced.graph.get_attr(f"{node.target}.bias")
        noted = traced.graph.call_module(step, (node.args[0], weight, bias))
    node.replace_all_uses_with(noted)
    traced.graph.erase_node(node)
    ledger.names.append(name)
    return True


def _module(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_function":
        return node.target in (torch.relu, functional.relu)
    if node.op == "call_method":
        return node.target == "relu"
    return isinstance(_module(traced, node), nn.ReLU)


def _blocks(weight: Tensor) -> int:
    return int(-operator.floordiv(-weight.numel(), _SIZE))


def _grid(rows: int, channels: int) -> tuple[int, int]:
    return -operator.floordiv(-rows, _ROWS), -operator.floordiv(-channels, _CHANNELS)


def _empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)
