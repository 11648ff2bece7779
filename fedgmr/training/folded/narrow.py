"""Narrow networks as whole ones with zeros: what a channel that is left out would have added is nothing.

That holds for products, sums and most functions of single numbers. A layer norm has to know how many channels there
are, and attention how large a head is (`layers.py`). What else a model does with its channels is tried here: a whole
model with zeros and these two has to have the outputs of the narrow network.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.channels.slicing import slice_module
from fedgmr.submodels.inputs import replaced_forward
from fedgmr.submodels.widths import kept_mask
from fedgmr.training.folded.plan import alike


@dataclass(frozen=True, kw_only=True, eq=False)
class SmallModules:
    """The narrow networks of a model."""

    plan: ChannelPlan
    widths: Sequence[float]  # by level
    scaled: bool  # in training hidden values are divided by the width

    @torch.no_grad()
    def are_what_zeros_make(self, model: nn.Module, example: Tensor) -> bool:
        """Whether the whole model computes what the narrowest does, with zeros for all other channels."""
        width, kept = min(self.widths), kept_mask(self.plan, min(self.widths))
        large, inputs = copy.deepcopy(model).cpu().train(), example.cpu()  # evaluated, PyTorch's layers take other ways
        for layer in large.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
            if isinstance(layer, nn.MultiheadAttention):
                layer.dropout = 0.0
            blind = isinstance(layer, nn.MultiheadAttention) and layer.in_proj_bias is None
            blind |= isinstance(layer, nn.LayerNorm) and layer.weight is None
            if blind or isinstance(layer, nn.GroupNorm):  # it would not know which channels there are, or groups
                return False
        small = slice_module(large, self.plan, kept, scale=1 / width if self.scaled else 1.0)
        inside = {name: self._inside(name, parameter, kept) for name, parameter in large.named_parameters()}
        for name, parameter in large.named_parameters():
            parameter.mul_(inside[name])
        with ExitStack() as changed:
            for path, layer in large.named_modules():
                if isinstance(layer, nn.LayerNorm):
                    changed.enter_context(replaced_forward(layer, _norm(layer, inside[f"{path}.weight"])))
                if isinstance(layer, nn.modules.batchnorm._BatchNorm) and self.scaled:
                    layer.eps *= width**2  # see FoldedNet.eps
                if isinstance(layer, nn.MultiheadAttention):
                    share = inside[f"{path}.in_proj_bias"][: layer.head_dim].float().mean()
                    for parameter in (layer.in_proj_weight, layer.in_proj_bias):
                        parameter[: layer.embed_dim] *= share.rsqrt()  # the queries: heads have fewer numbers
            return alike(large(inputs), small(inputs))

    def _inside(self, name: str, parameter: Tensor, kept: Tensor) -> Tensor:
        inside = torch.ones(parameter.shape, dtype=torch.bool)
        for dim, axis in enumerate(self.plan.axes[name]):
            if axis is not None:
                inside &= kept[axis].view([-1 if i == dim else 1 for i in range(parameter.dim())])
        return inside


def _norm(layer: nn.LayerNorm, inside: Tensor) -> Callable[[Tensor], Tensor]:
    """A layer norm over the channels that there are."""

    def forward(values: Tensor) -> Tensor:
        count = inside.sum()
        centred = (values - (values * inside).sum(-1, keepdim=True) / count) * inside
        normed = centred * (centred.square().sum(-1, keepdim=True) / count + layer.eps).rsqrt() * layer.weight
        return normed if layer.bias is None else normed + layer.bias

    return forward
