"""Tensors in flight, and what the operations without weights do to them: pooling, means, flattening, indexing.

A `Stream` says in which dimension a tensor carries which channels. An operation gives another stream, or is refused
with the name of the layer and what to do. The walk over a model's graph hands streams on: read `channel_walk.py` next.
"""

from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import Tensor, fx, nn

# Layers, functions and methods without weights go by name, in lower case and without underscores.
_ELEMENTWISE = """
    add sub mul div truediv iadd isub imul itruediv neg abs exp sqrt rsqrt square pow clamp maximum minimum
    relu relu6 gelu silu mish elu celu selu leakyrelu sigmoid logsigmoid tanh hardtanh hardswish hardsigmoid
    softplus softsign dropout dropout1d dropout2d alphadropout identity contiguous clone detach float double half to
"""
POINTWISE = frozenset(_ELEMENTWISE.split())
POOLING = frozenset(f"{kind}pool{n}d" for kind in ("max", "avg", "adaptivemax", "adaptiveavg") for n in (1, 2, 3))
REDUCTIONS = frozenset(("mean", "sum", "amax", "amin", "squeeze"))
FACTS = frozenset(("size", "dim", "shape", "device", "dtype", "ndim"))  # numbers about a tensor


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A tensor in flight that carries channels."""

    group: int
    axis: int = -1  # of the channels, counted from the last dimension
    rank: int | None = None  # None: as many dimensions as the model's input has
    flat: bool = False  # space is folded into the axis; the next layer's size says how often a channel repeats
    sources: frozenset[str] = frozenset()  # the weight layers it comes from, without another in between


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A parameter, buffer or constant that forward reads by itself; its last `intact` dimensions are as stored."""

    tensor: Tensor
    intact: int


class Plain:
    """A tensor without channels: the model's input, or made from it."""


Value = Stream | Stored | Plain | tuple[Any, ...] | None  # None: a number, a shape, a device


def reshaped(node: fx.Node, name: str, stream: Stream) -> Stream:
    """What becomes of a stream in an operation of its own: pooling, a mean over other dimensions, flattening."""
    if name in POOLING:
        return pooled(node, stream)
    if name == "flatten":
        return flattened(node, stream, argument(node, 1, "start_dim") or 0, argument(node, 2, "end_dim", -1))
    if name in ("view", "reshape"):
        sizes = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
        if len(sizes) != 2 or sizes[1] != -1:
            refuse(node, f"{name} may split channels or fix their number", "write flatten(x, 1)")
        return flattened(node, stream, 1, -1)
    if name not in REDUCTIONS:
        refuse(node, f"{name} is not supported", "use layers of torch.nn, sums and pooling instead")
    given = argument(node, 1, "dim")
    dims = [from_last(node, stream, dim) for dim in (given if isinstance(given, tuple | list) else [given])]
    if stream.axis in dims:
        refuse(node, f"{name} runs over the channels", "let it run over space or the sequence only")
    if argument(node, 2, "keepdim", False):
        return stream
    behind = sum(dim > stream.axis for dim in dims)
    return replace(stream, axis=stream.axis + behind, rank=stream.rank and stream.rank - len(dims))


def pooled(node: fx.Node, stream: Stream) -> Stream:
    """A stream behind a pooling over space."""
    if stream.rank is None or stream.rank + stream.axis != 1:
        refuse(node, "it pools over the channels", "pool over space, with the channels in the second dimension")
    return stream


def flattened(node: fx.Node, stream: Stream, start: int, end: int) -> Stream:
    """A stream with the dimensions from `start` to `end` made one."""
    if stream.axis == -1 and stream.rank is None and (start, end) == (1, -1):
        return replace(stream, rank=2)  # were there more dimensions, the next layer's size would not fit
    first, last = from_last(node, stream, start), from_last(node, stream, end)
    rank = stream.rank and stream.rank - (last - first)
    if stream.axis < first:
        return replace(stream, axis=stream.axis + last - first, rank=rank)
    if stream.axis > last or first == last:
        return replace(stream, rank=rank)
    if stream.axis != first or last != -1:
        refuse(node, "channels are not the first dimension it flattens", "flatten from the channels to the end")
    return replace(stream, axis=-1, rank=rank, flat=True)


def from_last(node: fx.Node, stream: Stream, dim: Any) -> int:
    """A dimension counted from the last one."""
    if not isinstance(dim, int) or (dim >= 0 and stream.rank is None):
        refuse(node, f"the dimension {dim} of this tensor is unknown", "name dimensions, counted from the last (-1)")
    return dim if dim < 0 or stream.rank is None else dim - stream.rank


def indexed(index: Any) -> int:
    """How many dimensions an index touches."""
    parts = list(index) if isinstance(index, tuple | list) else [index]
    while parts and parts[-1] == slice(None):
        parts.pop()
    return len(parts)


def unpacked(value: Value) -> list[Value]:
    """The values in nested tuples."""
    return [part for item in value for part in unpacked(item)] if isinstance(value, tuple) else [value]


def constant(value: Value) -> bool:
    """Whether this is a stored tensor that is not trained."""
    return isinstance(value, Stored) and not isinstance(value.tensor, nn.Parameter)


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def refuse(node: fx.Node, reason: str, fix: str) -> NoReturn:
    """Raise the ValueError that names the layer, why its channels cannot be followed, and what to do."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(node.target) if node.op == "call_module" else stack[-1][0] if stack else ""
    layer = f"layer {path!r}" if path else "the model's forward"
    raise ValueError(
        f"The channels cannot be followed through {layer}: {reason}. Fix: {fix}, or choose a ranking of single "
        "coordinates (taylor, magnitude)."
    )
