"""Which channels of a model belong together (section 2.0, structured slicing): read off the model's own graph.

torch.fx traces the forward pass with torch.nn's modules as leaves, and one walk over the graph notes which group of
channels each dimension of each tensor runs over: a layer opens a group, a residual add joins two, and the model's
input and output channels are fixed. Layer names play no part. Assumed are batches first, [batch, channels, ...] into
convolutions and [batch, tokens] into embeddings. Read next: `widths.py`.
"""

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import Tensor, fx, nn

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
_POOLS = tuple(getattr(nn.modules.pooling, f"_{k}PoolNd") for k in ("Max", "Avg", "AdaptiveMax", "AdaptiveAvg"))
_POINTWISE_LAYERS = (
    *(nn.Identity, nn.modules.dropout._DropoutNd, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.CELU),
    *(nn.SELU, nn.LeakyReLU, nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Softplus, nn.Softsign),
)
# Functions and methods by name; in-place forms end in an underscore, which is dropped.
_POINTWISE = frozenset(
    "add sub mul div truediv iadd isub imul itruediv neg abs exp sqrt rsqrt square pow clamp maximum minimum relu relu6 "
    "gelu silu mish elu celu selu leaky_relu sigmoid logsigmoid tanh hardtanh hardswish hardsigmoid softplus softsign "
    "dropout dropout1d dropout2d alpha_dropout contiguous clone detach float double half bfloat16 to".split()
)
_POOLING = frozenset(f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_max", "adaptive_avg") for n in (1, 2, 3))
_FACTS = frozenset(("size", "dim", "len", "shape", "device", "dtype", "ndim"))  # numbers about a tensor


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
    repeat: int = 1  # entries per channel where space was flattened into the dimension
    stacks: int = 1  # 3 for the rows of an attention's in-projection: queries, keys, values

    def spread(self, channels: Tensor) -> Tensor:
        """One entry per index of the dimension, given one per channel."""
        return channels.repeat_interleave(self.repeat).repeat(self.stacks)


Axes = tuple[Axis | None, ...]  # per dimension; None is never sliced (kernel, vocabulary, positions)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChannelPlan:
    """The groups of a model and where each of its tensors meets them."""

    groups: tuple[Group, ...]
    axes: Mapping[str, Axes]  # by name: every parameter and every float buffer
    norms: Mapping[str, Axis]  # what each normalisation layer runs over, also where it has no parameters
    hidden: tuple[str, ...]  # weight layers (embeddings too) whose channels are sliced: HeteroFL's scaler follows them
    attentions: tuple[
        str, ...
    ]  # those of `hidden` that scale twice: after the in-projection and after the out-projection
    heads: tuple[str, ...]  # layers whose output reaches the model's output without another weight layer


def follow_channels(model: nn.Module) -> ChannelPlan:
    """The channel groups of `model`.

    Raises:
        ValueError: torch.fx cannot trace the model, or a layer does something the walk cannot follow; named with a fix.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    # Tracing may hang constants on the model, so a copy is traced; it shares the tensors.
    model = copy.deepcopy(model, {id(tensor): tensor for _, tensor in tensors})
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"torch.fx cannot trace {type(model).__name__}: {error}. Write forward without branches or loops that depend "
            "on the data, or choose a ranking of single coordinates (taylor, magnitude)."
        ) from error
    return _Walk(model, tensors).follow(graph)


@dataclass(frozen=True, kw_only=True)
class _Stream:
    """A tensor in flight that carries channels."""

    group: int
    axis: int = -1  # of the channels, counted from the last dimension
    rank: int | None = None  # None: as many dimensions as the model's input had
    flat: bool = False  # space is flattened into the axis; the next layer's size says how often a channel repeats
    sources: frozenset[str] = frozenset()  # the weight layers it comes from, without another between


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A parameter, buffer or constant that forward reads directly; its last `intact` dimensions are as stored."""

    tensor: Tensor
    intact: int


@dataclass(frozen=True, kw_only=True)
class _Plain:
    """A tensor without channels: the model's input and what is computed from it; `unit`: its last dimension is 1."""

    unit: bool = False


_Value = _Stream | _Stored | _Plain | tuple[Any, ...] | None  # None: a number, a shape, a device


class _Walk:
    """One pass over a traced graph, in execution order."""

    def __init__(self, model: nn.Module, tensors: Sequence[tuple[str, Tensor]]) -> None:
        self.model, self.tensors = model, dict(tensors)
        self.names = {id(tensor): name for name, tensor in tensors}
        self.values: dict[fx.Node, _Value] = {}
        self.groups: list[Group] = []
        self.parents: list[int] = []  # union-find over the groups
        self.fixed: list[int] = []
        self.mixed: list[tuple[int, fx.Node]] = []  # groups that must turn out to be fixed
        self.axes: dict[str, Axes] = {}
        self.norms: dict[str, Axis] = {}
        self.weighted: dict[str, int] = {}  # weight layer: its output group
        self.attentions: list[str] = []

    def follow(self, graph: fx.Graph) -> ChannelPlan:
        for node in graph.nodes:
            if node.op == "output":
                return self._plan([v for n in node.all_input_nodes for v in _flattened(self.values[n])])
            self.values[node] = self._value(node)
        raise AssertionError("a graph ends with its output")

    def _value(self, node: fx.Node) -> _Value:
        if node.op == "placeholder":
            return _Plain()
        if node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(self.model)
            return _Stored(tensor=tensor, intact=tensor.dim())
        if node.op == "call_module":
            return self._layer(node, str(node.target), self.model.get_submodule(str(node.target)))
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return self._operation(node, name.rstrip("_"))

    def _layer(self, node: fx.Node, path: str, module: nn.Module) -> _Value:
        value = self.values[node.all_input_nodes[0]]
        if isinstance(module, nn.MultiheadAttention):
            return self._attention(node, path, module)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            group = self._open(module.embedding_dim)
            self._declare(node, module.weight, (None, Axis(group=group)))
            return self._weighted(path, _Stream(group=group, rank=3 if isinstance(module, nn.Embedding) else 2))
        if isinstance(module, nn.Linear):
            return self._weights(node, path, module, module.in_features, module.out_features)
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return self._weights(node, path, module, module.in_channels, module.out_channels)
        if isinstance(module, _NORMS):
            return self._norm(node, path, module)
        if not isinstance(value, _Stream):
            return _Plain()
        if isinstance(module, nn.Flatten):
            return self._flatten(node, value, module.start_dim, module.end_dim)
        if isinstance(module, _POINTWISE_LAYERS):
            return value
        if isinstance(module, _POOLS):
            return self._pool(node, value)
        if isinstance(module, nn.Softmax | nn.LogSoftmax):
            return self._mix(node, value)
        _refuse(node, f"{type(module).__name__} is not supported", "build it from supported torch.nn layers")

    def _weights(self, node: fx.Node, path: str, module: Any, inputs: int, outputs: int) -> _Stream:
        """A linear layer or a convolution."""
        linear = isinstance(module, nn.Linear)
        before, stream = self._enter(node, inputs, second=not linear)
        kernel: Axes = (None,) * (module.weight.dim() - 2)
        if linear or module.groups == 1:
            group = self._open(outputs)
            self._declare(node, module.weight, (Axis(group=group), before, *kernel))
        elif module.groups == inputs == outputs and not stream.flat:  # depthwise: every channel on its own
            group = stream.group
            self._declare(node, module.weight, (before, None, *kernel))
        else:
            _refuse(node, f"it has groups={module.groups}", "use groups=1 or a depthwise convolution")
        self._declare(node, module.bias, (Axis(group=group),))
        rank = stream.rank if linear else module.weight.dim()
        return self._weighted(path, _Stream(group=group, axis=-1 if linear else 1 - module.weight.dim(), rank=rank))

    def _norm(self, node: fx.Node, path: str, module: Any) -> _Stream:
        layer = isinstance(module, nn.LayerNorm)
        if layer and len(module.normalized_shape) > 1:
            _refuse(
                node, f"it normalises over {len(module.normalized_shape)} dimensions", "normalise over the last one"
            )
        size = module.normalized_shape[0] if layer else getattr(module, "num_features", None) or module.num_channels
        axis, stream = self._enter(node, size, second=not layer)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self._declare(node, getattr(module, name, None), (axis,))
        self._join(node, self.norms.setdefault(path, axis).group, axis.group)
        return stream

    def _attention(self, node: fx.Node, path: str, module: nn.MultiheadAttention) -> _Value:
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            _refuse(node, "it has kdim, vdim, add_bias_kv or add_zero_attn", "use plain self-attention")
        size = module.embed_dim
        axis, stream = self._enter(node, size, second=False)
        for name, other in zip(("query", "key", "value"), (*node.args[:3], None, None, None), strict=False):
            source = node.kwargs.get(name, other)
            key = self.values[source] if isinstance(source, fx.Node) else None
            self._join(node, stream.group, key.group if isinstance(key, _Stream) else self._open(size, fixed=True))
        inner, outer = self._open(size, heads=module.num_heads), self._open(size)
        self._declare(node, module.in_proj_weight, (Axis(group=inner, stacks=3), axis))
        self._declare(node, module.in_proj_bias, (Axis(group=inner, stacks=3),))
        self._declare(node, module.out_proj.weight, (Axis(group=outer), Axis(group=inner)))
        self._declare(node, module.out_proj.bias, (Axis(group=outer),))
        self.attentions.append(path)
        return self._weighted(path, _Stream(group=outer, rank=stream.rank)), _Plain()

    def _operation(self, node: fx.Node, name: str) -> _Value:
        """A function or a method."""
        values = [self.values[n] for n in node.all_input_nodes]
        streams = [value for value in values if isinstance(value, _Stream)]
        if name in _FACTS or (name == "getattr" and node.args[1] in _FACTS):
            return None
        if name == "getitem" and isinstance(values[0], tuple):
            item: _Value = values[0][node.args[1]]  # type: ignore[index]
            return item
        if name in _POINTWISE and len(values) == 1 and not isinstance(values[0], tuple):
            return values[0]
        if name in _POINTWISE and streams:
            return self._combine(node, values, streams)
        if not streams:
            return _plain(node, name, values)
        stream = streams[0]
        if len(streams) == 1 and name in _POOLING:
            return self._pool(node, stream)
        if name in ("softmax", "log_softmax"):
            return self._mix(node, stream)
        if name in ("flatten", "view", "reshape"):
            start, end = (
                (_argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1))
                if name == "flatten"
                else (1, -1)
            )
            if name != "flatten" and (len(node.args) != 3 or node.args[2] != -1):
                _refuse(node, f"{name} sets sizes that a sliced model does not have", "write flatten(x, 1)")
            return self._flatten(node, stream, start, end)
        if name in _SHAPES:
            return _SHAPES[name](node, stream)
        _refuse(node, f"{name} is not supported on channels", "use layers of torch.nn, adds and pooling")
