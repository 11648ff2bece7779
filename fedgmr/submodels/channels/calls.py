"""Sizes that a model's forward writes out (`view(batch, length, heads, 8)`), put right in small copies of the model.

While channels are followed, the calls of PyTorch's functions are noted in their order, with the channels of what they
take and give. In a small module the calls that name sizes get those that are kept. Read next: `slicing.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function
from torch.utils._pytree import tree_leaves

Axes = tuple[Tensor | None, ...]  # per dimension: the channel of each index, -1 for none; None: none in all of it
Counts = list[int] | None

_CREATES = frozenset(("zeros", "ones", "empty", "full", "rand", "randn"))
_RESHAPES = _CREATES | {"view", "reshape", "expand", "new_zeros", "new_ones", "new_empty", "new_full"}
_SPLITS = frozenset(("split", "split_with_sizes", "chunk", "tensor_split"))
_NORMS = frozenset(("layer_norm", "rms_norm"))
_SIZED = _RESHAPES | _SPLITS | _NORMS | {"unflatten", "narrow", "__getitem__"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """A call, and the channels of the tensors that it took and gave."""

    name: str
    layer: str
    inputs: tuple[Axes, ...]
    outputs: tuple[Axes, ...]


class Recording(TorchFunctionMode):
    """Hands every call that gives tensors to `note`: its name, its tensors, and those it gave."""

    def __init__(self, note: Callable[[str, list[Tensor], list[Tensor]], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make a call and note it."""
        outputs = func(*args, **(kwargs or {}))
        if found := _tensors(outputs):
            self.note(_name(func), _tensors(args), found)
        return outputs


class Resizing(TorchFunctionMode):
    """Lets the calls that name sizes have those of the kept channels; `kept` (bool) has a last entry for no channel."""

    def __init__(self, calls: Sequence[Call], kept: Tensor) -> None:
        super().__init__()
        self.at = 0
        self.calls = [call for call in calls if call.name in _SIZED]
        # By call, tensor and dimension: how many of its first indices are kept, from 0 of none to all.
        self.inputs = [[[_counts(axis, kept) for axis in axes] for axes in call.inputs] for call in self.calls]
        self.outputs = [[[_counts(axis, kept) for axis in axes] for axes in call.outputs] for call in self.calls]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make a call, with the kept sizes where it names sizes."""
        kwargs, name = kwargs or {}, _name(func)
        if name not in _SIZED:
            return func(*args, **kwargs)
        if self.at == len(self.calls) or self.calls[self.at].name != name:
            raise ValueError(
                f"The model's forward calls {name} where it did not when its channels were followed: let it take the "
                "same way for every batch, or choose a ranking of single coordinates (taylor, magnitude)."
            )
        before, after = self.inputs[self.at], self.outputs[self.at]
        self.at += 1
        if not any(counts for dims in (*before, *after) for counts in dims):
            return func(*args, **kwargs)
        sizes = [[None if counts is None else counts[-1] for counts in dims] for dims in after]
        if name in _SPLITS:
            dim = kwargs.get("dim", args[2] if len(args) > 2 else 0)
            pieces = [size[dim] for size in sizes]
            return func(*args, **kwargs) if None in pieces else torch.split(args[0], pieces, dim)
        return func(*_resized(name, before, sizes[0], list(args)), **kwargs)


class Checking(TorchFunctionMode):
    """Compares every call in a small module with the one in the whole model: the same one, with the kept sizes."""

    def __init__(self, calls: Sequence[Call], kept: Tensor) -> None:
        super().__init__()
        self.calls, self.kept, self.at = calls, kept, 0  # `at`: calls made so far

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make a call and compare it; AssertionError at the call `at` where it differs."""
        outputs = func(*args, **(kwargs or {}))
        if found := _tensors(outputs):
            call = self.calls[self.at]
            assert call.name == _name(func)
            for tensor, axes in zip(found, call.outputs, strict=False):
                pairs = zip(tensor.shape, axes, strict=True)
                assert all(axis is None or size == int(self.kept[axis].sum()) for size, axis in pairs)
            self.at += 1
        return outputs


def one_call(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A module's forward as a single call: what it consists of may differ in small modules."""
    if has_torch_function(tensors := tuple(_tensors((args, kwargs)))):
        return handle_torch_function(one_call, tensors, forward, *args, **kwargs)
    return forward(*args, **kwargs)


def _resized(name: str, before: list[list[Counts]], sizes: list[int | None], args: list[Any]) -> list[Any]:
    """The arguments of a call with the kept sizes."""
    if name in _RESHAPES:
        return _reshaped(sizes, args, first=name not in _CREATES)
    if name == "__getitem__":
        return [args[0], _index(args[1], before[0])]
    if name == "unflatten":
        dim = args[1] % args[0].dim()
        return [args[0], dim, _merged(sizes[dim : dim + len(args[2])], args[2])]
    if name == "narrow":
        counts = before[0][args[1]]
        return args if counts is None else [*args[:2], counts[args[2]], sizes[args[1]]]
    return [args[0], _merged(sizes[-len(args[1]) :], args[1]), *args[2:]]  # a norm and its shape


def _index(index: Any, before: list[Counts]) -> tuple[Any, ...]:
    """An index whose slices count the kept channels alone."""
    parts, at = list(index) if isinstance(index, tuple) else [index], 0
    for i, part in enumerate(parts):
        if part is Ellipsis:
            at = len(before) - sum(rest is not None for rest in parts[i + 1 :])
            continue
        if isinstance(part, slice) and (counts := before[at]) is not None:
            start, stop, step = part.indices(len(counts) - 1)
            parts[i] = slice(counts[start], counts[stop], step)
        at += part is not None
    return tuple(parts)


def _counts(axis: Tensor | None, kept: Tensor) -> Counts:
    return None if axis is None else [0, *kept[axis].cumsum(0).tolist()]


def _reshaped(sizes: list[int | None], args: list[Any], *, first: int) -> list[Any]:
    """The arguments of a call that names all sizes, one by one or in a list."""
    if len(args) == first or isinstance(args[first], torch.dtype):
        return args
    if isinstance(args[first], tuple | list):
        return [*args[:first], _merged(sizes, args[first]), *args[first + 1 :]]
    return [*args[:first], _merged(sizes, args[first:])]


def _merged(sizes: Sequence[int | None], given: Sequence[int]) -> list[int]:
    return [old if new is None else new for new, old in zip(sizes, given, strict=True)]


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
