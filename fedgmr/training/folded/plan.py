"""Which models can be folded: the clients of a stack as one large batch of an ordinary model.

Operations without parameters treat every sample alone, so they can have the samples of many clients at once. Layers
with parameters are given the clients' own (`layers.py`). A model is planned by calling it with two and with three
samples: each layer with parameters must be one that is known and be called once, what it is given must have the samples
in its first dimension, and the outputs must be those of the untouched model. What else a model does with its samples is
tried on the device (`net.py`). Read next: `layers.py`.
"""

from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from fedgmr.seeding import borrowed_generator
from fedgmr.submodels.inputs import as_written, replaced_forward
from fedgmr.submodels.layout import Layout
from fedgmr.training.folded.joining import join
from fedgmr.training.stacked.rows import RowOrder, RowWriter

_ROUNDING = 1e-3  # of the largest output: what is left out of a model changes it by far more
_LONGEST = 128  # positions of attention: one program has all queries of a sample
# Layers with parameters, and dropout, whose draws must not depend on company. Not their subclasses: what those do with
# the parameters is not known.
_KNOWN = (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.Embedding)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A layer with parameters, and how the model calls it."""

    name: str
    layer: nn.Module
    batched: bool  # it is given samples; otherwise something that is the same for all of them, such as positions
    relu: bool = False  # a ReLU behind it is its own work


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldPlan:
    """A model taken apart into its layers with parameters, and the order of its weights in a row."""

    model: nn.Module
    layout: Layout
    calls: Sequence[Call]
    head: Call | None  # a linear layer whose outputs are the model's: the loss can be computed with it
    order: RowOrder
    at: Mapping[str, tuple[int, torch.Size]]  # where each parameter begins in a row, and how it lies there

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, example: Tensor) -> "FoldPlan | None":
        """Plan a model; `example` has three samples, prepared. None where it cannot be folded."""
        if layout.dtype != torch.float32 or not _known(model):
            return None
        untouched = _Pass.of(model.cpu().train(), example.cpu())
        model, relus = join(model)
        for module in model.modules():
            if getattr(module, "inplace", False):  # a layer's outputs may be what its backward pass looks at
                module.inplace = False  # type: ignore[assignment]
        two, three = (_Pass.of(model, example[:samples].cpu(), relus) for samples in (2, 3))
        if untouched is None or two is None or three is None or not alike(untouched.outputs, three.outputs):
            return None
        observed = _observe(model, two, three, relus)
        if observed is None:
            return None
        calls, head = observed
        travelling = {f"{call.name}.{n}" for call in calls for n, _ in call.layer.named_buffers()}
        if any(place.name not in travelling for place in layout.buffers):
            return None
        writer, at = RowWriter(layout), {}
        for name, coordinates in writer.coordinates.items():
            lying = coordinates.permute(0, 2, 3, 1) if coordinates.dim() == 4 else coordinates
            at[name] = writer.put(lying), lying.shape
        order = writer.finish()
        assert order is not None
        return cls(model=model, layout=layout, calls=calls, head=head, order=order, at=at)


def _owners(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that have parameters of their own; attention has those of its output layer."""
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        within = any(
            isinstance(owner, nn.MultiheadAttention) and name.startswith(f"{outer}.") for outer, owner in found
        )
        if module._parameters and not within:
            found.append((name, module))
    return found


def _known(model: nn.Module) -> bool:
    """Whether every layer with parameters can be folded, and trains all of them as its own."""
    named = [p for _, p in model.named_parameters(remove_duplicate=False)]
    if len({id(p) for p in named}) < len(named) or not all(p.requires_grad for p in named):
        return False
    return all(as_written(module) for module in model.modules()) and all(_takes(layer) for _, layer in _owners(model))


def _takes(layer: nn.Module) -> bool:
    if isinstance(layer, nn.MultiheadAttention):
        plain = type(layer) is nn.MultiheadAttention and layer._qkv_same_embed_dim and layer.batch_first
        return plain and layer.bias_k is None and not layer.add_zero_attn
    if type(layer) not in _KNOWN:
        return False
    if isinstance(layer, nn.Conv2d):
        square = len(set(layer.kernel_size)) == len(set(layer.stride)) == 1
        even = isinstance(layer.padding, tuple) and len(set(layer.padding)) == 1
        return square and even and (layer.dilation, layer.groups, layer.padding_mode) == ((1, 1), 1, "zeros")
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return layer.momentum is not None
    if isinstance(layer, nn.LayerNorm):
        return len(layer.normalized_shape) == 1
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return True


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pass:
    """What was seen in a forward pass on a CPU, in which dropout halves everything."""

    given: Mapping[str, torch.Size]  # to each layer with parameters
    last: str | None  # whose outputs are the model's
    outputs: Tensor

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor, relus: Set[str] = frozenset()) -> "_Pass | None":
        """None where a layer is called twice or in a way that is not known, or where the model itself draws."""
        given: dict[str, torch.Size] = {}
        refused: list[str] = []
        last: tuple[str, Any, int] | None = None

        def watch(name: str, layer: nn.Module) -> Any:
            def forward(own: Tensor, *others: Any, **named: Any) -> Any:
                nonlocal last
                added, others = (others, ()) if isinstance(layer, nn.BatchNorm2d) else ((), others)  # joined to it
                attends = isinstance(layer, nn.MultiheadAttention)
                known = not attends or _attends_to_itself(layer, own, *others, **named)
                if name in given or not known or any(one.shape != own.shape for one in added):
                    refused.append(name)
                given[name] = own.shape
                drawn = torch.get_rng_state()
                outputs = type(layer).forward(layer, own, *others, **named)
                torch.set_rng_state(drawn)  # what attention draws is known
                outputs = sum(added, start=outputs)
                outputs = outputs.relu() if name in relus else outputs
                last = name, outputs, getattr(outputs, "_version", 0)  # attention returns two
                return outputs

            return forward

        def halve(layer: nn.Dropout) -> Any:
            return lambda values: values.mul_(0.5) if layer.inplace else values * 0.5

        statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with borrowed_generator(), torch.no_grad(), ExitStack() as changed:
            for name, layer in _owners(model):
                changed.enter_context(replaced_forward(layer, watch(name, layer)))
            for layer in model.modules():
                if type(layer) is nn.Dropout:
                    changed.enter_context(replaced_forward(layer, halve(layer)))
            before = torch.get_rng_state()
            outputs = model(inputs)
            drew = not torch.equal(before, torch.get_rng_state())
        for name, buffer in model.named_buffers():
            buffer.copy_(statistics[name])
        if refused or drew or last is None or not isinstance(outputs, Tensor):
            return None
        as_returned = outputs is last[1] and outputs._version == last[2]  # not changed in place
        return cls(given=given, last=last[0] if as_returned else None, outputs=outputs)


def alike(outputs: Tensor, others: Tensor, rounding: float = _ROUNDING) -> bool:
    """Whether they differ by rounding at most, which may depend on where tensors lie in memory."""
    return outputs.shape == others.shape and bool((outputs - others).abs().max() <= rounding * outputs.abs().max())


def _observe(model: nn.Module, two: _Pass, three: _Pass, relus: set[str]) -> tuple[list[Call], Call | None] | None:
    """The calls of passes with two and three samples, and the last layer; None where folding does not allow them."""
    named = _owners(model)
    if list(two.given) != list(three.given) or set(two.given) != {name for name, _ in named}:
        return None
    calls = []
    for name, layer in named:
        first, second = two.given[name], three.given[name]
        batched = first[0] % 2 == 0 and second[0] % 3 == 0 and first[0] // 2 == second[0] // 3
        if not batched and (first != second or not isinstance(layer, nn.Embedding)):
            return None
        calls.append(Call(name=name, layer=layer, batched=batched, relu=name in relus))
    return calls, next((call for call in calls if call.name == three.last and isinstance(call.layer, nn.Linear)), None)


def _attends_to_itself(*given: Any, **named: Any) -> bool:
    """Whether a call of attention can be folded: of samples to themselves, not too long, with one mask for all."""
    call = signature(nn.MultiheadAttention.forward).bind(*given, **named)
    call.apply_defaults()
    _, query, key, value, padding, need_weights, mask, *_ = call.args
    one = query is key and key is value and query.dim() == 3 and query.shape[1] <= _LONGEST
    return one and (mask is None or _hides(mask)) and padding is None and not need_weights


def _hides(mask: Tensor) -> bool:
    """Whether a mask is one for all samples and heads, and says only what is seen."""
    allowed = mask.dtype == torch.bool or bool(((mask == 0) | (mask == -torch.inf)).all())
    return mask.dim() == 2 and allowed
