"""Narrow networks as whole ones with zeros: what a channel that is left out would have added is nothing.

That holds for products, sums and most functions of single numbers. A layer norm has to know how many channels there
are, and attention how large a head is (`layers.py`). What else a model does with its channels is tried here: a whole
model with zeros and these two has to have the outputs and the gradients of the narrow network.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedgmr.seeding import borrowed_generator
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.channels.slicing import slice_module
from fedgmr.submodels.inputs import replaced_forward
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.widths import kept_mask, levels_at
from fedgmr.training.folded.plan import alike

_log = logging.getLogger(__name__)
_ROUNDING = 1e-9  # of the largest number, in double precision


@dataclass(frozen=True, kw_only=True, eq=False)
class SmallModules:
    """The narrow networks of a model."""

    plan: ChannelPlan
    widths: Sequence[float]  # by level
    scaled: bool  # in training hidden values are divided by the width

    def buffer_levels(self, layout: Layout) -> Tensor:
        """The smallest level that has each number of the buffers."""
        return levels_at(self.plan, layout.buffers, self.widths)

    def are_what_zeros_make(self, model: nn.Module, example: Tensor) -> bool:
        """Whether a whole model learns what the narrowest does, with zeros for all other channels.

        The model, which can be folded, is not as before afterwards.
        """
        try:
            with borrowed_generator(), torch.enable_grad():
                return self._agree(model.cpu().double().train(), example.cpu())  # evaluated, layers take other ways
        except Exception as error:  # whatever it is, another executor can train the model
            _log.warning("The narrow clients of this net are not folded into one batch: %s", error)
            return False

    def _agree(self, large: nn.Module, inputs: Tensor) -> bool:
        width, kept = min(self.widths), kept_mask(self.plan, min(self.widths))
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        for layer in large.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
            if isinstance(layer, nn.MultiheadAttention):
                layer.dropout = 0.0
            blind = isinstance(layer, nn.MultiheadAttention) and layer.in_proj_bias is None
            blind |= isinstance(layer, nn.LayerNorm) and layer.weight is None
            if blind or isinstance(layer, nn.GroupNorm):  # it would not know which channels there are, or groups
                return False
        _redraw(large)
        small = slice_module(large, self.plan, kept, scale=1 / width if self.scaled else 1.0)
        places = Layout.of(large).parameters
        levels = levels_at(self.plan, places, [width])
        inside = {place.name: levels[place.start : place.stop].view(place.shape) == 0 for place in places}
        shares = {name: held.double() for name, held in inside.items()}
        with ExitStack() as changed:
            for path, layer in large.named_modules():
                if isinstance(layer, nn.LayerNorm):
                    changed.enter_context(replaced_forward(layer, _norm(layer, inside[f"{path}.weight"])))
                if isinstance(layer, nn.modules.batchnorm._BatchNorm) and self.scaled:
                    layer.eps *= width**2  # see FoldedNet.eps
                if isinstance(layer, nn.MultiheadAttention):
                    held = shares[f"{path}.in_proj_bias"][: layer.head_dim].mean()
                    for name in ("in_proj_weight", "in_proj_bias"):
                        shares[f"{path}.{name}"][: layer.embed_dim] *= held.rsqrt()  # queries: heads have fewer numbers
            whole = functional_call(large, {name: p * shares[name] for name, p in large.named_parameters()}, (inputs,))
        narrow = small(inputs)
        slopes = torch.randn(narrow.shape, dtype=narrow.dtype)
        mine, wanted = _gradients(large, whole, slopes), _gradients(small, narrow, slopes)
        found = torch.cat([mine[name][held] for name, held in inside.items()])
        return alike(whole, narrow, _ROUNDING) and alike(
            found, torch.cat([wanted[name].flatten() for name in inside]), _ROUNDING
        )


@torch.no_grad()
def _redraw(model: nn.Module) -> None:
    """Weights with which every part of a model counts: initial ones are often small, or zero."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        inputs = parameter[0].numel() if parameter.dim() > 1 else 1
        parameter.normal_(std=(2 / inputs) ** 0.5)


def _gradients(model: nn.Module, outputs: Tensor, slopes: Tensor) -> Mapping[str, Tensor]:
    named = dict(model.named_parameters())
    found = torch.autograd.grad((outputs * slopes).sum(), list(named.values()), materialize_grads=True)
    return dict(zip(named, found, strict=True))


def _norm(layer: nn.LayerNorm, inside: Tensor) -> Callable[[Tensor], Tensor]:
    """A layer norm over the channels that there are."""

    def forward(values: Tensor) -> Tensor:
        count = inside.sum()
        centred = (values - (values * inside).sum(-1, keepdim=True) / count) * inside
        normed = centred * (centred.square().sum(-1, keepdim=True) / count + layer.eps).rsqrt() * layer.weight
        return normed if layer.bias is None else normed + layer.bias

    return forward
