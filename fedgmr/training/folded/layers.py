"""Layers that know the clients: each computes the samples of every client with that client's own parameters.

A layer stands in for the `forward` of a module whose attributes stay. What it is given has the samples of the first
client first, then those of the second, and so on. Its backward pass writes the gradients of its parameters to their
places in the rows of gradients and hands on the gradient of what it was given. Images lie channels last. Read next:
`net.py`, which holds the rows; `linear.py` and the other files of this room, the kernels.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.training.folded import attention, batch_norm, dropout, embedding, head, layer_norm, linear, pooling
from fedgmr.training.folded.convolution import ConvProducts
from fedgmr.training.folded.plan import Call

Saved = Sequence[Tensor | None]


class Stack(Protocol):
    """What layers ask of the clients that are trained together."""

    count: int  # of clients
    batch: int  # samples of each
    precision: str
    anchor: Tensor  # requires a gradient, so that the backward pass comes to every layer

    @property
    def seeds(self) -> Tensor:
        """Int64 [count], of the present step."""

    def weight(self, name: str) -> Tensor:
        """A parameter of every client [count, ...], convolutions' channels last."""

    def gradient(self, name: str) -> Tensor:
        """The place for its gradient."""

    def statistic(self, name: str) -> Tensor:
        """A buffer of every client [count, ...]."""

    def next_draw(self) -> int:
        """A number for the next layer that draws, from 0 in every step."""

    def beside(self, *read: Tensor) -> AbstractContextManager[None]:
        """Within it, compute what nothing waits for before the step's end; `read` stays as it is until then."""


class _Apply(torch.autograd.Function):
    """A layer's work as an operation of PyTorch's."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, layer: "Folded", *given: Tensor) -> Tensor:
        """Outputs, and what the backward pass needs."""
        outputs, saved, back = layer.compute(*given)
        ctx.back = back
        ctx.save_for_backward(*saved)
        return outputs

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        """Gradients of what was given; parameters' go to their places."""
        return None, None, *ctx.back(slopes[0], *ctx.saved_tensors, needed=ctx.needs_input_grad[2:])


class Folded:
    """A layer of a stack. A subclass computes outputs, what to save, and a function for the way back."""

    def __init__(self, stack: Stack, call: Call, *, prefix: str = "") -> None:
        """`prefix` is what the names of the module's parameters begin with."""
        self.stack, self.module, self.call, self.prefix = stack, call.layer, call, prefix

    def forward(self, *given: Tensor) -> Tensor:
        """Stand in for the module's forward."""
        return _Apply.apply(self.stack.anchor, self, *given)  # type: ignore[no-any-return, no-untyped-call]

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Callable[..., Sequence[Tensor | None]]]:
        """Outputs; tensors to save; the gradients of `given`, from the outputs' and these."""
        raise NotImplementedError

    def own(self, name: str) -> Tensor | None:
        """A parameter of the module's, of every client; None where it has none."""
        return self.stack.weight(self._path(name)) if self._has(name) else None

    def slope(self, name: str) -> Tensor | None:
        """The place for its gradient."""
        return self.stack.gradient(self._path(name)) if self._has(name) else None

    @property
    def weight(self) -> Tensor:
        """The weights that a module of this kind always has."""
        return self.stack.weight(self._path("weight"))

    @property
    def gradient(self) -> Tensor:
        """The place for their gradient."""
        return self.stack.gradient(self._path("weight"))

    def _path(self, name: str) -> str:
        return f"{self.call.name}.{self.prefix}{name}" if self.call.name else f"{self.prefix}{name}"

    def _has(self, name: str) -> bool:
        return getattr(self.module, f"{self.prefix}{name}") is not None

    def images(self, given: Tensor) -> Tensor:
        """Images [samples, channels, height, width] as [clients, samples, height, width, channels]."""
        lying = _pixels_first(given)
        return lying.view(self.stack.count, -1, *lying.shape[1:])

    def by_client(self, given: Tensor, *rest: int) -> Tensor:
        """Split the first dimension into clients; the others become `rest`."""
        return given.reshape(self.stack.count, -1, *rest)


class Conv(Folded):
    """A convolution."""

    module: nn.Conv2d

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """Images [samples, channels, height, width]."""
        (images,) = given
        x = self.images(images)
        samples, height, width, channels = x.shape[1:]
        products = ConvProducts(
            inputs=channels,
            outputs=self.module.out_channels,
            kernel=self.module.kernel_size[0],
            stride=self.module.stride[0],
            padding=int(self.module.padding[0]),
            height=height,
            width=width,
            batch=samples,
            precision=self.stack.precision,
        )
        y = products.forward(x, self.weight, self.own("bias"))
        return _channels_first(y.flatten(0, 1)), (x,), partial(self._back, products)

    def _back(
        self, products: ConvProducts, slopes: Tensor, x: Tensor, *, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        dy = self.images(slopes)
        with self.stack.beside(x, dy):
            products.weight_gradient(x, dy, self.gradient, self.slope("bias"))
        dx = products.input_gradient(dy, self.weight) if needed[0] else None
        return [None if dx is None else _channels_first(dx.flatten(0, 1))]


class BatchNorm(Folded):
    """Batch norm over each client's own samples; a sum and a ReLU behind it too, where they are joined to it."""

    module: nn.BatchNorm2d

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """Images, or samples [samples, channels]; then what is added to the result."""
        images, *others = given
        x, *added = (self._rows(each) for each in (images, *others))
        tracked = self.module.track_running_stats
        mean, var = (self.stack.statistic(self._path(f"running_{n}")) if tracked else None for n in ("mean", "var"))
        momentum = self.module.momentum
        assert momentum is not None
        y, means, rstds = batch_norm.forward(
            x, self.own("weight"), self.own("bias"), mean, var, momentum, self.module.eps,
            added[0] if added else None, self.call.relu,
        )  # fmt: skip
        back = partial(self._back, images.shape, bool(added))
        return self._shaped(y, images.shape), (x, y if self.call.relu else x, means, rstds), back

    def _back(
        self, shape: torch.Size, added: bool, slopes: Tensor, x: Tensor, y: Tensor, means: Tensor, rstds: Tensor, *,
        needed: Sequence[bool],
    ) -> list[Tensor | None]:  # fmt: skip
        dx, passed = batch_norm.backward(
            self._rows(slopes), x, y, means, rstds, self.own("weight"), self.slope("weight"), self.slope("bias"),
            self.call.relu, added,
        )  # fmt: skip
        return [self._shaped(dx, shape), *([] if passed is None else [self._shaped(passed, shape)])]

    def _rows(self, given: Tensor) -> Tensor:
        return self.by_client(_pixels_first(given) if given.dim() == 4 else given.contiguous(), given.shape[1])

    def _shaped(self, rows: Tensor, shape: torch.Size) -> Tensor:
        if len(shape) == 2:
            return rows.view(shape)
        samples, channels, height, width = shape
        return _channels_first(rows.view(samples, height, width, channels))


class Linear(Folded):
    """A linear layer."""

    module: nn.Linear

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """[..., inputs]."""
        (inputs,) = given
        x = self.by_client(inputs.contiguous(), inputs.shape[-1])
        y = linear.forward(x, self.weight, self.own("bias"), self.stack.precision)
        return y.view(*inputs.shape[:-1], -1), (x,), partial(self._back, inputs.shape)

    def _back(self, shape: torch.Size, slopes: Tensor, x: Tensor, *, needed: Sequence[bool]) -> list[Tensor | None]:
        dy = self.by_client(slopes.contiguous(), slopes.shape[-1])
        with self.stack.beside(dy, x):
            linear.weight_gradients(dy, x, self.gradient, self.slope("bias"), self.stack.precision)
        return [linear.input_gradients(dy, self.weight, self.stack.precision).view(shape) if needed[0] else None]


class LayerNorm(Folded):
    """Layer norm over the last dimension."""

    module: nn.LayerNorm

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """[..., width]."""
        (inputs,) = given
        x = self.by_client(inputs.contiguous(), inputs.shape[-1])
        y, means, rstds = layer_norm.forward(x, self.own("weight"), self.own("bias"), self.module.eps)
        return y.view(inputs.shape), (x, means, rstds), partial(self._back, inputs.shape)

    def _back(
        self, shape: torch.Size, slopes: Tensor, x: Tensor, means: Tensor, rstds: Tensor, *, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        dy = slopes.contiguous().view(x.shape)
        dx = layer_norm.backward(dy, x, means, rstds, self.own("weight"), self.slope("weight"), self.slope("bias"))
        return [dx.view(shape)]


class GroupNorm(Folded):
    """Group norm: PyTorch normalises each sample, then comes every client's scale and shift."""

    module: nn.GroupNorm

    def forward(self, *given: Tensor) -> Tensor:
        """Stand in for the module's forward."""
        normed = functional.group_norm(given[0], self.module.num_groups, eps=self.module.eps)
        return super().forward(normed) if self.module.affine else normed

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """Samples [samples, channels, ...]."""
        x = given[0].movedim(1, -1).contiguous()
        rows = self.by_client(x, x.shape[-1])
        weight, bias = self.weight, self.own("bias")
        y = layer_norm.affine_forward(rows, weight, bias)
        return y.view(x.shape).movedim(-1, 1), (rows,), partial(self._back, x.shape)

    def _back(self, shape: torch.Size, slopes: Tensor, rows: Tensor, *, needed: Sequence[bool]) -> list[Tensor | None]:
        dy = slopes.movedim(1, -1).contiguous().view(rows.shape)
        dx = layer_norm.affine_backward(dy, rows, self.weight, self.gradient, self.slope("bias"))
        return [dx.view(shape).movedim(-1, 1)]


class Embedding(Folded):
    """Rows of a table, by number; numbers that all samples share are looked up for each of them."""

    module: nn.Embedding

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """Numbers [samples, ...], or shared ones [...] or [1, ...]."""
        (numbers,) = given
        table, samples = self.weight, self.stack.count * self.stack.batch
        if self.call.batched:
            ids = self.by_client(numbers.contiguous())
            return embedding.forward(ids, table).view(*numbers.shape, -1), (ids,), self._back
        one = numbers[0] if numbers.dim() > 1 and len(numbers) == 1 else numbers
        ids = one.reshape(-1)
        rows = embedding.forward(ids.expand(self.stack.count, self.stack.batch, -1).flatten(1), table)
        return rows.view(samples, *one.shape, -1), (ids,), self._shared_back

    def _back(self, slopes: Tensor, ids: Tensor, *, needed: Sequence[bool]) -> list[Tensor | None]:
        dy = slopes.contiguous().view(*ids.shape, -1)
        with self.stack.beside(ids, dy):
            embedding.backward(ids, dy, self.gradient, self.module.padding_idx)
        return [None]

    def _shared_back(self, slopes: Tensor, ids: Tensor, *, needed: Sequence[bool]) -> list[Tensor | None]:
        dy = slopes.contiguous().view(self.stack.count, self.stack.batch, len(ids), -1)
        with self.stack.beside(ids, dy):
            embedding.shared_backward(ids, dy, self.gradient, self.module.padding_idx)
        return [None]


class Attention(Folded):
    """Self-attention: the input layer, attention within each sample, the output layer."""

    module: nn.MultiheadAttention

    def __init__(self, stack: Stack, call: Call) -> None:
        super().__init__(stack, call)
        inner = self.module.out_proj
        self.into = Linear(stack, Call(name=call.name, layer=call.layer, batched=True), prefix="in_proj_")
        self.out = Linear(stack, Call(name=f"{call.name}.out_proj", layer=inner, batched=True))

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False,
        **others: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """Stand in for the module's forward, of the form that the plan has seen."""
        hidden: attention.Hidden = "causal" if is_causal else "none"
        if attn_mask is not None and not is_causal:
            hidden = attn_mask if attn_mask.dtype == torch.bool else attn_mask == -torch.inf
        self.hidden, self.draw = hidden, self.stack.next_draw()
        return self.out.forward(super().forward(self.into.forward(query))), None

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """Queries, keys and values [samples, length, 3 · width]."""
        qkv = given[0].contiguous()
        seen = self.module.num_heads, self.hidden, self.stack.precision
        drawn = {"p": self.module.dropout, "seeds": self.stack.seeds, "number": self.draw}
        y, sums = attention.forward(qkv, *seen, **drawn)
        return y, (qkv, y, sums), partial(self._back, seen, drawn)

    def _back(
        self, seen: Any, drawn: Any, slopes: Tensor, qkv: Tensor, y: Tensor, sums: Tensor, *, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        return [attention.backward(slopes.contiguous(), qkv, y, sums, *seen, **drawn)]


class Dropout(Folded):
    """Dropout that every client draws for itself."""

    module: nn.Dropout

    def forward(self, *given: Tensor) -> Tensor:
        """Stand in for the module's forward."""
        return super().forward(*given) if self.module.p else given[0]

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """Samples [samples, ...]."""
        inputs = given[0]
        arguments = self.module.p, self.stack.seeds, self.stack.next_draw()
        drop = partial(self._drop, arguments)
        return drop(inputs), (), lambda slopes, needed: [drop(slopes)]

    def _drop(self, arguments: tuple[float, Tensor, int], values: Tensor) -> Tensor:
        lying = values.contiguous()
        return dropout.drop(self.by_client(lying).flatten(1), *arguments).view(lying.shape)


class MaxPool(Folded):
    """The maximum of fields that may overlap, with a backward pass that adds in a fixed order."""

    module: nn.MaxPool2d

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """Images."""
        x = _pixels_first(given[0])
        size, stride, padding = (
            _one(value) for value in (self.module.kernel_size, self.module.stride, self.module.padding)
        )
        y, codes = pooling.forward(x, size, stride, padding)
        return _channels_first(y), (codes,), partial(self._back, x.shape, (size, stride, padding))

    def _back(
        self, shape: torch.Size, fields: tuple[int, int, int], slopes: Tensor, codes: Tensor, *, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        return [_channels_first(pooling.backward(_pixels_first(slopes), codes, shape, *fields))]


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

    def loss(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Every client's loss: the sum over targets [count, targets] of weight · cross-entropy."""
        return _Apply.apply(self.stack.anchor, self, hidden, targets, weights)  # type: ignore[no-any-return, no-untyped-call]

    def compute(self, *given: Tensor) -> tuple[Tensor, Saved, Any]:
        """Hidden values [samples, ..., width], targets and weights."""
        hidden, targets, weights = given
        x = self.by_client(hidden.contiguous(), hidden.shape[-1])
        losses, kept = head.forward(x, self.weight, self.own("bias"), targets, weights, self.stack.precision)
        return losses, (x, *kept), partial(self._back, hidden.shape)

    def _back(
        self, shape: torch.Size, slopes: Tensor, x: Tensor, *kept: Tensor, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """The losses are what is derived, so their slopes are 1."""
        with self.stack.beside(x, *kept):
            head.weight_gradients(
                kept, x, self.weight, self.own("bias"), self.gradient, self.slope("bias"), self.stack.precision
            )
        return [head.input_gradients(kept, self.weight, self.stack.precision).view(shape), None, None]


# By the class of a module, not of its subclasses.
LAYERS: dict[type[nn.Module], type[Folded]] = {
    nn.Conv2d: Conv,
    nn.Linear: Linear,
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    nn.LayerNorm: LayerNorm,
    nn.GroupNorm: GroupNorm,
    nn.Embedding: Embedding,
    nn.MultiheadAttention: Attention,
}


def plain_layer(stack: Stack, module: nn.Module) -> Folded | None:
    """The layer that stands in for a module without parameters, where PyTorch's would depend on company."""
    call = Call(name="", layer=module, batched=True)
    if type(module) is nn.Dropout:
        return Dropout(stack, call)
    if type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1)):
        return Mean(stack, call)
    if type(module) is nn.MaxPool2d and not module.return_indices and not module.ceil_mode:
        given = (module.kernel_size, module.stride, module.padding, module.dilation)
        square = all(isinstance(value, int) or len(set(value)) == 1 for value in given)
        return MaxPool(stack, call) if square and _one(module.dilation) == 1 else None
    return None


def _pixels_first(images: Tensor) -> Tensor:
    """[samples, channels, height, width] as [samples, height, width, channels], contiguous."""
    return images.permute(0, 2, 3, 1).contiguous()


def _channels_first(images: Tensor) -> Tensor:
    """[samples, height, width, channels] as PyTorch's layers expect them, lying as they are."""
    return images.permute(0, 3, 1, 2)


def _one(value: int | tuple[int, ...]) -> int:
    return value if isinstance(value, int) else value[0]
