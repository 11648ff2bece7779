"""A desk whose memory never moves: what a captured CUDA graph reads and writes.

The learning rate and the mask are one vector: the rate inside the sub-model and zero outside, so a step of SGD is
w - rates·g and needs no mask. Convolution weights may lie channels last: the vector of a desk then has an order of
its own. Read next: `graphed_bench.py`, the benches with such desks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedgmr.submodels.layout import TensorPlace
from fedgmr.training.graphed.fused import Ledger, fuse
from fedgmr.training.optimizers import SGD
from fedgmr.training.submodel.workspace import Desk, LocalRun


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticRun(LocalRun):
    """A run whose tensors stay where they are; `rates` are the learning rate within the sub-model, zero outside."""

    rates: Sequence[Tensor]
    ledger: Ledger | None  # of linear layers that are stepped without a gradient
    tf32: bool
    outside_views: Sequence[Tensor | None]

    @property
    def masks(self) -> Sequence[Tensor | None]:
        """For each parameter what lies outside the sub-model."""
        return self.outside_views

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients of `loss`, one per parameter that is not in the ledger."""
        if self.ledger is None or not self.ledger.names:
            return super().gradients(loss)
        wanted = [self.parameters[i] for i in self._with_gradient]
        return list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))

    def descend(self, gradients: Sequence[Tensor]) -> None:
        """One step of the optimiser within the sub-model."""
        if not isinstance(self.descent, SGD):
            return super().descend(gradients)
        chosen = self._with_gradient
        parameters, rates = [self.parameters[i] for i in chosen], [self.rates[i] for i in chosen]
        with torch.no_grad():
            torch._foreach_addcmul_(parameters, list(gradients), rates, value=-1.0)
            for i in range(len(self.places)):
                name = self.places[i].name
                if self.ledger is not None and name in self.ledger.entries:
                    self.ledger.step(name, self.parameters[i].data, self.rates[i], tf32=self.tf32)
        return None

    @cached_property
    def _with_gradient(self) -> list[int]:
        noted = set() if self.ledger is None else set(self.ledger.names)
        return [i for i, place in enumerate(self.places) if place.name not in noted]


class StaticDesk:
    """What belongs to one desk for good: the order of its vector, the rates, the mask, the rate as a number."""

    def __init__(self, desk: Desk, *, channels_last: bool) -> None:
        self.desk = desk
        places = desk.layout.parameters
        order = _channels_last(places, desk.flat.device) if channels_last else None
        self.order = self.inverse = None if order is None else order.to(torch.int32)
        if order is not None:
            for parameter, view in zip(desk.parameters, _views(desk.flat, places), strict=True):
                parameter.data = view
            self.inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
            self.inverse = self.inverse.to(torch.int32)  # half the bytes to read
        self.flat_rates = torch.zeros_like(desk.flat)
        self.rates = self.views(self.flat_rates)
        self.rate = torch.zeros((), dtype=desk.flat.dtype, device=desk.flat.device)
        self.outside = torch.zeros(desk.flat.shape, dtype=torch.bool, device=desk.flat.device)
        self._filled: float | None = None  # the rate everywhere, where nothing is outside

    def views(self, flat: Tensor) -> list[Tensor]:
        """One view of a vector in the desk's order per parameter."""
        layout = self.desk.layout
        return layout.views(flat) if self.order is None else _views(flat, layout.parameters)

    def load(self, source: Tensor, coordinates: Tensor | None) -> None:
        """The values of `source` at the desk's coordinates (None: all of it), in the desk's order."""
        if coordinates is None:
            self.desk.flat.copy_(source)
        else:
            torch.index_select(source, 0, coordinates, out=self.desk.flat)

    def set_rates(self, rate: float, outside: Tensor | None, *, keep_mask: bool) -> None:
        """The learning rate of this task; `keep_mask`: some rule asks for the mask itself."""
        self.rate.fill_(rate)
        if outside is not None:
            self.flat_rates.fill_(rate).masked_fill_(outside, 0)
            self._filled = None
        elif self._filled != rate:
            self.flat_rates.fill_(rate)
            self._filled = rate
        if keep_mask:
            self.outside.zero_() if outside is None else self.outside.copy_(outside)


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """Which kernels of `fused.py` are used."""

    linear: bool  # large linear layers are stepped without a gradient
    tf32: bool

    def __call__(self, module: nn.Module) -> tuple[nn.Module, Ledger]:
        """The module with fused layers, and what its backward pass notes."""
        ledger = Ledger()
        return fuse(module, ledger if self.linear else None), ledger


def _spatial(place: TensorPlace) -> bool:
    return len(place.shape) == 4


def _channels_last(places: Sequence[TensorPlace], device: torch.device) -> Tensor:
    """For each entry of a vector whose 4-dimensional tensors lie channels last: its coordinate."""
    parts = []
    for place in places:
        part = torch.arange(place.start, place.stop, device=device).view(place.shape)
        parts.append((part.permute(0, 2, 3, 1) if _spatial(place) else part).reshape(-1))
    return torch.cat(parts)


def _views(flat: Tensor, places: Sequence[TensorPlace]) -> list[Tensor]:
    """One view per tensor of a vector whose 4-dimensional tensors lie channels last."""
    views = []
    for place in places:
        part = flat[place.start : place.stop]
        if _spatial(place):
            outputs, inputs, height, width = place.shape
            views.append(part.view(outputs, height, width, inputs).permute(0, 3, 1, 2))
        else:
            views.append(part.view(place.shape))
    return views
