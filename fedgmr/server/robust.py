"""Robust merges: per coordinate over the clients that hold it, so that a few of them cannot drag it away.

Trimmed mean and coordinate median: Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018.
Clipping about the current model: Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML
2021. Both assume that everybody holds everything. Here a coordinate with one holder takes its value, and of two nobody
can tell who is right: trimmed mean and equal weights give the mean, the median otherwise the heavier one's value. So
where few hold a coordinate no rule helps (docs/security.md). Read next: `aggregation.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedgmr.server.aggregation import MaskAware, Merge
from fedgmr.server.buffer import Contribution
from fedgmr.transfer import sent

_STEP = 2**17  # coordinates at a time: the values of all clients lie side by side
_CLOSE = 1e-6  # of the whole weight: sums of weights that differ by less are equal

# (values [B, C] ascending, weights [B, C] in the same order and zero where a client holds nothing, holders [B]) -> [B]
_Rule = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(MaskAware):
    """The weighted mean without the smallest and the largest values (Yin et al. 2018)."""

    kind: ClassVar[str] = "trimmed_mean"
    trim: float = field(
        default=0.2,
        metadata={
            "at_least": 0,
            "below": 0.5,
            "help": (
                "of `trimmed_mean`: share of the holders that is left out at either end; of three or more at least one"
            ),
        },
    )

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """Mean over the inner holders of each coordinate."""
        return _merged(self, merge, self._mean)

    def _mean(self, values: Tensor, weights: Tensor, holders: Tensor) -> Tensor:
        left_out = torch.maximum((holders * self.trim + _CLOSE).floor(), (holders >= 3).to(values.dtype))
        left_out = torch.minimum(left_out, (holders - 1) // 2)  # somebody stays
        rank = torch.arange(values.shape[1], device=values.device)
        inner = (rank >= left_out[:, None]) & (rank < (holders - left_out)[:, None])
        kept = weights * inner
        return (kept * values.masked_fill(~inner, 0.0)).sum(1) / kept.sum(1)


@dataclass(frozen=True, kw_only=True)
class CoordinateMedian(MaskAware):
    """The weighted median: half of the weight is on either side (Yin et al. 2018)."""

    kind: ClassVar[str] = "coordinate_median"

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """Median over the holders of each coordinate."""
        return _merged(self, merge, _median)


@dataclass(frozen=True, kw_only=True)
class ClippedMean(MaskAware):
    """The mask-aware mean of updates that are drawn towards the current model (Karimireddy et al. 2021)."""

    kind: ClassVar[str] = "clipped_mean"
    radius: float = field(
        default=1.0,
        metadata={
            "above": 0,
            "help": (
                "of `clipped_mean`: an update may be so many times as far away as the median, each by the length "
                "of its sub-model"
            ),
        },
    )

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """Shorten what is far away, then take the mean; a distance counts by the norm of the sub-model."""
        taken = [c for c in merge.taken(self.over) if merge.weights[c.client] > 0]
        if not taken:
            return merge.model, merge.buffers
        starts = [merge.model if c.levels is None else c.levels.pack(merge.model, c.level) for c in taken]
        changes = [c.values.to(start.dtype) - start for c, start in zip(taken, starts, strict=True)]
        norm = torch.linalg.vector_norm
        sizes = [norm(d) / norm(start).clamp(min=1.0) for d, start in zip(changes, starts, strict=True)]
        limit = self.radius * torch.stack(sizes).median()
        clipped = [
            replace(c, values=start + d * (limit / size.clamp(min=torch.finfo(d.dtype).tiny)).clamp(max=1.0))
            for c, start, d, size in zip(taken, starts, changes, sizes, strict=True)
        ]
        return super().merge(replace(merge, held=clipped, fresh=clipped))


def _merged(rule: MaskAware, merge: Merge, combine: _Rule) -> tuple[Tensor, Tensor]:
    """Model and buffers, each coordinate combined from its holders; one without holders stays."""
    taken = [c for c in merge.taken(rule.over) if merge.weights[c.client] > 0]
    if not taken:
        return merge.model, merge.buffers
    weights = sent(torch.tensor([merge.weights[c.client] for c in taken], dtype=merge.model.dtype), merge.model.device)
    model, buffers = torch.empty_like(merge.model), torch.empty_like(merge.buffers)
    for begin in range(0, len(model), _STEP):
        piece = slice(begin, min(begin + _STEP, len(model)))
        columns = [_of_contribution(c, piece, merge.model) for c in taken]
        model[piece] = _combined(columns, weights, merge.model[piece], combine)
    if len(buffers):
        columns = [_reaching(c.buffers, len(buffers)) for c in taken]
        buffers = _combined(columns, weights, merge.buffers, combine)
    return rule.mixed(merge.model, model, merge), rule.mixed(merge.buffers, buffers, merge)


def _of_contribution(c: Contribution, piece: slice, model: Tensor) -> tuple[Tensor, Tensor]:
    """(values, whether they are held) of a piece of the model in natural order."""
    if c.levels is None or c.levels.order is None:
        values = c.values[piece].to(model.dtype)
        return values, torch.ones_like(values, dtype=torch.bool)
    position = c.levels.position[piece]
    held = position < len(c.values)
    return c.values.index_select(0, position.clamp(max=len(c.values) - 1)).to(model.dtype), held


def _reaching(buffers: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(values, whether they are held) of buffers of which a client may have sent a prefix."""
    held = torch.arange(size, device=buffers.device) < len(buffers)
    return torch.cat([buffers, buffers.new_zeros(size - len(buffers))]), held


def _combined(columns: Sequence[tuple[Tensor, Tensor]], weights: Tensor, rest: Tensor, combine: _Rule) -> Tensor:
    """[B]: combined values where anybody holds the coordinate, `rest` elsewhere."""
    values = torch.stack([column for column, _ in columns], 1)
    held = torch.stack([held for _, held in columns], 1)
    ordered, order = values.masked_fill(~held, torch.inf).sort(1)
    holders = held.sum(1)
    found = combine(ordered, (weights * held).gather(1, order), holders)
    return torch.where(holders > 0, found, rest)


def _median(values: Tensor, weights: Tensor, holders: Tensor) -> Tensor:
    below = weights.cumsum(1)
    whole = below[:, -1:]
    # Where exactly half of the weight is below, the middle between two values.
    lower = (below >= (0.5 - _CLOSE) * whole).to(torch.uint8).argmax(1, keepdim=True)
    upper = (below > (0.5 + _CLOSE) * whole).to(torch.uint8).argmax(1, keepdim=True)
    return (values.gather(1, lower) / 2 + values.gather(1, upper) / 2).squeeze(1)
