"""Physically small modules for the width methods (section 2.0, structured slicing).

A sliced module has the structure and the parameter names of the whole one and only the kept channels, so its flat
vector is the whole flat vector at the kept coordinates, in ascending order. It computes what the whole module does with
the other coordinates at zero, except in layer norms, group norms and attention: a layer norm averages over the kept
channels only, a group norm divides them into as many groups as the whole one, and softmax scales by the kept head
dimension. Read next: `fedgmr/submodels/channels/plan.py`.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from fedgmr.submodels.channels.groups import Axes
from fedgmr.submodels.channels.plan import ChannelPlan


def slice_module(model: nn.Module, plan: ChannelPlan, kept: Mapping[int, Tensor], *, scale: float = 1.0) -> nn.Module:
    """Make a small copy of `model` with only the kept channels: ascending, by index of the group; one left out stays.

    Each `nn.MultiheadAttention` becomes a `SlicedAttention`. HeteroFL's `scale` multiplies the output of every hidden
    layer in training; in attention also queries, keys and values, outputs of linear layers.
    """
    masks = [torch.ones(group.size, dtype=torch.bool) for group in plan.groups]
    for index, channels in kept.items():
        masks[index] = torch.zeros_like(masks[index]).index_fill_(0, channels.cpu(), True)
        assert masks[index].all() or not plan.groups[index].fixed
    # Tensors in deepcopy's memo are not copied again: the whole tensors are replaced, not duplicated.
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        values = _slice_tensor(parameter.detach(), plan.axes[name], masks)
        memo[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
    for name, buffer in model.named_buffers():
        memo[id(buffer)] = _slice_tensor(buffer, plan.axes.get(name, ()), masks)
    for module in list(model.modules()):
        if isinstance(module, nn.MultiheadAttention):
            memo[id(module)] = SlicedAttention(module, memo)
    small = copy.deepcopy(model, memo)
    for path, module in small.named_modules():
        _adjust(path, module, plan, masks)
    for path in plan.hidden if scale != 1 else ():
        layer = small.get_submodule(path)
        if isinstance(layer, SlicedAttention):
            layer.factor = scale
        else:
            layer.register_forward_hook(lambda layer, _, output: output * scale if layer.training else output)
    return small


class SlicedAttention(nn.Module):
    """`nn.MultiheadAttention` with an inner width, heads x head_dim, of its own; its parameters have the same names."""

    in_proj_bias: nn.Parameter | None

    def __init__(self, whole: nn.MultiheadAttention, memo: dict[int, Any]) -> None:
        """A copy of `whole` with the tensors that `memo` has for it."""
        super().__init__()
        self.num_heads, self.dropout, self.batch_first = whole.num_heads, whole.dropout, whole.batch_first
        self.in_proj_weight: nn.Parameter = copy.deepcopy(whole.in_proj_weight, memo)
        self.register_parameter("in_proj_bias", copy.deepcopy(whole.in_proj_bias, memo))
        self.out_proj = copy.deepcopy(whole.out_proj, memo)
        self.factor = 1.0  # of the scaler; see slice_module
        self.train(whole.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attention over batches of sequences; the weights are never returned."""
        weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            self._heads(linear(sequence, weight, bias))
            for sequence, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        assert attn_mask is not None or not is_causal  # as nn.MultiheadAttention has it: a hint beside the mask
        mask = None
        if not is_causal or key_padding_mask is not None:
            mask = self._mask(attn_mask, key_padding_mask, q.dtype)
        dropout = self.dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=is_causal and mask is None)
        out = self._scaled(self.out_proj(mixed.transpose(1, 2).flatten(2)))
        return out if self.batch_first else out.transpose(0, 1), None

    def _heads(self, projected: Tensor) -> Tensor:
        """[batch, heads, sequence, head_dim]."""
        batched = self._scaled(projected if self.batch_first else projected.transpose(0, 1))
        return batched.reshape(*batched.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _mask(self, attn_mask: Tensor | None, padding: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Both masks as one that is added to the scores [batch, heads, sequence, sequence]."""
        mask = None if attn_mask is None else _additive(attn_mask, dtype)
        if mask is not None and mask.dim() == 3:
            mask = mask.view(-1, self.num_heads, *mask.shape[1:])
        if padding is None:
            return mask
        keys = _additive(padding, dtype)[:, None, None]
        return keys if mask is None else mask + keys

    def _scaled(self, values: Tensor) -> Tensor:
        return values * self.factor if self.training and self.factor != 1 else values


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Minus infinity where a boolean mask says: look away; other masks are added as they are."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -torch.inf)


def _slice_tensor(tensor: Tensor, axes: Axes, masks: list[Tensor]) -> Tensor:
    small = tensor
    for dim, axis in enumerate(axes):
        if axis is not None and not masks[axis.group].all():
            indices = torch.nonzero(axis.spread(masks[axis.group])).view(-1)
            small = small.index_select(dim, indices.to(tensor.device))
    return small.clone() if small is tensor else small


def _adjust(path: str, module: nn.Module, plan: ChannelPlan, masks: list[Tensor]) -> None:
    """Bring the sizes that a layer remembers in line with its sliced tensors."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Conv1d | nn.Conv2d):
        if module.groups > 1:  # depthwise
            module.groups = module.weight.shape[0]
        module.out_channels, module.in_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]
    if path not in plan.norms:
        return
    kept = plan.norms[path].spread(masks[plan.norms[path].group])
    count = int(kept.sum())
    if isinstance(module, nn.LayerNorm):
        module.normalized_shape = (count,)
    elif isinstance(module, nn.GroupNorm):
        if module.num_groups == module.num_channels:  # every channel by itself
            module.num_groups = count
        assert count % module.num_groups == 0
        module.num_channels = count
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        module.num_features = count
