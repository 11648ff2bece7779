"""Tensors on their way through a model, and how operations without weights change them: pooling, means, flattening.

A `Stream` says in which dimension a tensor carries which channels. An operation gives another stream, or is refused
with the name of the layer and what to do. The walk over a model's graph hands streams on: read `walk.py` next.
"""

from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import Tensor, fx

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
    """A tensor that carries channels."""

    group: int
    axis: int = -1  # of the channels, counted from the last dimension
    rank: int | None = None  # None: as many dimensions as the model's input has
    flat: bool = False  # space is folded into the axis; the next layer's size says how often a channel repeats
    sources: frozenset[str] = frozenset()  # the weight layers it comes from, without another in between

    def reshaped(self, node: fx.Node, name: str) -> "Stream":
        """The stream after an operation of one operand: pooling, a mean over other dimensions, flattening."""
        if name in POOLING:
            return self.pooled(node)
        if name == "flatten":
            return self.flattened(node, argument(node, 1, "start_dim") or 0, argument(node, 2, "end_dim", -1))
        if name in ("view", "reshape"):
            sizes = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
            if len(sizes) != 2 or sizes[1] != -1:
                refuse(node, f"{name} may split channels or fix their number", "write flatten(x, 1)")
            return self.flattened(node, 1, -1)
        if name not in REDUCTIONS:
            refuse(node, f"{name} is not supported", "use layers of torch.nn, sums and pooling instead")
        given = argument(node, 1, "dim")
        dims = [self._from_last(node, dim) for dim in (given if isinstance(given, tuple | list) else [given])]
        if self.axis in dims:
            refuse(node, f"{name} runs over the channels", "let it run over space or the sequence only")
        if argument(node, 2, "keepdim", False):
            return self
        behind = sum(dim > self.axis for dim in dims)
        return replace(self, axis=self.axis + behind, rank=self.rank and self.rank - len(dims))

    def pooled(self, node: fx.Node) -> "Stream":
        """The stream after a pooling over space."""
        if self.rank is None or self.rank + self.axis != 1:
            refuse(node, "it pools over the channels", "pool over space, with the channels in the second dimension")
        return self

    def flattened(self, node: fx.Node, start: int, end: int) -> "Stream":
        """The stream with the dimensions from `start` to `end` made one."""
        if self.axis == -1 and self.rank is None and (start, end) == (1, -1):
            return replace(self, rank=2)  # were there more dimensions, the next layer's size would not fit
        first, last = self._from_last(node, start), self._from_last(node, end)
        rank = self.rank and self.rank - (last - first)
        if self.axis < first:
            return replace(self, axis=self.axis + last - first, rank=rank)
        if self.axis > last or first == last:
            return replace(self, rank=rank)
        if self.axis != first or last != -1:
            refuse(node, "channels are not the first dimension it flattens", "flatten from the channels to the end")
        return replace(self, axis=-1, rank=rank, flat=True)

    def _from_last(self, node: fx.Node, dim: Any) -> int:
        """A dimension counted from the last one."""
        if not isinstance(dim, int) or (dim >= 0 and self.rank is None):
            refuse(
                node, f"the dimension {dim} of this tensor is unknown", "name dimensions, counted from the last (-1)"
            )
        return dim if dim < 0 or self.rank is None else dim - self.rank


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A parameter, buffer or constant that forward reads by itself; its last `intact` dimensions are as stored."""

    tensor: Tensor
    intact: int

    def indexed(self, index: Any) -> "Stored":
        """The tensor at an index, which touches its leading dimensions."""
        parts = list(index) if isinstance(index, tuple | list) else [index]
        while parts and parts[-1] == slice(None):
            parts.pop()
        return replace(self, intact=max(0, self.intact - len(parts)))


class Plain:
    """A tensor without channels: the model's input, or made from it."""


Value = Stream | Stored | Plain | tuple[Any, ...] | None  # None: a number, a shape, a device


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
