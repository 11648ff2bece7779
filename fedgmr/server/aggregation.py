"""Merging client updates: mask-aware mean (MA), gradient average (GA), zero-padded FedAvg (FA), asynchronous mixing.

The means are over the buffer or, as in the paper's released code, over the arrivals of the tick (section 3.4).
The rules work on values as they are kept and never build a mask: with nested levels the denominator follows from a
coordinate's level in each level map (`sums.py`). `examples/fedgmr_in_200_lines.py` has the mask-aware mean with dense
masks, as the equation says it (section 3.4). The buffer keeps each client's most recent update (A13).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedgmr.server.buffer import Contribution
from fedgmr.server.sums import mean_of, total_of

if TYPE_CHECKING:
    from fedgmr.server.label_aware import Labels

_Over = Literal["buffer", "arrivals"]


@dataclass(frozen=True, kw_only=True)
class Merge:
    """The inputs of one merge: the model, what has arrived, what is buffered, and every contribution's weight."""

    model: Tensor
    buffers: Tensor
    fresh: Sequence[Contribution]
    held: Sequence[Contribution]
    starts: Mapping[int, Tensor]  # by client: the global model its fresh update started from
    weights: Mapping[int, float]  # by client: staleness weight times client weight
    clients: int
    fleet_weight: Callable[[], float]  # Σ over all clients of the weight that each had at its last arrival
    labels: "Labels | None" = None  # who has which class; for label-aware averaging

    def taken(self, over: str) -> Sequence[Contribution]:
        """The updates that a rule merges: all that are kept, or those that have arrived."""
        return self.held if over == "buffer" else self.fresh


_OVER = {
    "help": (
        "the updates that are merged: all that are kept, or the `arrivals` since the last merge; the buffer is then "
        "kept for the padded model alone"
    )
}


class Aggregation(Protocol):
    """A merge rule. One that takes the arrivals alone says so by an `over` that is not `buffer`."""

    kind: ClassVar[str]

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """The new model and buffers; never changes the old ones in place."""


@dataclass(frozen=True, kw_only=True)
class MaskAware:
    """MA over the buffered updates (the paper's BuffMaskFedAvg), or over the arrivals."""

    kind: ClassVar[str] = "mask_aware"
    over: _Over = field(default="buffer", metadata=_OVER)
    mix: bool = field(
        default=False,
        metadata={
            "help": (
                "W ← (1 - p)·W + p·mean, with p the weight of the merged updates over the sum of the weights that "
                "all clients had at their last arrival (1 before the first)"
            )
        },
    )

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """Mean over the clients that hold each coordinate."""
        taken = merge.taken(self.over)
        if not taken:
            return merge.model, merge.buffers
        model, buffers = mean_of(taken, merge.weights, merge.model), _mean_buffers(taken, merge)
        return self.mixed(merge.model, model, merge), self.mixed(merge.buffers, buffers, merge)

    def mixed(self, old: Tensor, mean: Tensor, merge: Merge) -> Tensor:
        """The mean, or with `mix` as much of it as the merged updates weigh; where both are equal they stay so."""
        if not self.mix:
            return mean
        weight = _weight_of(merge.taken(self.over), merge)
        return torch.lerp(old, mean, min(1.0, weight / merge.fleet_weight()))


@dataclass(frozen=True, kw_only=True)
class ZeroPadded:
    """FA over the buffered updates, or over the arrivals."""

    kind: ClassVar[str] = "zero_padded"
    over: _Over = field(default="buffer", metadata=_OVER)

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """Mean over all clients whose updates are merged."""
        taken = merge.taken(self.over)
        if not taken:
            return merge.model, merge.buffers
        total = total_of(taken, merge.weights, merge.model)
        weight = sum(merge.weights[c.client] for c in taken)
        return total.div_(weight), _mean_buffers(taken, merge)


@dataclass(frozen=True, kw_only=True)
class GradientAverage:
    """GA: each update's change, applied once on arrival (A15)."""

    kind: ClassVar[str] = "gradient_average"
    reference: Literal["start", "current"] = field(
        default="start",
        metadata={"help": "the change from the model that the client started from, or from the `current` one"},
    )
    over: Literal["fleet", "arrivals"] = field(
        default="fleet",
        metadata={
            "help": "divide the sum of weighted changes by the number of clients, or by the weight of the `arrivals`"
        },
    )

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """Model plus the mean change."""
        if not merge.fresh:
            return merge.model, merge.buffers
        model = merge.model.clone()
        count = merge.clients if self.over == "fleet" else _weight_of(merge.fresh, merge)
        for c in merge.fresh:
            start = merge.starts[c.client] if self.reference == "start" else merge.model
            delta = c.values - (start if c.levels is None else c.levels.pack(start, c.level))
            _add(model, delta.mul_(merge.weights[c.client] / count), c)
        return model, _mean_buffers(merge.fresh, merge)


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """FedAsync's server step: W ← (1 - a)·W + a·w with a = rate × weight, on the coordinates the client holds."""

    kind: ClassVar[str] = "mixing"
    over: ClassVar[str] = "arrivals"
    rate: float = field(default=0.6, metadata={"above": 0, "at_most": 1, "help": "a of a fresh update"})

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """Mix the arrivals in, one after the other."""
        model, buffers = merge.model, merge.buffers
        for c in merge.fresh:
            share = min(1.0, self.rate * merge.weights[c.client])
            if c.levels is None or c.levels.order is None:
                model = torch.lerp(model, c.values, share)
            else:
                change = c.values - c.levels.pack(model, c.level)
                model = _add(model.clone(), change.mul_(share), c)
            mixed = torch.lerp(buffers[: len(c.buffers)], c.buffers, share)
            buffers = torch.cat([mixed, buffers[len(c.buffers) :]])
        return model, buffers


def _add(flat: Tensor, values: Tensor, of: Contribution) -> Tensor:
    if of.levels is None or of.levels.order is None:
        return flat.add_(values)
    return flat.index_add_(0, of.levels.order[: len(values)], values)


def _weight_of(contributions: Sequence[Contribution], merge: Merge) -> float:
    return math.fsum(merge.weights[c.client] for c in contributions)


def _mean_buffers(contributions: Sequence[Contribution], merge: Merge) -> Tensor:
    """The weighted mean of the model buffers; a contribution may bring a prefix only (statistics of its widths)."""
    if not len(merge.buffers):
        return merge.buffers
    total, weight = torch.zeros_like(merge.buffers), torch.zeros_like(merge.buffers)
    for c in contributions:
        total[: len(c.buffers)].add_(c.buffers, alpha=merge.weights[c.client])
        weight[: len(c.buffers)] += merge.weights[c.client]
    return torch.where(weight > 0, total.div_(weight), merge.buffers)
