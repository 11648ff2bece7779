"""How operations carry entries on: each rule takes an operation's arguments and gives the entries of its outputs.

A product joins the entries that it sums over, an elementwise operation those of its operands; an operation that only
moves numbers is applied to the entries themselves. Read next: `operations.py`, which names the rule of each operation.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedgmr.submodels.channels.classes import Dims, Entries
from fedgmr.submodels.channels.notes import Notes

STATISTICS = frozenset(("sum", "mean", "var", "std", "var_mean", "linalg_vector_norm", "norm"))  # of the kept channels


def combined(notes: Notes, tensors: Sequence[Tensor], out: Tensor) -> Dims:
    """Elementwise: dimensions that line up have the same entries."""
    dims = list[Entries]()
    for back in range(out.dim(), 0, -1):
        size = out.shape[-back]
        along = [notes.dims(t)[-back] for t in tensors if t.dim() >= back and t.shape[-back] == size]
        for other in along[1:]:
            notes.classes.join(along[0], other)
        dims.append(along[0] if along else np.zeros(size, dtype=np.int64))
    return tuple(dims)


def moved(notes: Notes, func: Any, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """Numbers that only move: the same is done to each dimension's entries, spread over the whole tensor."""
    key = next(iter(given))  # self or tensors
    sources = given[key] if isinstance(given[key], list | tuple) else [given[key]]
    carried = [list(none(one.shape)) for one in out]
    if "value" in given:  # of a padding: channels that are never sliced
        given = given | {"value": 0}
    rank = max(source.dim() for source in sources)
    for dim in range(rank):
        along = [notes.dims(source)[dim] if source.dim() == rank else None for source in sources]
        if not any(entries is not None and entries.any() for entries in along):
            continue
        spread = [_spread(source, entries, dim) for source, entries in zip(sources, along, strict=True)]
        moved = func(**given | {key: spread if isinstance(given[key], list | tuple) else spread[0]})
        for one, dims in zip(tree_leaves(moved), carried, strict=True):
            _place(notes, one.numpy(), dims, [entries for entries in along if entries is not None])
    return [tuple(dims) for dims in carried]


def _place(notes: Notes, entries: Entries, dims: list[Entries], before: Sequence[Entries]) -> None:
    """Find the dimension that the moved entries now run along.

    Where they run along several, channels were divided, into heads say: each head keeps the same of them.
    """
    varying = [dim for dim in range(entries.ndim) if (entries != entries.take([0], dim)).any()]
    if not varying:
        if entries.any():  # one channel was picked out
            for whole in before:
                notes.keep_whole("it picks single channels", whole)
        return
    main = varying[-1] if len(varying) <= 2 else max(varying, key=lambda dim: (entries.shape[dim], dim))
    for dim in varying:
        if dim != main:
            notes.classes.join(entries, entries.take([0], dim))
    line = entries[tuple(slice(None) if dim == main else 0 for dim in range(entries.ndim))]
    if dims[main].any():
        notes.keep_whole("it merges two dimensions of channels", line)
    else:
        dims[main] = line.copy()


def pooled(notes: Notes, name: str, tensor: Tensor, out: list[Tensor]) -> list[Dims]:
    """Operations over space, the last one to three dimensions."""
    count = re.search(r"(\d)d", name)
    dims, first = notes.dims(tensor), tensor.dim() - (int(count[1]) if count else tensor.dim())
    for entries in dims[first:]:
        notes.keep_whole(f"{name} runs over its channels", entries)
    return [(*dims[:first], *none(one.shape[first:])) for one in out]


def along(notes: Notes, name: str, tensors: Sequence[Tensor], dim: Any, out: Tensor) -> Dims:
    """Reductions, and what else runs along a dimension: statistics are of the kept channels, others need all."""
    tensor, *others = tensors
    dims = notes.dims(tensor)
    for entries in (entries for other in others for entries in notes.dims(other)):
        notes.keep_whole(f"{name} is not followed", entries)
    chosen = range(tensor.dim()) if dim in (None, []) else dim if isinstance(dim, list | tuple) else [dim]
    over = {one % tensor.dim() for one in chosen} if tensor.dim() else set()
    if name not in STATISTICS:
        for one in over:
            notes.keep_whole(f"{name.strip('_')} runs over its channels", dims[one])
    if out.dim() == tensor.dim():
        pairs = zip(dims, out.shape, strict=True)
        return tuple(none((n,))[0] if i in over or len(e) != n else e for i, (e, n) in enumerate(pairs))
    return tuple(entries for i, entries in enumerate(dims) if i not in over)


def normed(notes: Notes, name: str, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """A normalisation: its tensors have the entries of the channels that it covers."""
    source, *others = [value for value in given.values() if isinstance(value, Tensor)]
    dims = notes.dims(source)
    last = "normalized_shape" in given
    for other in others:
        for own, entries in zip(notes.dims(other)[::-1], dims[::-1] if last else dims[1:2], strict=False):
            notes.classes.join(own, entries)
    if name == "native_group_norm" and given["group"] < source.shape[1]:
        notes.divided.append((notes.layer, dims[1], given["group"]))
    return [dims, *(none(one.shape) for one in out[1:])]


def _product(notes: Notes, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """mm, bmm, mv, dot and their forms with a summand."""
    *added, one, two = [value for value in given.values() if isinstance(value, Tensor)]
    left, right = notes.dims(one), notes.dims(two)
    shared = len(left) - 2 if len(left) == 3 else 0  # leading dimensions of a batch
    for a, b in zip(left[:shared], right[:shared], strict=True):
        notes.classes.join(a, b)
    notes.classes.join(left[-1], right[shared])
    dims = (*left[:-1], *right[shared + 1 :])
    for summand in added:
        for own, entries in zip(notes.dims(summand)[::-1], dims[::-1], strict=False):
            if len(own) == len(entries):
                notes.classes.join(own, entries)
    return [dims]


def _convolved(notes: Notes, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """Convolutions; one with groups keeps or drops whole groups, inputs and outputs together."""
    batch, before, *space = notes.dims(given["input"])
    first, second, *kernel = notes.dims(given["weight"])
    groups = given["groups"]
    for entries in (*space, *kernel):
        notes.classes.join(entries, 0)
    inputs, outputs = (first, second) if given["transposed"] else (second, first)
    if groups > 1:
        each = before.reshape(groups, -1)
        notes.classes.join(each, each[:, :1])
        notes.classes.join(second, 0)
        if given["transposed"]:
            notes.classes.join(inputs, before)
            outputs = np.repeat(each[:, 0], out[0].shape[1] // groups)
        else:
            notes.classes.join(outputs.reshape(groups, -1), each[:, :1])
    else:
        notes.classes.join(before, inputs)
    if given.get("bias") is not None:
        notes.classes.join(notes.dims(given["bias"])[0], outputs)
    return [(batch, outputs, *none(out[0].shape[2:]))]


def _turned(notes: Notes, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """t, transpose, permute."""
    dims = notes.dims(given["self"])
    order = given.get("dims", list(range(len(dims))))
    one, two = given.get("dim0", 0), given.get("dim1", -1)
    if "dims" not in given and dims:
        order[one], order[two] = order[two], order[one]
    return [tuple(dims[i] for i in order)]


def _embedded(notes: Notes, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    rows, channels = notes.dims(given["weight"])
    notes.looked_up.append(rows)
    return [(*notes.dims(given["indices"]), channels)]


def _indexed(notes: Notes, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """Rows by their numbers: whole along the indexed dimensions; the others, which follow on, are as they were."""
    dims = notes.dims(given["self"])
    chosen = [i for i, index in enumerate(given["indices"]) if index is not None]
    for i in chosen:
        notes.keep_whole("it picks channels by number", dims[i])
    front, behind = chosen[0], dims[chosen[-1] + 1 :]
    middle = out[0].shape[front : out[0].dim() - len(behind)]
    if chosen != list(range(front, chosen[-1] + 1)):
        for entries in dims:
            notes.keep_whole("it picks channels by number", entries)
        return [none(out[0].shape)]
    return [(*dims[:front], *none(middle), *behind)]


def _rolled(notes: Notes, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
    """Fewer channels would wrap round elsewhere; along other dimensions all stay in their places."""
    dims = notes.dims(given["self"])
    for dim in given.get("dims") or range(len(dims)):
        notes.keep_whole("roll runs over its channels", dims[dim])
    return [dims]


RULES: dict[str, Callable[[Notes, dict[str, Any], list[Tensor]], list[Dims]]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv"), _product),
    **dict.fromkeys(("t", "transpose", "permute"), _turned),
    "convolution": _convolved,
    "embedding": _embedded,
    "index": _indexed,
    "roll": _rolled,
}


def none(shape: Sequence[int]) -> Dims:
    """Entries that are never sliced."""
    return tuple(np.zeros(size, dtype=np.int64) for size in shape)


def _spread(source: Tensor, entries: Entries | None, dim: int) -> Tensor:
    if entries is None:
        return torch.zeros(source.shape, dtype=torch.int64)
    shape = [-1 if i == dim else 1 for i in range(source.dim())]
    return torch.from_numpy(entries).view(shape).expand(source.shape).contiguous()
