"""The channels of a model that belong together (section 2.0, structured slicing), from the model's own graph.

torch.fx traces the forward pass with torch.nn's modules as leaves. One walk over the graph notes which group of
channels each dimension of each tensor runs over: a layer opens a group, a residual add joins two, the model's input
and output channels are fixed. Layer names play no part. Inputs are taken to be batches, [batch, channels, ...] for
convolutions and [batch, tokens] for embeddings. Read next: `walk.py` for the walk, `../widths.py` for its use.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx, nn

from fedgmr.submodels.channels.groups import Axes, Axis, Group
from fedgmr.submodels.channels.streams import Stream
from fedgmr.submodels.channels.walk import Walk


@dataclass(frozen=True, kw_only=True, eq=False)
class ChannelPlan:
    """The groups of a model, and which dimensions of its tensors run over them.

    `hidden` are the weight layers (embeddings too) whose output is sliced: HeteroFL's scaler comes after these. Those
    that are in `attentions` too need it twice: on queries, keys and values after the in-projection, and on the output.
    """

    groups: tuple[Group, ...]
    axes: Mapping[str, Axes]  # every parameter and float buffer, by name
    norms: Mapping[str, Axis]  # the axis of each normalisation layer, whether or not it has parameters
    hidden: tuple[str, ...]
    attentions: tuple[str, ...]
    heads: tuple[str, ...]  # layers whose output reaches the model's output without another weight layer


def follow_channels(model: nn.Module) -> ChannelPlan:
    """The channel groups of `model`.

    Raises:
        ValueError: torch.fx cannot trace the model, or a layer cannot be followed; it is named, with what to do.
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    # Tracing hangs constants on the module it traces: that is a copy, which shares the tensors.
    model = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors.values()})
    try:
        graph = _Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"torch.fx cannot trace {type(model).__name__} ({error}): write its forward without branches or loops "
            "that depend on the data, or choose a ranking of single coordinates (taylor, magnitude)."
        ) from error
    walk = Walk(model, tensors)
    return _plan(walk, walk.follow(graph))


class _Tracer(fx.Tracer):
    """Modules of torch.nn are leaves; buffers that forward reads show in the graph as parameters do."""

    proxy_buffer_attributes = True

    def trace(self, root: nn.Module, concrete_args: dict[str, Any] | None = None) -> fx.Graph:  # type: ignore[override]
        """The graph of `root`; a model that is a single layer is one call of that layer, which has the path ""."""
        if not self.is_leaf_module(root, ""):
            return super().trace(root, concrete_args)
        graph = fx.Graph()
        graph.output(graph.create_node("call_module", "", (graph.placeholder("inputs"),)))
        return graph


def _plan(walk: Walk, outputs: Sequence[Stream]) -> ChannelPlan:
    """The plan that the walk found; groups that turned out to be one get one number."""
    found = walk.groups
    roots = sorted({found.root(group) for group in found.parents})

    def numbered(axis: Axis) -> Axis:
        return replace(axis, group=roots.index(found.root(axis.group)))

    axes: dict[str, Axes] = {n: (None,) * t.dim() for n, t in found.tensors.items() if t.is_floating_point()}
    axes |= {name: tuple(axis and numbered(axis) for axis in own) for name, own in found.axes.items()}
    sliced = [path for path, group in walk.layers.items() if not found.opened[found.root(group)].fixed]
    return ChannelPlan(
        groups=tuple(found.opened[group] for group in roots),
        axes=axes,
        norms={path: numbered(axis) for path, axis in walk.norms.items()},
        hidden=tuple(path for path in walk.layers if path in sliced or path in walk.attentions),
        attentions=tuple(walk.attentions),
        heads=tuple(path for path in walk.layers if any(path in stream.sources for stream in outputs)),
    )
