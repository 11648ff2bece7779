"""Physically small modules for the width methods (section 2.0, structured slicing).

A sliced module has the structure and the parameter names of the whole one and only the kept channels, so its flat
vector is the whole flat vector at the kept coordinates, in ascending order. It computes what the whole module does with
the other coordinates at zero, except where statistics are taken over channels: a layer norm averages over the kept
channels only, a group norm divides them into as many groups as the whole one, and attention scales by the kept head
dimension where it looks that up. Read next: `plan.py`.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from fedgmr.submodels.channels.calls import Axes, Resizing, one_call
from fedgmr.submodels.channels.plan import ChannelPlan

LAST_NORMS = (nn.LayerNorm, nn.RMSNorm)  # these normalise over the last dimensions, the others over the second
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, *LAST_NORMS)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def slice_module(model: nn.Module, plan: ChannelPlan, kept: Tensor, *, scale: float = 1.0) -> nn.Module:
    """Make a small copy of `model` with only the kept channels; `kept` (bool) has a last entry for no channel: True.

    Each `nn.MultiheadAttention` becomes a `SlicedAttention`. HeteroFL's `scale` multiplies the output of every hidden
    layer in training, in attention also queries, keys and values, outputs of linear layers; gates of recurrent layers
    have no scale.
    """
    assert bool(kept[-1])
    # Tensors in deepcopy's memo are not copied again: the whole tensors are replaced, not duplicated.
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        values = _slice_tensor(parameter.detach(), plan.axes[name], kept)
        memo[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
    for name, buffer in model.named_buffers():
        memo[id(buffer)] = _slice_tensor(buffer, plan.axes[name], kept)
    for module in list(model.modules()):
        if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            memo[id(module)] = SlicedAttention(module, memo)
    small = copy.deepcopy(model, memo)
    for (path, module), whole in zip(small.named_modules(), model.modules(), strict=True):
        if isinstance(module, NORMS) and path in plan.norms:
            covered = zip(plan.norms[path], _covered(module), strict=True)
            _adjust_norm(module, [size if axis is None else int(kept[axis].sum()) for axis, size in covered])
        else:
            _adjust(module, whole)
    for path in hidden_layers(model, plan) if scale != 1 else ():
        layer = small.get_submodule(path)
        if isinstance(layer, SlicedAttention):
            layer.factor = scale
        else:
            layer.register_forward_hook(lambda layer, _, output: output * scale if layer.training else output)
    if plan.calls:
        small.forward = _resized(small.forward, Resizing(plan.calls, kept))
    return small


def hidden_layers(model: nn.Module, plan: ChannelPlan) -> tuple[str, ...]:
    """The weight layers (embeddings too) whose output is sliced: HeteroFL's scaler comes after these."""
    axes = {id(parameter): plan.axes[name] for name, parameter in model.named_parameters()}
    layers, inside = [], set[nn.Module]()
    weight: Tensor | None
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            inside.add(module.out_proj)
            weight, dim = module.in_proj_weight, 0
        elif isinstance(module, (*_TRANSPOSED, nn.Embedding)):
            weight, dim = module.weight, 1
        elif isinstance(module, nn.Linear | nn.modules.conv._ConvNd) and module not in inside:
            weight, dim = module.weight, 0
        else:
            continue
        if weight is not None and axes[id(weight)][dim] is not None:
            layers.append(path)
    return tuple(layers)


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
        self._qkv_same_embed_dim = False  # keeps nn.TransformerEncoderLayer off its path for whole modules
        self.factor = 1.0  # of the scaler; see slice_module
        self.train(whole.training)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Attention over batches of sequences; the weights are never returned."""
        return one_call(self.attend, *args, **kwargs)  # type: ignore[no-any-return]

    def attend(
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
        """The same, computed."""
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


def _slice_tensor(tensor: Tensor, axes: Axes, kept: Tensor) -> Tensor:
    small = tensor
    for dim, axis in enumerate(axes):
        if axis is not None and not kept[axis].all():
            small = small.index_select(dim, torch.nonzero(kept[axis]).view(-1).to(tensor.device))
    return small.clone() if small is tensor else small


def _resized(forward: Callable[..., Any], resizing: Resizing) -> Callable[..., Any]:
    """A forward pass with other sizes than it names."""

    def run(*args: Any, **kwargs: Any) -> Any:
        resizing.at = 0
        with resizing:
            return forward(*args, **kwargs)

    return run


def _adjust(module: Any, whole: Any) -> None:
    """Bring the sizes that a layer remembers in line with its sliced tensors."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.conv._ConvNd):
        first, second = module.weight.shape[:2]
        module.groups = whole.groups if whole.groups == 1 else whole.groups * first // whole.weight.shape[0]
        pair = (first, second * module.groups)
        module.in_channels, module.out_channels = pair if isinstance(module, _TRANSPOSED) else pair[::-1]
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]
    elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
        inputs, hidden, *_ = (weight.shape for name, weight in module.named_parameters() if weight.dim() == 2)
        before = next(weight.shape[0] for weight in whole.parameters())
        module.input_size, module.hidden_size = inputs[1], whole.hidden_size * inputs[0] // before
        if getattr(module, "proj_size", 0):
            module.proj_size = hidden[1]


def _covered(norm: Any) -> tuple[int, ...]:
    """The sizes that a normalisation layer remembers."""
    if isinstance(norm, LAST_NORMS):
        return tuple(norm.normalized_shape)
    return (norm.num_channels if isinstance(norm, nn.GroupNorm) else norm.num_features,)


def _adjust_norm(norm: Any, sizes: list[int]) -> None:
    if isinstance(norm, LAST_NORMS):
        norm.normalized_shape = tuple(sizes)
    elif isinstance(norm, nn.GroupNorm):
        if norm.num_groups == norm.num_channels:  # every channel by itself
            norm.num_groups = sizes[0]
        assert sizes[0] % norm.num_groups == 0
        norm.num_channels = sizes[0]
    else:
        norm.num_features = sizes[0]
