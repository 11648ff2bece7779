"""The channels of a model, followed by computation: one forward pass in which every tensor carries its entries.

The pass is seen at the level of PyTorch's own operations, into which layers, attention and recurrent nets of any
spelling fall apart. A product joins the entries that it sums over, an elementwise operation those of its operands; an
operation that only moves numbers is applied to the entries themselves. What nothing here knows keeps its full width.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedgmr.submodels.channels.classes import Classes, Dims, Entries


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAME = _words("hardswish clone detach alias _to_copy lift_fresh lift_fresh_copy native_dropout bernoulli copy_")
_MOVES = _words(
    """view _unsafe_view _reshape_alias expand slice select narrow cat stack split split_with_sizes unsafe_split
    unsafe_split_with_sizes unsafe_chunk unbind unsqueeze squeeze flip roll repeat unfold constant_pad_nd diagonal"""
)
_SPACE = ("max_pool", "avg_pool", "adaptive_", "_adaptive_", "upsample_", "_upsample_", "reflection_pad", "replication")
_STATISTICS = _words("sum mean var std var_mean linalg_vector_norm norm")  # over the kept channels
_FILLED = _words("zeros ones full empty rand randn new_zeros new_ones new_full new_empty")
_LIKE = _words("zeros_like ones_like full_like empty_like rand_like randn_like")
_NORMS = ("native_batch_norm", "_native_batch_norm", "native_layer_norm", "_fused_rms_norm", "native_group_norm")


@dataclass(frozen=True, kw_only=True, eq=False)
class Whole:
    """Entries that stay whole, and why."""

    layer: str
    reason: str
    entries: Entries


class Following(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the entries of the model's tensors through one forward pass; `stored` are parameters and buffers."""

    def __init__(self, stored: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.classes = Classes()
        self.layers = [""]  # the modules that compute, the innermost last
        self.whole: list[Whole] = []
        self.looked_up: list[Entries] = []  # the rows of embeddings
        self.divided: list[tuple[str, Entries, int]] = []  # layer, channels and number of groups of a group norm
        self._known: dict[int, tuple[Tensor, Dims]] = {}  # by id; the tensor is kept, so that the id stays its own
        self._stored = {id(tensor) for tensor in stored.values()}
        for tensor in stored.values():
            self.set(tensor, tuple(self.classes.new(size) for size in tensor.shape))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip PyTorch's compiler, it would be imported first, which takes seconds

    def set(self, tensor: Tensor, dims: Dims) -> None:
        """Note the entries of a tensor."""
        assert tuple(map(len, dims)) == tuple(tensor.shape)
        self._known[id(tensor)] = tensor, dims

    def dims(self, tensor: Tensor) -> Dims:
        """The entries of a tensor; one that is neither stored nor computed stays whole."""
        if id(tensor) not in self._known:
            self._keep_new(tensor, "it uses a tensor that is neither a parameter nor a buffer")
        return self._known[id(tensor)][1]

    @property
    def layer(self) -> str:
        """The path of the module that computes."""
        return self.layers[-1]

    def keep_whole(self, reason: str, entries: Entries) -> None:
        """Note entries that stay whole."""
        self.whole.append(Whole(layer=self.layer, reason=reason, entries=entries))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation, or the ones it consists of, and note the entries of its outputs."""
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        pointwise = torch.Tag.pointwise in func.tags
        if not pointwise and name not in _MOVES and name not in _RULES:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        outputs = func(*args, **kwargs)
        found = [out for out in tree_leaves(outputs) if isinstance(out, Tensor)]
        for out, dims in zip(found, self._carried(func, name, pointwise, given, found), strict=True):
            self.set(out, dims)
        return outputs

    def _carried(self, func: Any, name: str, pointwise: bool, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
        """The entries of an operation's outputs."""
        tensors = [value for value in tree_leaves(given) if isinstance(value, Tensor)]
        if pointwise or name in _SAME or name in _LIKE:
            return [self._combined(tensors, one) for one in out]
        if name in _FILLED:
            return [tuple(self.classes.new(size) for size in one.shape) for one in out]
        if not tensors:
            for one in out:
                self._keep_new(one, f"{name} counts its channels")
            return [self.dims(one) for one in out]
        if name in _MOVES:
            return self._moved(func, given, out)
        if name in _RULES:
            return _RULES[name](self, given, out)
        if name.startswith(_NORMS):
            return self._normed(name, given, out)
        if name.startswith(_SPACE):
            return self._pooled(name, tensors[0], out)
        if "dim" in given or name in _STATISTICS:
            return [self._along(name, tensors, given.get("dim"), one) for one in out]
        for entries in (entries for tensor in tensors for entries in self.dims(tensor)):
            self.keep_whole(f"{name} is not followed", entries)
        return [_none(one.shape) for one in out]

    def _keep_new(self, tensor: Tensor, reason: str) -> None:
        self.set(tensor, tuple(self.classes.new(size) for size in tensor.shape))
        for entries in self.dims(tensor):
            self.keep_whole(reason, entries)

    def _combined(self, tensors: Sequence[Tensor], out: Tensor) -> Dims:
        """Elementwise: dimensions that line up have the same entries."""
        dims = list[Entries]()
        for back in range(out.dim(), 0, -1):
            size = out.shape[-back]
            along = [self.dims(t)[-back] for t in tensors if t.dim() >= back and t.shape[-back] == size]
            for other in along[1:]:
                self.classes.join(along[0], other)
            dims.append(along[0] if along else np.zeros(size, dtype=np.int64))
        return tuple(dims)

    def _moved(self, func: Any, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
        """Numbers that only move: the same is done to each dimension's entries, spread over the whole tensor."""
        key = next(iter(given))  # self or tensors
        sources = given[key] if isinstance(given[key], list | tuple) else [given[key]]
        carried = [list(_none(one.shape)) for one in out]
        if "value" in given:  # of a padding: channels that are never sliced
            given = given | {"value": 0}
        rank = max(source.dim() for source in sources)
        for dim in range(rank):
            along = [self.dims(source)[dim] if source.dim() == rank else None for source in sources]
            if not any(entries is not None and entries.any() for entries in along):
                continue
            spread = [_spread(source, entries, dim) for source, entries in zip(sources, along, strict=True)]
            moved = func(**given | {key: spread if isinstance(given[key], list | tuple) else spread[0]})
            for one, dims in zip(tree_leaves(moved), carried, strict=True):
                self._place(one.numpy(), dims, [entries for entries in along if entries is not None])
        return [tuple(dims) for dims in carried]

    def _place(self, entries: Entries, dims: list[Entries], before: Sequence[Entries]) -> None:
        """Find the dimension that the moved entries now run along.

        Where they run along several, channels were divided, into heads say: each head keeps the same of them.
        """
        varying = [dim for dim in range(entries.ndim) if (entries != entries.take([0], dim)).any()]
        if not varying:
            if entries.any():  # one channel was picked out
                for whole in before:
                    self.keep_whole("it picks single channels", whole)
            return
        main = varying[-1] if len(varying) <= 2 else max(varying, key=lambda dim: (entries.shape[dim], dim))
        for dim in varying:
            if dim != main:
                self.classes.join(entries, entries.take([0], dim))
        line = entries[tuple(slice(None) if dim == main else 0 for dim in range(entries.ndim))]
        if dims[main].any():
            self.keep_whole("it merges two dimensions of channels", line)
        else:
            dims[main] = line.copy()

    def _pooled(self, name: str, tensor: Tensor, out: list[Tensor]) -> list[Dims]:
        """Operations over space, the last one to three dimensions."""
        count = re.search(r"(\d)d", name)
        dims, first = self.dims(tensor), tensor.dim() - (int(count[1]) if count else tensor.dim())
        for entries in dims[first:]:
            self.keep_whole(f"{name} runs over its channels", entries)
        return [(*dims[:first], *_none(one.shape[first:])) for one in out]

    def _along(self, name: str, tensors: Sequence[Tensor], dim: Any, out: Tensor) -> Dims:
        """Reductions, and what else runs along a dimension: statistics are of the kept channels, others need all."""
        tensor, *others = tensors
        dims = self.dims(tensor)
        for entries in (entries for other in others for entries in self.dims(other)):
            self.keep_whole(f"{name} is not followed", entries)
        chosen = range(tensor.dim()) if dim in (None, []) else dim if isinstance(dim, list | tuple) else [dim]
        over = {one % tensor.dim() for one in chosen} if tensor.dim() else set()
        if name not in _STATISTICS:
            for one in over:
                self.keep_whole(f"{name.strip('_')} runs over its channels", dims[one])
        if out.dim() == tensor.dim():
            pairs = zip(dims, out.shape, strict=True)
            return tuple(_none((n,))[0] if i in over or len(e) != n else e for i, (e, n) in enumerate(pairs))
        return tuple(entries for i, entries in enumerate(dims) if i not in over)

    def _normed(self, name: str, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
        """A normalisation: its tensors have the entries of the channels that it covers."""
        source, *others = [value for value in given.values() if isinstance(value, Tensor)]
        dims = self.dims(source)
        last = "normalized_shape" in given
        for other in others:
            for own, entries in zip(self.dims(other)[::-1], dims[::-1] if last else dims[1:2], strict=False):
                self.classes.join(own, entries)
        if name == "native_group_norm" and given["group"] < source.shape[1]:
            self.divided.append((self.layer, dims[1], given["group"]))
        return [dims, *(_none(one.shape) for one in out[1:])]


def _product(follow: Following, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """mm, bmm, mv, dot and their forms with a summand."""
    *added, one, two = [value for value in given.values() if isinstance(value, Tensor)]
    left, right = follow.dims(one), follow.dims(two)
    shared = len(left) - 2 if len(left) == 3 else 0  # leading dimensions of a batch
    for a, b in zip(left[:shared], right[:shared], strict=True):
        follow.classes.join(a, b)
    follow.classes.join(left[-1], right[shared])
    dims = (*left[:-1], *right[shared + 1 :])
    for summand in added:
        for own, entries in zip(follow.dims(summand)[::-1], dims[::-1], strict=False):
            if len(own) == len(entries):
                follow.classes.join(own, entries)
    return [dims]


def _convolved(follow: Following, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """Convolutions; one with groups keeps or drops whole groups, inputs and outputs together."""
    batch, before, *space = follow.dims(given["input"])
    first, second, *kernel = follow.dims(given["weight"])
    groups = given["groups"]
    for entries in (*space, *kernel):
        follow.classes.join(entries, 0)
    inputs, outputs = (first, second) if given["transposed"] else (second, first)
    if groups > 1:
        each = before.reshape(groups, -1)
        follow.classes.join(each, each[:, :1])
        follow.classes.join(second, 0)
        if given["transposed"]:
            follow.classes.join(inputs, before)
            outputs = np.repeat(each[:, 0], out[0].shape[1] // groups)
        else:
            follow.classes.join(outputs.reshape(groups, -1), each[:, :1])
    else:
        follow.classes.join(before, inputs)
    if given.get("bias") is not None:
        follow.classes.join(follow.dims(given["bias"])[0], outputs)
    return [(batch, outputs, *_none(out[0].shape[2:]))]


def _turned(follow: Following, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """t, transpose, permute."""
    dims = follow.dims(given["self"])
    order = given.get("dims", list(range(len(dims))))
    one, two = given.get("dim0", 0), given.get("dim1", -1)
    if "dims" not in given and dims:
        order[one], order[two] = order[two], order[one]
    return [tuple(dims[i] for i in order)]


def _embedded(follow: Following, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    rows, channels = follow.dims(given["weight"])
    follow.looked_up.append(rows)
    return [(*follow.dims(given["indices"]), channels)]


def _indexed(follow: Following, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """Rows by their numbers: whole along the indexed dimensions; the others, which follow on, are as they were."""
    dims = follow.dims(given["self"])
    chosen = [i for i, index in enumerate(given["indices"]) if index is not None]
    for i in chosen:
        follow.keep_whole("it picks channels by number", dims[i])
    front, behind = chosen[0], dims[chosen[-1] + 1 :]
    middle = out[0].shape[front : out[0].dim() - len(behind)]
    if chosen != list(range(front, chosen[-1] + 1)):
        for entries in dims:
            follow.keep_whole("it picks channels by number", entries)
        return [_none(out[0].shape)]
    return [(*dims[:front], *_none(middle), *behind)]


_RULES: dict[str, Callable[[Following, dict[str, Any], list[Tensor]], list[Dims]]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv"), _product),
    **dict.fromkeys(("t", "transpose", "permute"), _turned),
    "convolution": _convolved,
    "embedding": _embedded,
    "index": _indexed,
}


def _none(shape: Sequence[int]) -> Dims:
    return tuple(np.zeros(size, dtype=np.int64) for size in shape)


def _spread(source: Tensor, entries: Entries | None, dim: int) -> Tensor:
    if entries is None:
        return torch.zeros(source.shape, dtype=torch.int64)
    shape = [-1 if i == dim else 1 for i in range(source.dim())]
    return torch.from_numpy(entries).view(shape).expand(source.shape).contiguous()
