"""Layers that know the clients: each computes the samples of every client with that client's own parameters.

A layer stands in for the `forward` of a module whose attributes stay. What it is given has the samples of the first
client first, then those of the second, and so on. Its backward pass writes the gradients of its parameters to their
places in the rows of gradients and hands on the gradient of what it was given. Images lie channels last. Read next:
`net.py`, which holds the rows; `linear.py` and the other files of this room, the kernels.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.training.folded import batch_norm, dropout, embedding, head, layer_norm, linear, pooling
from fedgmr.training.folded.attention import Attention as Attending
from fedgmr.training.folded.attention import Hidden
from fedgmr.training.folded.convolution import ConvProducts
from fedgmr.training.folded.plan import Call
from fedgmr.training.stacked import plan
from fedgmr.training.stacked.convolution import Ranges

if TYPE_CHECKING:
    from fedgmr.training.folded.net import FoldedNet

Slopes = tuple[Tensor | None, ...]  # the gradients of what a layer was given
Computed = tuple[Tensor, Sequence[Tensor], Callable[..., Slopes]]


class _Apply(torch.autograd.Function):
    """A layer's work as an operation of PyTorch's."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, layer: "Folded", *given: Tensor) -> Tensor:
        """Outputs, and what the backward pass needs."""
        outputs, saved, ctx.back = layer._compute(*given)
        ctx.save_for_backward(*saved)
        return outputs

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        """Gradients of what was given; parameters' go to their places."""
        return None, None, *ctx.back(*slopes, *ctx.saved_tensors)


class Folded:
    """A layer of a net. A subclass computes outputs, what to save, and a function of the outputs' gradient and this."""

    _compute: Callable[..., Computed]

    def __init__(self, net: "FoldedNet", call: Call, *, prefix: str = "") -> None:
        """`prefix` is what the names of the module's parameters begin with."""
        self.net, self.call, self.prefix, self.module = net, call, prefix, call.layer

    def forward(self, *given: Tensor) -> Tensor:
        """Stand in for the module's forward."""
        return _Apply.apply(self.net.anchor, self, *given)  # type: ignore[no-any-return, no-untyped-call]

    @property
    def own(self) -> tuple[Any, Any]:
        """The module's weight and bias, of every client; None where it has none."""
        return self._own(self.net.weight)

    @property
    def slopes(self) -> tuple[Any, Any]:
        """The places for their gradients."""
        return self._own(self.net.gradient)

    def _own(self, of: Callable[[str], Tensor]) -> tuple[Any, Any]:
        names = f"{self.prefix}weight", f"{self.prefix}bias"
        weight, bias = (None if getattr(self.module, n, None) is None else of(self.path(n)) for n in names)
        return weight, bias

    @property
    def ranges(self) -> Ranges | None:
        """The channels that clients have before and behind the layer."""
        return self.net.ranges(self.path(f"{self.prefix}weight"))

    def path(self, name: str) -> str:
        """The name of a parameter or buffer in the whole model."""
        return f"{self.call.name}.{name}" if self.call.name else name

    def rows(self, given: Tensor) -> Tensor:
        """[samples, ..., width] as [clients, rows, width]."""
        return given.contiguous().view(self.net.count, -1, given.shape[-1])

    def images(self, given: Tensor) -> Tensor:
        """Images [samples, channels, height, width] as [clients, samples, height, width, channels]."""
        lying = _channels_last(given)
        return lying.view(self.net.count, -1, *lying.shape[1:])


class Conv(Folded):
    """A convolution of images [samples, channels, height, width]."""

    module: nn.Conv2d

    def _compute(self, images: Tensor) -> Computed:
        x, module, net, needed = self.images(images), self.module, self.net, images.requires_grad
        _, samples, height, width, channels = x.shape
        weight_at, bias_at = (net.plan.at.get(self.path(name), (None,))[0] for name in ("weight", "bias"))
        assert weight_at is not None
        layer = plan.Conv(
            weight_at=weight_at, bias_at=bias_at, kernel=module.kernel_size[0], padding=int(module.padding[0]),
            inputs=channels, outputs=module.out_channels, height=height, width=width, stride=module.stride[0],
        )  # fmt: skip
        products, ranges = ConvProducts(layer, samples, net.precision), self.ranges
        weights, turned = net.alive[: net.count], net.turned.of(self.path("weight"), net.count)

        def back(slopes: Tensor, x: Tensor) -> Slopes:
            dy = self.images(slopes)
            with net.beside(x, dy):
                products.weight_gradient(x, dy, net.gradients[: net.count], ranges)
            return (_channels_second(products.input_gradient(dy, turned, ranges).flatten(0, 1)) if needed else None,)

        return _channels_second(products.forward(x, weights, ranges).flatten(0, 1)), (x,), back


class BatchNorm(Folded):
    """Batch norm over each client's own samples; a sum and a ReLU behind it too, where they are joined to it."""

    module: nn.BatchNorm2d

    def _compute(self, images: Tensor, *added: Tensor) -> Computed:
        module, relu, lying = self.module, self.call.relu, [_channels_last(each) for each in (images, *added)]
        shape, (x, *others) = lying[0].shape, map(self.rows, lying)
        running = None
        if module.track_running_stats:
            running = self.net.statistic(self.path("running_mean")), self.net.statistic(self.path("running_var"))
        assert module.momentum is not None
        y, means, rstds = batch_norm.forward(
            x, *self.own, running, module.momentum, self.net.eps(module.eps), others[0] if others else None, relu
        )

        def back(slopes: Tensor, x: Tensor, y: Tensor, means: Tensor, rstds: Tensor) -> Slopes:
            dy, weight = self.rows(_channels_last(slopes)), self.own[0]
            both = batch_norm.backward(dy, x, y, means, rstds, weight, *self.slopes, relu, bool(others))
            return tuple(_channels_second(each.view(shape)) for each in both if each is not None)

        return _channels_second(y.view(shape)), (x, y if relu else x, means, rstds), back


class Linear(Folded):
    """A linear layer [..., inputs]."""

    module: nn.Linear

    def _compute(self, inputs: Tensor) -> Computed:
        x, shape, needed, how = self.rows(inputs), inputs.shape, inputs.requires_grad, (self.net.precision, self.ranges)

        def back(slopes: Tensor, x: Tensor) -> Slopes:
            dy = self.rows(slopes)
            with self.net.beside(dy, x):
                linear.weight_gradients(dy, x, *self.slopes, *how)
            return (linear.input_gradients(dy, self.own[0], *how).view(shape) if needed else None,)

        return linear.forward(x, *self.own, *how).view(*shape[:-1], -1), (x,), back


class Norm(Folded):
    """Layer norm over the last dimension; behind PyTorch's own group norm, every client's scale and shift."""

    module: nn.LayerNorm | nn.GroupNorm

    def forward(self, *given: Tensor) -> Tensor:
        """Stand in for the module's forward."""
        if isinstance(self.module, nn.LayerNorm):
            return super().forward(*given)
        normed = functional.group_norm(given[0], self.module.num_groups, eps=self.module.eps)
        return super().forward(normed.movedim(1, -1)).movedim(-1, 1) if self.module.affine else normed

    def _compute(self, inputs: Tensor) -> Computed:
        x, shape = self.rows(inputs), inputs.shape
        eps = self.module.eps if isinstance(self.module, nn.LayerNorm) else None
        kept = self.net.kept(self.path("weight"))
        y, means, rstds = layer_norm.forward(x, *self.own, eps, kept)

        def back(slopes: Tensor, x: Tensor, means: Tensor, rstds: Tensor) -> Slopes:
            dy, (dg, db) = self.rows(slopes), self.slopes
            return (layer_norm.backward(dy, x, means, rstds, self.own[0], dg, db, kept).view(shape),)

        return y.view(shape), (x, means, rstds), back


class Embedding(Folded):
    """Rows of a table, by numbers [samples, ...]; those that all share, [...] or [1, ...], are looked up for each."""

    module: nn.Embedding

    def _compute(self, numbers: Tensor) -> Computed:
        count, batch, batched = self.net.count, self.net.batch, self.call.batched
        if not batched and numbers.dim() > 1 and len(numbers) == 1:
            numbers = numbers[0]
        ids = numbers.reshape(count, -1) if batched else numbers.reshape(-1)
        rows = embedding.forward(ids if batched else ids.expand(count, batch, -1).flatten(1), self.own[0])

        def back(slopes: Tensor, ids: Tensor) -> Slopes:
            dy = slopes.contiguous().view(*ids.shape, -1) if batched else slopes.reshape(count, batch, len(ids), -1)
            with self.net.beside(ids, dy):
                embedding.backward(ids, dy, self.slopes[0], self.module.padding_idx)
            return (None,)

        return rows.view(*([] if batched else [count * batch]), *numbers.shape, -1), (ids,), back


class Attention(Folded):
    """Self-attention: the input layer, attention within each sample, the output layer."""

    module: nn.MultiheadAttention

    def __init__(self, net: "FoldedNet", call: Call) -> None:
        super().__init__(net, call)
        self.into = Linear(net, call, prefix="in_proj_")
        self.out = Linear(net, Call(name=self.path("out_proj"), layer=self.module.out_proj, batched=True))

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False,
        **others: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """Stand in for the module's forward, of the form that the plan has seen."""
        hidden: Hidden = "causal" if is_causal else "none"
        if attn_mask is not None and not is_causal:
            hidden = attn_mask if attn_mask.dtype == torch.bool else attn_mask == -torch.inf
        self.attending = Attending(
            heads=self.module.num_heads, hidden=hidden, precision=self.net.precision, p=self.module.dropout,
            seeds=self.net.seeds, number=self.net.next_draw(), scales=self._scales(),
        )  # fmt: skip
        return self.out.forward(super().forward(self.into.forward(query))), None

    def _scales(self) -> Tensor | None:
        """1 / √size of each client, where heads have fewer numbers than the model says."""
        kept = self.net.kept(self.path("in_proj_bias"))
        return None if kept is None else kept[:, : self.module.head_dim].sum(1).float().rsqrt()

    def _compute(self, inputs: Tensor) -> Computed:
        qkv, attending = inputs.contiguous(), self.attending
        y, sums = attending.forward(qkv)
        return y, (qkv, y, sums), lambda slopes, *saved: (attending.backward(slopes.contiguous(), *saved),)


class Dropout(Folded):
    """Dropout that every client draws for itself."""

    module: nn.Dropout

    def _compute(self, inputs: Tensor) -> Computed:
        drawn = self.module.p, self.net.seeds, self.net.next_draw()

        def drop(values: Tensor) -> Tensor:
            return dropout.drop(values.contiguous().view(self.net.count, -1), *drawn).view(values.shape)

        return drop(inputs), (), lambda slopes: (drop(slopes),)


class MaxPool(Folded):
    """The maximum of fields that may overlap, with a backward pass that adds in a fixed order."""

    module: nn.MaxPool2d

    def _compute(self, images: Tensor) -> Computed:
        x, given = _channels_last(images), (self.module.kernel_size, self.module.stride, self.module.padding)
        fields, shape = [value if isinstance(value, int) else value[0] for value in given], x.shape
        y, codes = pooling.forward(x, *fields)

        def back(slopes: Tensor, codes: Tensor) -> Slopes:
            return (_channels_second(pooling.backward(_channels_last(slopes), codes, shape, *fields)),)

        return _channels_second(y), (codes,), back


class Mean(Folded):
    """The mean over an image, added pixel by pixel: PyTorch's order depends on how many images there are."""

    def forward(self, *given: Tensor) -> Tensor:
        """Stand in for the module's forward."""
        pixels = given[0].flatten(2).unbind(-1)
        total = pixels[0]
        for pixel in pixels[1:]:
            total = total + pixel
        return (total / len(pixels))[..., None, None]


class Head(Folded):
    """The last layer and the cross-entropy behind it; the model hands over what the layer is given."""

    module: nn.Linear

    def forward(self, *given: Tensor) -> Tensor:
        """Stand in for the module's forward: nothing is computed before the targets are known."""
        return given[0]

    def loss(self, hidden: Tensor, targets: Tensor, weights: Tensor, absent: Tensor | None) -> Tensor:
        """Every client's loss: the sum over targets [count, targets] of weight · cross-entropy.

        Logits of classes that are `absent` [count, classes] are 0.
        """
        return super().forward(hidden, targets, weights, *([] if absent is None else [absent]))

    def _compute(self, hidden: Tensor, targets: Tensor, weights: Tensor, *absent: Tensor) -> Computed:
        x, shape, how = self.rows(hidden), hidden.shape, (self.net.precision, self.ranges)
        losses, kept = head.forward(x, *self.own, targets, weights, *how, *absent)

        def back(_: Tensor, x: Tensor, *kept: Tensor) -> Slopes:  # the losses are what is derived: their slopes are 1
            with self.net.beside(x, *kept):
                head.weight_gradients(kept, x, *self.own, *self.slopes, *how)
            return head.input_gradients(kept, self.own[0], *how).view(shape), None, None, *(None for _ in absent)

        return losses, (x, *kept), back


# By the class of a module, not of its subclasses.
_LAYERS: dict[type[nn.Module], type[Folded]] = {
    nn.Conv2d: Conv,
    nn.Linear: Linear,
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    nn.LayerNorm: Norm,
    nn.GroupNorm: Norm,
    nn.Embedding: Embedding,
    nn.MultiheadAttention: Attention,
}


def layer_of(net: "FoldedNet", call: Call) -> Folded | None:
    """The layer that stands in for a module; None where PyTorch's own does not depend on company."""
    module, kind = call.layer, _LAYERS.get(type(call.layer))
    if type(module) is nn.Dropout and module.p:
        kind = Dropout
    if type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1)):
        kind = Mean
    if type(module) is nn.MaxPool2d and not module.return_indices and not module.ceil_mode:
        given = (module.kernel_size, module.stride, module.padding)
        square = all(isinstance(value, int) or len(set(value)) == 1 for value in given)
        kind = MaxPool if square and module.dilation in (1, (1, 1)) else None
    return None if kind is None else kind(net, call)


def _channels_last(images: Tensor) -> Tensor:
    """[samples, channels, ...] as [samples, ..., channels], contiguous."""
    return images.movedim(1, -1).contiguous()


def _channels_second(images: Tensor) -> Tensor:
    """[samples, ..., channels] as PyTorch's layers expect them, lying as they are."""
    return images.movedim(-1, 1)
