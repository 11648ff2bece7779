"""The walk over a traced model that finds which channels belong together.

Node by node, in the order of execution: a layer with weights opens a group and declares what the dimensions of its
tensors run over; an elementwise operation joins the groups of its operands; an operation without weights only changes
the stream. Read next: `groups.py`, which keeps the groups; `streams.py`, the values between nodes.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, fx, nn

from fedgmr.submodels.channels.groups import Axes, Axis, OpenGroups
from fedgmr.submodels.channels.streams import FACTS, POINTWISE, POOLING, Plain, Stored, Stream, Value, argument, refuse

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


class Walk:
    """One pass over a traced graph, in the order of execution."""

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self.model = model
        self.groups = OpenGroups(tensors)
        self.values: dict[fx.Node, Value] = {}
        self.norms: dict[str, Axis] = {}
        self.layers: dict[str, int] = {}  # weight layer: the group of its output
        self.attentions: dict[str, None] = {}

    def follow(self, graph: fx.Graph) -> list[Stream]:
        """Walk over the graph; return the streams that reach the model's output, whose groups are now fixed."""
        for node in graph.nodes:
            self.values[node] = self._value(node)
        outputs = [value for value in _unpacked(self.values[node]) if isinstance(value, Stream)]
        for stream in outputs:
            self.groups.fix(stream.group)
        return outputs

    def _value(self, node: fx.Node) -> Value:
        if node.op == "placeholder":
            return Plain()
        if node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(self.model)
            return Stored(tensor=tensor, intact=tensor.dim())
        if node.op == "output":
            return tuple(self.values[n] for n in node.all_input_nodes)
        if node.op == "call_module":
            return self._layer(node, self.model.get_submodule(str(node.target)))
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return self._operation(node, name.replace("_", ""))

    def _layer(self, node: fx.Node, module: nn.Module) -> Value:
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            return self._weights(node, module)
        if isinstance(module, _NORMS):
            return self._norm(node, module)
        if isinstance(module, nn.MultiheadAttention):
            return self._attention(node, module)
        if isinstance(module, nn.Embedding):
            group = self.groups.open(module.embedding_dim)
            self.groups.declare(node, module.weight, (None, Axis(group=group)))
            return self._leave(node, Stream(group=group, rank=3))
        name, value = type(module).__name__.lower(), self.values[node.all_input_nodes[0]]
        if isinstance(value, Stream) and isinstance(module, nn.Flatten):
            return value.flattened(node, module.start_dim, module.end_dim)
        if isinstance(value, Stream) and name in POOLING:
            return value.pooled(node)
        if name not in POINTWISE and (isinstance(value, Stream) or list(module.parameters())):
            refuse(node, f"{type(module).__name__} is not supported", "build it from supported layers of torch.nn")
        return value if name in POINTWISE else Plain()

    def _weights(self, node: fx.Node, module: nn.Linear | nn.Conv1d | nn.Conv2d) -> Stream:
        """A linear layer or a convolution."""
        outputs, inputs, *kernel = module.weight.shape
        groups = 1 if isinstance(module, nn.Linear) else module.groups
        before, stream = self._enter(node, inputs * groups, second=bool(kernel))
        if groups == 1:
            group = self.groups.open(outputs)
            axes: Axes = (Axis(group=group), before)
        elif groups == outputs and inputs == 1:  # depthwise: each channel by itself
            group, axes = before.group, (before, None)
        else:
            refuse(node, f"it has groups={groups}", "use groups=1 or a depthwise convolution")
        self.groups.declare(node, module.weight, (*axes, *(None for _ in kernel)))
        self.groups.declare(node, module.bias, (Axis(group=group),))
        rank = len(kernel) + 2 if kernel else stream.rank
        return self._leave(node, Stream(group=group, axis=-1 - len(kernel), rank=rank))

    def _norm(self, node: fx.Node, module: Any) -> Value:
        last = isinstance(module, nn.LayerNorm)
        if last and len(module.normalized_shape) > 1:
            refuse(node, f"it normalises over {module.normalized_shape}", "normalise over the last dimension only")
        many = isinstance(module, nn.GroupNorm)
        size = module.normalized_shape[0] if last else module.num_channels if many else module.num_features
        axis, _ = self._enter(node, size, second=not last)
        if many and module.num_groups < size:
            self.groups.divide(axis.group, module.num_groups // math.gcd(module.num_groups, axis.repeat))
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.groups.declare(node, getattr(module, name, None), (axis,))
        self.groups.join(node, self.norms.setdefault(str(node.target), axis).group, axis.group)
        return self.values[node.all_input_nodes[0]]

    def _attention(self, node: fx.Node, module: nn.MultiheadAttention) -> Value:
        if len({argument(node, i, name) for i, name in enumerate(("query", "key", "value"))}) > 1:
            refuse(node, "its query, key and value differ", "use self-attention")
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            refuse(node, "it has kdim, vdim, add_bias_kv or add_zero_attn", "leave these out")
        before, _ = self._enter(node, module.embed_dim)
        inner, group = self.groups.open(module.embed_dim, heads=module.num_heads), self.groups.open(module.embed_dim)
        self.groups.declare(node, module.in_proj_weight, (Axis(group=inner, stacks=3), before))
        self.groups.declare(node, module.in_proj_bias, (Axis(group=inner, stacks=3),))
        self.groups.declare(node, module.out_proj.weight, (Axis(group=group), Axis(group=inner)))
        self.groups.declare(node, module.out_proj.bias, (Axis(group=group),))
        self.attentions[str(node.target)] = None
        return self._leave(node, Stream(group=group, rank=3)), Plain()

    def _operation(self, node: fx.Node, name: str) -> Value:
        """A function or a method."""
        if name in FACTS or (name == "getattr" and node.args[1] in FACTS):
            return None
        values = [value for n in node.all_input_nodes if (value := self.values[n]) is not None]
        streams = [value for value in values if isinstance(value, Stream)]
        if not values:  # numbers give numbers, unless torch makes a tensor of them
            return None if getattr(node.target, "__module__", "") in ("_operator", "math", "builtins") else Plain()
        if name == "getitem" and isinstance(values[0], tuple):
            chosen: Value = values[0][int(str(node.args[1]))]
            return chosen
        if name == "getitem" and isinstance(values[0], Stored):
            return values[0].indexed(node.args[1])
        if name in POINTWISE:
            return self._combine(node, values, streams) if len(values) > 1 else values[0]
        if len(values) == 1 and streams:
            return streams[0].reshaped(node, name)
        trained = [value for value in values if isinstance(value, Stored) and isinstance(value.tensor, nn.Parameter)]
        if trained or not all(isinstance(value, Plain | Stored) for value in values):
            refuse(node, f"{name} is not supported", "use layers of torch.nn, sums and pooling instead")
        return Plain()

    def _combine(self, node: fx.Node, values: Sequence[Value], streams: Sequence[Stream]) -> Value:
        """An elementwise operation: both operands carry the same channels."""
        if not streams:
            return Plain()
        first = streams[0]
        for value in values:
            if isinstance(value, Stored):
                self._broadcast(node, value, first)
            elif not isinstance(value, Stream):
                refuse(node, "it combines channels with the model's input", "pass the input through a layer first")
            elif (value.axis, value.flat) != (first.axis, first.flat):
                refuse(node, "it combines channels in different dimensions", "bring them to the same dimension")
            else:
                self.groups.join(node, first.group, value.group)
        ranks = [stream.rank for stream in streams if stream.rank is not None]
        sources = frozenset(path for stream in streams for path in stream.sources)
        return replace(first, rank=max(ranks, default=None), sources=sources)

    def _broadcast(self, node: fx.Node, stored: Stored, stream: Stream) -> None:
        """A stored tensor in an elementwise operation: its dimension that lines up with the channels runs over them."""
        shape, position = stored.tensor.shape, -stream.axis
        if position > len(shape) == stored.intact or (position <= stored.intact and shape[-position] == 1):
            return
        if position > stored.intact:
            refuse(node, "it indexes a stored tensor along the channels", "index the leading dimensions only")
        axes: list[Axis | None] = [None] * len(shape)
        axes[-position] = self._axis(node, stream, shape[-position])
        self.groups.declare(node, stored.tensor, tuple(axes))

    def _enter(self, node: fx.Node, size: int, *, second: bool = False) -> tuple[Axis, Stream]:
        """The axis and the stream of the `size` channels that a layer receives, in the last or second dimension."""
        stream = self.values[node.all_input_nodes[0]]
        if not isinstance(stream, Stream):
            stream = Stream(group=self.groups.open(size, fixed=True))
        elif (stream.rank or 2) + stream.axis != 1 if second else stream.axis != -1:
            refuse(node, "its channels are in another dimension", f"move them to the {'second' if second else 'last'}")
        return self._axis(node, stream, size), stream

    def _axis(self, node: fx.Node, stream: Stream, size: int) -> Axis:
        channels = self.groups.opened[stream.group].size
        if size % channels or (size > channels and not stream.flat):
            refuse(node, f"{channels} channels meet a size of {size}", "make them equal")
        return Axis(group=stream.group, repeat=size // channels)

    def _leave(self, node: fx.Node, stream: Stream) -> Stream:
        self.layers[str(node.target)] = stream.group
        return replace(stream, sources=frozenset({str(node.target)}))


def _unpacked(value: Value) -> list[Value]:
    """The values in nested tuples."""
    return [part for item in value for part in _unpacked(item)] if isinstance(value, tuple) else [value]
