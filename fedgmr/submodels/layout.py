"""A model as one flat vector: where each parameter lies, which coordinates may be pruned, and the buffers beside it.

Prunable are the weights of convolution, linear, embedding, attention and recurrent layers; biases and
normalisation parameters are always kept (A10). Patterns can move tensors between the two groups.
Read next: `levels.py`.
"""

import fnmatch
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

_WEIGHTS = (  # layers, and the names of their parameters that may be pruned
    ((nn.modules.conv._ConvNd, nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag), "weight"),
    ((nn.MultiheadAttention,), "*_proj_weight"),
    ((nn.RNNBase,), "weight*"),
)
_NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

Ranks = Literal["everything", "prunable"]


@dataclass(frozen=True, kw_only=True)
class TensorPlace:
    """The place of one parameter or buffer in its flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    prunable: bool
    norm: bool = False  # belongs to a normalisation layer

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """One past the last coordinate."""
        return self.start + self.size

    def ranked(self, ranks: Ranks) -> bool:
        """Whether thresholds rank it: everything but normalisation parameters, or only what is prunable."""
        return self.prunable if ranks == "prunable" else not self.norm

    def floor_count(self, floor: float) -> int:
        """The number of coordinates in every sub-model, where a ranking keeps at least the share `floor`."""
        return max(1, int(floor * self.size)) if floor > 0 else 0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The order of a model's parameters (and float buffers) in flat vectors."""

    parameters: tuple[TensorPlace, ...]
    buffers: tuple[TensorPlace, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, model: nn.Module, *, keep: Sequence[str] = (), prune: Sequence[str] = ()) -> "Layout":
        """The layout of `model`'s parameters; those that do not require gradients stay out of the vector.

        Name patterns (`*.downsample.*`) in `keep` are always kept although their layer is prunable, those in `prune`
        are prunable although the rule says always kept.
        """
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("The model has no trainable parameter: give it at least one.")
        types = {p.dtype for _, p in named}
        if len(types) != 1 or not named[0][1].dtype.is_floating_point:
            raise ValueError(f"The model's parameters have types {sorted(map(str, types))}: use one float type.")
        weights = set[str]().union(*(_names(model, layers, pattern) for layers, pattern in _WEIGHTS))
        norms, persistent = _names(model, _NORM_LAYERS, "*"), model.state_dict().keys()
        buffers = [(n, b) for n, b in model.named_buffers() if n in persistent and b.dtype.is_floating_point]
        for pattern in (*keep, *prune):
            if not any(fnmatch.fnmatchcase(name, pattern) for name, _ in named):
                raise ValueError(f"The pattern {pattern!r} matches no parameter of the model: correct it.")
        kept, pruned = (
            {name for name, _ in named for pattern in patterns if fnmatch.fnmatchcase(name, pattern)}
            for patterns in (keep, prune)
        )
        prunable = (weights | pruned) - kept
        return cls(
            parameters=tuple(_places((name, p, name in prunable, name in norms) for name, p in named)),
            buffers=tuple(_places((name, b, False, True) for name, b in buffers)),
            dtype=named[0][1].dtype,
        )

    @cached_property
    def size(self) -> int:
        """N, the number of coordinates."""
        return self.parameters[-1].stop

    @cached_property
    def buffer_size(self) -> int:
        """Number of buffer entries that travel beside the coordinates."""
        return self.buffers[-1].stop if self.buffers else 0

    @cached_property
    def always(self) -> Tensor:
        """Bool [N]: the coordinates that unstructured rankings keep at every level."""
        always = torch.ones(self.size, dtype=torch.bool)
        for place in self.prunable:
            always[place.start : place.stop] = False
        return always

    @cached_property
    def prunable(self) -> tuple[TensorPlace, ...]:
        """The prunable tensors."""
        return tuple(place for place in self.parameters if place.prunable)

    @cached_property
    def prunable_size(self) -> int:
        """P, the number of prunable coordinates; densities are measured on these."""
        return sum(place.size for place in self.prunable)

    def flatten(self, model: nn.Module) -> Tensor:
        """A new flat vector with the model's parameters."""
        values = dict(model.named_parameters())
        return torch.cat([values[place.name].detach().reshape(-1) for place in self.parameters])

    def flatten_buffers(self, model: nn.Module) -> Tensor:
        """A new flat vector with the model's float buffers, in the layout's type."""
        values = dict(model.named_buffers())
        parts = [values[place.name].detach().reshape(-1).to(self.dtype) for place in self.buffers]
        device = next(model.parameters()).device
        return torch.cat(parts) if parts else torch.empty(0, dtype=self.dtype, device=device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """One view of `flat` per parameter, in the parameter's shape."""
        return [flat[place.start : place.stop].view(place.shape) for place in self.parameters]

    def bind(self, model: nn.Module, flat: Tensor, buffers: Tensor) -> None:
        """Make the model's parameters and buffers aliases of `flat` and `buffers`."""
        parameters = dict(model.named_parameters())
        for place, view in zip(self.parameters, self.views(flat), strict=True):
            parameters[place.name].data = view
        named = dict(model.named_buffers())
        for place in self.buffers:
            named[place.name].data = buffers[place.start : place.stop].view(place.shape)


def lies_channels_last(layout: Layout) -> bool:
    """Whether convolutions hold most of the model, so that a GPU works faster on activations with channels last."""
    spatial = sum(place.size for place in layout.parameters if len(place.shape) == 4)
    return 2 * spatial > layout.size


def _names(model: nn.Module, layers: tuple[type[nn.Module], ...], pattern: str) -> set[str]:
    """The parameters of these layers whose own name matches the pattern."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, layers)
        for name, _ in module.named_parameters(recurse=False)
        if fnmatch.fnmatchcase(name, pattern)
    }


def _places(tensors: Iterator[tuple[str, Tensor, bool, bool]]) -> Iterator[TensorPlace]:
    start = 0
    for name, tensor, prunable, norm in tensors:
        place = TensorPlace(name=name, shape=tuple(tensor.shape), start=start, prunable=prunable, norm=norm)
        start = place.stop
        yield place
