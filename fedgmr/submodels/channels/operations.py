"""The channels of a model, followed by computation: one forward pass in which every tensor carries its entries.

The pass is seen at the level of PyTorch's own operations, into which layers, attention and recurrent nets of any
spelling fall apart. Each has a rule; what no rule covers keeps its full width. Read next: `rules.py`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedgmr.submodels.channels import rules
from fedgmr.submodels.channels.classes import Dims
from fedgmr.submodels.channels.notes import Notes


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAME = _words("hardswish clone detach alias _to_copy lift_fresh lift_fresh_copy native_dropout bernoulli copy_")
_MOVES = _words(
    """view _unsafe_view _reshape_alias expand slice select narrow cat stack split split_with_sizes unsafe_split
    unsafe_split_with_sizes unsafe_chunk unbind unsqueeze squeeze flip repeat unfold constant_pad_nd diagonal"""
)
_SPACE = ("max_pool", "avg_pool", "adaptive_", "_adaptive_", "upsample_", "_upsample_", "reflection_pad", "replication")
_FILLED = _words("zeros ones full empty rand randn new_zeros new_ones new_full new_empty")
_LIKE = _words("zeros_like ones_like full_like empty_like rand_like randn_like")
_NORMS = ("native_batch_norm", "_native_batch_norm", "native_layer_norm", "_fused_rms_norm", "native_group_norm")


class Following(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes notes of the entries of all tensors while a model computes."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes = notes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip PyTorch's compiler, it would be imported first, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation, or the ones it consists of, and note the entries of its outputs."""
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        pointwise = torch.Tag.pointwise in func.tags
        if not pointwise and name not in _MOVES and name not in rules.RULES:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        outputs = func(*args, **kwargs)
        found = [out for out in tree_leaves(outputs) if isinstance(out, Tensor)]
        for out, dims in zip(found, self._carried(func, name, pointwise, given, found), strict=True):
            self.notes.set(out, dims)
        return outputs

    def _carried(self, func: Any, name: str, pointwise: bool, given: dict[str, Any], out: list[Tensor]) -> list[Dims]:
        """The entries of an operation's outputs."""
        tensors = [value for value in tree_leaves(given) if isinstance(value, Tensor)]
        if pointwise or name in _SAME or name in _LIKE:
            return [rules.combined(self.notes, tensors, one) for one in out]
        if name in _FILLED:
            return [self.notes.new(one) for one in out]
        if not tensors:
            for one in out:
                self.notes.keep_new(one, f"{name} counts its channels")
            return [self.notes.dims(one) for one in out]
        if name in _MOVES:
            return rules.moved(self.notes, func, given, out)
        if name in rules.RULES:
            return rules.RULES[name](self.notes, given, out)
        if name.startswith(_NORMS):
            return rules.normed(self.notes, name, given, out)
        if name.startswith(_SPACE):
            return rules.pooled(self.notes, name, tensors[0], out)
        if "dim" in given or name in rules.STATISTICS:
            return [rules.along(self.notes, name, tensors, given.get("dim"), one) for one in out]
        for entries in (entries for tensor in tensors for entries in self.notes.dims(tensor)):
            self.notes.keep_whole(f"{name} is not followed", entries)
        return [rules.none(one.shape) for one in out]
