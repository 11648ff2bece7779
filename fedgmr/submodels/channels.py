"""Which channels of a model belong together (section 2.0, structured slicing), read off the model's own graph.

torch.fx traces the forward pass with torch.nn's modules as leaves. One walk over the graph notes which group of
channels each dimension of each tensor runs over: a layer opens a group, a residual add joins two, the model's input
and output channels are fixed. Layer names play no part. Inputs are taken to be batches, [batch, channels, ...] for
convolutions and [batch, tokens] for embeddings. Read next: `widths.py`.
"""

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import Tensor, fx, nn

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
# Layers, functions and methods without weights go by name, in lower case and without underscores.
_ELEMENTWISE = """
    add sub mul div truediv iadd isub imul itruediv neg abs exp sqrt rsqrt square pow clamp maximum minimum
    relu relu6 gelu silu mish elu celu selu leakyrelu sigmoid logsigmoid tanh hardtanh hardswish hardsigmoid
    softplus softsign dropout dropout1d dropout2d alphadropout identity contiguous clone detach float double half to
"""
_POINTWISE = frozenset(_ELEMENTWISE.split())
_POOLING = frozenset(f"{kind}pool{n}d" for kind in ("max", "avg", "adaptivemax", "adaptiveavg") for n in (1, 2, 3))
_REDUCTIONS = frozenset(("mean", "sum", "amax", "amin", "squeeze"))
_FACTS = frozenset(("size", "dim", "shape", "device", "dtype", "ndim"))  # numbers about a tensor


@dataclass(frozen=True, kw_only=True)
class Group:
    """Channels that are kept or dropped together wherever they appear."""

    size: int
    fixed: bool = False  # never sliced: the model's input channels and its outputs
    heads: int = 1  # the group is heads x head_dim, and every head keeps the same subset


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A dimension that runs over a group: index = (stack · size + channel) · repeat + s."""

    group: int
    repeat: int = 1  # entries per channel, where a flatten folded space into the dimension
    stacks: int = 1  # 3 for the rows of an attention's in-projection: queries, keys, values

    def spread(self, channels: Tensor) -> Tensor:
        """One entry per index of the dimension, given one per channel."""
        return channels.repeat_interleave(self.repeat).repeat(self.stacks)


Axes = tuple[Axis | None, ...]  # per dimension; None is never sliced (kernels, vocabulary, positions)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChannelPlan:
    """The groups of a model, and where its tensors meet them.

    `hidden` are the weight layers (embeddings too) whose output is sliced: HeteroFL's scaler comes after these. Those
    that are in `attentions` too need it twice: on queries, keys and values after the in-projection, and on the output.
    """

    groups: tuple[Group, ...]
    axes: Mapping[str, Axes]  # every parameter and float buffer, by name
    norms: Mapping[str, Axis]  # what a normalisation layer runs over, whether or not it has parameters
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
    return _Walk(model, tensors).follow(graph)


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


@dataclass(frozen=True, kw_only=True)
class _Stream:
    """A tensor in flight that carries channels."""

    group: int
    axis: int = -1  # of the channels, counted from the last dimension
    rank: int | None = None  # None: as many dimensions as the model's input has
    flat: bool = False  # space is folded into the axis; the next layer's size says how often a channel repeats
    sources: frozenset[str] = frozenset()  # the weight layers it comes from, without another in between


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A parameter, buffer or constant that forward reads by itself; its last `intact` dimensions are as stored."""

    tensor: Tensor
    intact: int


class _Plain:
    """A tensor without channels: the model's input, or made from it."""


_Value = _Stream | _Stored | _Plain | tuple[Any, ...] | None  # None: a number, a shape, a device


class _Walk:
    """One pass over a traced graph, in the order of execution."""

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self.model, self.tensors = model, tensors
        self.names = {id(tensor): name for name, tensor in tensors.items()}
        self.values: dict[fx.Node, _Value] = {}
        self.groups: list[Group] = []
        self.parents: list[int] = []  # union-find: groups that turned out to be one
        self.axes: dict[str, Axes] = {}
        self.norms: dict[str, Axis] = {}
        self.layers: dict[str, int] = {}  # weight layer: the group of its output
        self.attentions: dict[str, None] = {}

    def follow(self, graph: fx.Graph) -> ChannelPlan:
        for node in graph.nodes:
            self.values[node] = self._value(node)
        outputs = [value for value in _unpacked(self.values[node]) if isinstance(value, _Stream)]
        for stream in outputs:
            self._fix(stream.group)
        roots = sorted({self._root(group) for group in self.parents})

        def final(axis: Axis) -> Axis:
            return replace(axis, group=roots.index(self._root(axis.group)))

        whole: dict[str, Axes] = {n: (None,) * t.dim() for n, t in self.tensors.items() if t.is_floating_point()}
        sliced = [path for path, group in self.layers.items() if not self.groups[self._root(group)].fixed]
        return ChannelPlan(
            groups=tuple(self.groups[root] for root in roots),
            axes={n: tuple(a and final(a) for a in axes) for n, axes in (whole | self.axes).items()},
            norms={path: final(axis) for path, axis in self.norms.items()},
            hidden=tuple(path for path in self.layers if path in sliced or path in self.attentions),
            attentions=tuple(self.attentions),
            heads=tuple(path for path in self.layers if any(path in stream.sources for stream in outputs)),
        )

    def _value(self, node: fx.Node) -> _Value:
        if node.op == "placeholder":
            return _Plain()
        if node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(self.model)
            return _Stored(tensor=tensor, intact=tensor.dim())
        if node.op == "output":
            return tuple(self.values[n] for n in node.all_input_nodes)
        if node.op == "call_module":
            return self._layer(node, self.model.get_submodule(str(node.target)))
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return self._operation(node, name.replace("_", ""))

    def _layer(self, node: fx.Node, module: nn.Module) -> _Value:
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            return self._weights(node, module)
        if isinstance(module, _NORMS):
            return self._norm(node, module)
        if isinstance(module, nn.MultiheadAttention):
            return self._attention(node, module)
        if isinstance(module, nn.Embedding):
            group = self._open(module.embedding_dim)
            self._declare(node, module.weight, (None, Axis(group=group)))
            return self._leave(node, _Stream(group=group, rank=3))
        name, value = type(module).__name__.lower(), self.values[node.all_input_nodes[0]]
        if isinstance(value, _Stream) and isinstance(module, nn.Flatten):
            return _flattened(node, value, module.start_dim, module.end_dim)
        if isinstance(value, _Stream) and name in _POOLING:
            return _pooled(node, value)
        if name not in _POINTWISE and (isinstance(value, _Stream) or list(module.parameters())):
            _refuse(node, f"{type(module).__name__} is not supported", "build it from supported layers of torch.nn")
        return value if name in _POINTWISE else _Plain()

    def _weights(self, node: fx.Node, module: nn.Linear | nn.Conv1d | nn.Conv2d) -> _Stream:
        """A linear layer or a convolution."""
        outputs, inputs, *kernel = module.weight.shape
        groups = 1 if isinstance(module, nn.Linear) else module.groups
        before, stream = self._enter(node, inputs * groups, second=bool(kernel))
        if groups == 1:
            group = self._open(outputs)
            axes: Axes = (Axis(group=group), before)
        elif groups == outputs and inputs == 1:  # depthwise: each channel by itself
            group, axes = before.group, (before, None)
        else:
            _refuse(node, f"it has groups={groups}", "use groups=1 or a depthwise convolution")
        self._declare(node, module.weight, (*axes, *(None for _ in kernel)))
        self._declare(node, module.bias, (Axis(group=group),))
        rank = len(kernel) + 2 if kernel else stream.rank
        return self._leave(node, _Stream(group=group, axis=-1 - len(kernel), rank=rank))

    def _norm(self, node: fx.Node, module: Any) -> _Value:
        last = isinstance(module, nn.LayerNorm)
        if last and len(module.normalized_shape) > 1:
            _refuse(node, f"it normalises over {module.normalized_shape}", "normalise over the last dimension only")
        many = isinstance(module, nn.GroupNorm)
        size = module.normalized_shape[0] if last else module.num_channels if many else module.num_features
        axis, _ = self._enter(node, size, second=not last)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self._declare(node, getattr(module, name, None), (axis,))
        self._join(node, self.norms.setdefault(str(node.target), axis).group, axis.group)
        return self.values[node.all_input_nodes[0]]

    def _attention(self, node: fx.Node, module: nn.MultiheadAttention) -> _Value:
        if len({_argument(node, i, name) for i, name in enumerate(("query", "key", "value"))}) > 1:
            _refuse(node, "its query, key and value differ", "use self-attention")
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            _refuse(node, "it has kdim, vdim, add_bias_kv or add_zero_attn", "leave these out")
        before, _ = self._enter(node, module.embed_dim)
        inner, group = self._open(module.embed_dim, heads=module.num_heads), self._open(module.embed_dim)
        self._declare(node, module.in_proj_weight, (Axis(group=inner, stacks=3), before))
        self._declare(node, module.in_proj_bias, (Axis(group=inner, stacks=3),))
        self._declare(node, module.out_proj.weight, (Axis(group=group), Axis(group=inner)))
        self._declare(node, module.out_proj.bias, (Axis(group=group),))
        self.attentions[str(node.target)] = None
        return self._leave(node, _Stream(group=group, rank=3)), _Plain()

    def _operation(self, node: fx.Node, name: str) -> _Value:
        """A function or a method."""
        if name in _FACTS or (name == "getattr" and node.args[1] in _FACTS):
            return None
        values = [value for n in node.all_input_nodes if (value := self.values[n]) is not None]
        streams = [value for value in values if isinstance(value, _Stream)]
        if not values:  # numbers give numbers, unless torch makes a tensor of them
            return None if getattr(node.target, "__module__", "") in ("_operator", "math", "builtins") else _Plain()
        if name == "getitem" and isinstance(values[0], tuple):
            chosen: _Value = values[0][int(str(node.args[1]))]
            return chosen
        if name == "getitem" and isinstance(values[0], _Stored):
            return replace(values[0], intact=max(0, values[0].intact - _indexed(node.args[1])))
        if name in _POINTWISE:
            return self._combine(node, values, streams) if len(values) > 1 else values[0]
        if len(values) == 1 and streams:
            return _reshaped(node, name, streams[0])
        if not all(isinstance(value, _Plain) or _constant(value) for value in values):
            _refuse(node, f"{name} is not supported", "use layers of torch.nn, sums and pooling instead")
        return _Plain()

    def _combine(self, node: fx.Node, values: Sequence[_Value], streams: Sequence[_Stream]) -> _Value:
        """An elementwise operation: both operands carry the same channels."""
        if not streams:
            return _Plain()
        first = streams[0]
        for value in values:
            if isinstance(value, _Stored):
                self._broadcast(node, value, first)
            elif not isinstance(value, _Stream):
                _refuse(node, "it combines channels with the model's input", "pass the input through a layer first")
            elif (value.axis, value.flat) != (first.axis, first.flat):
                _refuse(node, "it combines channels in different dimensions", "bring them to the same dimension")
            else:
                self._join(node, first.group, value.group)
        ranks = [stream.rank for stream in streams if stream.rank is not None]
        sources = frozenset(path for stream in streams for path in stream.sources)
        return replace(first, rank=max(ranks, default=None), sources=sources)

    def _broadcast(self, node: fx.Node, stored: _Stored, stream: _Stream) -> None:
        """A stored tensor in an elementwise operation: its dimension that lines up with the channels runs over them."""
        shape, position = stored.tensor.shape, -stream.axis
        if position > len(shape) == stored.intact or (position <= stored.intact and shape[-position] == 1):
            return
        if position > stored.intact:
            _refuse(node, "it indexes a stored tensor along the channels", "index the leading dimensions only")
        axes: list[Axis | None] = [None] * len(shape)
        axes[-position] = self._axis(node, stream, shape[-position])
        self._declare(node, stored.tensor, tuple(axes))

    def _enter(self, node: fx.Node, size: int, *, second: bool = False) -> tuple[Axis, _Stream]:
        """The `size` channels that a layer receives, in the last or in the second dimension."""
        stream = self.values[node.all_input_nodes[0]]
        if not isinstance(stream, _Stream):
            stream = _Stream(group=self._open(size, fixed=True))
        elif (stream.rank or 2) + stream.axis != 1 if second else stream.axis != -1:
            _refuse(node, "its channels are in another dimension", f"move them to the {'second' if second else 'last'}")
        return self._axis(node, stream, size), stream

    def _axis(self, node: fx.Node, stream: _Stream, size: int) -> Axis:
        channels = self.groups[stream.group].size
        if size % channels or (size > channels and not stream.flat):
            _refuse(node, f"{channels} channels meet a size of {size}", "make them equal")
        return Axis(group=stream.group, repeat=size // channels)

    def _leave(self, node: fx.Node, stream: _Stream) -> _Stream:
        self.layers[str(node.target)] = stream.group
        return replace(stream, sources=frozenset({str(node.target)}))

    def _declare(self, node: fx.Node, tensor: Tensor | None, axes: Axes) -> None:
        """Note what the tensor's dimensions run over; a tensor used twice (tied weights) has to satisfy both uses."""
        if tensor is None:
            return
        if id(tensor) not in self.names:
            _refuse(node, "it uses a tensor that is neither a parameter nor a buffer", "register it with the model")
        for old, new in zip(self.axes.setdefault(self.names[id(tensor)], axes), axes, strict=True):
            if old is not None and new is not None:
                if replace(old, group=0) != replace(new, group=0):
                    _refuse(node, "it shares a tensor with a layer of another form", "give it a tensor of its own")
                self._join(node, old.group, new.group)
            elif (one := old or new) is not None:
                self._fix(one.group)

    def _open(self, size: int, *, fixed: bool = False, heads: int = 1) -> int:
        self.groups.append(Group(size=size, fixed=fixed, heads=heads))
        self.parents.append(len(self.parents))
        return len(self.parents) - 1

    def _root(self, group: int) -> int:
        while self.parents[group] != group:
            group = self.parents[group]
        return group

    def _fix(self, group: int) -> None:
        root = self._root(group)
        self.groups[root] = replace(self.groups[root], fixed=True)

    def _join(self, node: fx.Node, one: int, other: int) -> None:
        one, other = sorted((self._root(one), self._root(other)))
        if self.groups[one].size != self.groups[other].size:
            sizes = f"{self.groups[one].size} and {self.groups[other].size}"
            _refuse(node, f"it combines {sizes} channels", "give both operands the same number")
        self.parents[other] = one
        if self.groups[other].fixed:
            self._fix(one)


def _reshaped(node: fx.Node, name: str, stream: _Stream) -> _Stream:
    """What becomes of a stream in an operation of its own: pooling, a mean over other dimensions, flattening."""
    if name in _POOLING:
        return _pooled(node, stream)
    if name == "flatten":
        return _flattened(node, stream, _argument(node, 1, "start_dim") or 0, _argument(node, 2, "end_dim", -1))
    if name in ("view", "reshape"):
        sizes = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
        if len(sizes) != 2 or sizes[1] != -1:
            _refuse(node, f"{name} may split channels or fix their number", "write flatten(x, 1)")
        return _flattened(node, stream, 1, -1)
    if name not in _REDUCTIONS:
        _refuse(node, f"{name} is not supported", "use layers of torch.nn, sums and pooling instead")
    given = _argument(node, 1, "dim")
    dims = [_from_last(node, stream, dim) for dim in (given if isinstance(given, tuple | list) else [given])]
    if stream.axis in dims:
        _refuse(node, f"{name} runs over the channels", "let it run over space or the sequence only")
    if _argument(node, 2, "keepdim", False):
        return stream
    behind = sum(dim > stream.axis for dim in dims)
    return replace(stream, axis=stream.axis + behind, rank=stream.rank and stream.rank - len(dims))


def _pooled(node: fx.Node, stream: _Stream) -> _Stream:
    if stream.rank is None or stream.rank + stream.axis != 1:
        _refuse(node, "it pools over the channels", "pool over space, with the channels in the second dimension")
    return stream


def _flattened(node: fx.Node, stream: _Stream, start: int, end: int) -> _Stream:
    if stream.axis == -1 and stream.rank is None and (start, end) == (1, -1):
        return replace(stream, rank=2)  # were there more dimensions, the next layer's size would not fit
    first, last = _from_last(node, stream, start), _from_last(node, stream, end)
    rank = stream.rank and stream.rank - (last - first)
    if stream.axis < first:
        return replace(stream, axis=stream.axis + last - first, rank=rank)
    if stream.axis > last or first == last:
        return replace(stream, rank=rank)
    if stream.axis != first or last != -1:
        _refuse(node, "channels are not the first dimension it flattens", "flatten from the channels to the end")
    return replace(stream, axis=-1, rank=rank, flat=True)


def _from_last(node: fx.Node, stream: _Stream, dim: Any) -> int:
    """A dimension counted from the last one."""
    if not isinstance(dim, int) or (dim >= 0 and stream.rank is None):
        _refuse(node, f"the dimension {dim} of this tensor is unknown", "name dimensions, counted from the last (-1)")
    return dim if dim < 0 or stream.rank is None else dim - stream.rank


def _indexed(index: Any) -> int:
    """How many dimensions an index touches."""
    parts = list(index) if isinstance(index, tuple | list) else [index]
    while parts and parts[-1] == slice(None):
        parts.pop()
    return len(parts)


def _unpacked(value: _Value) -> list[_Value]:
    return [part for item in value for part in _unpacked(item)] if isinstance(value, tuple) else [value]


def _constant(value: _Value) -> bool:
    return isinstance(value, _Stored) and not isinstance(value.tensor, nn.Parameter)


def _argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _refuse(node: fx.Node, reason: str, fix: str) -> NoReturn:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(node.target) if node.op == "call_module" else stack[-1][0] if stack else ""
    layer = f"layer {path!r}" if path else "the model's forward"
    raise ValueError(
        f"The channels cannot be followed through {layer}: {reason}. Fix: {fix}, or choose a ranking of single "
        "coordinates (taylor, magnitude)."
    )
