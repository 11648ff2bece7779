"""Rankings: which coordinates the small sub-models keep (paper, Extract; A7-A10).

A ranking makes a LevelMap from the server's state. Unstructured rankings score single coordinates: by Taylor importance
((W_k - W_{k-1})·W_k)², by magnitude, at random. Their scope is global with a floor: every prunable tensor keeps a share
at level 0, because a purely global ranking deletes whole layers. Before the first merge they rank within each tensor by
magnitude (A8). Read next: `threshold.py`, FIARSE's ranking; `widths.py`, the rankings by channel width; `selection.py`,
which counts the levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedgmr.seeding import generator
from fedgmr.submodels.blocks import positions
from fedgmr.submodels.layout import Layout, TensorPlace
from fedgmr.submodels.levels import Ladder, LevelMap, kept_counts
from fedgmr.submodels.selection import Selection
from fedgmr.submodels.sorting import Part

if TYPE_CHECKING:
    from fedgmr.submodels.channels.plan import ChannelPlan

_ROUNDING = 4 * torch.finfo(torch.float32).eps  # of a mean of a few dozen updates


@dataclass(frozen=True, kw_only=True)
class RankingInputs:
    """The part of the server's state that a ranking sees."""

    layout: Layout
    ladder: Ladder
    model: Tensor
    previous: Tensor | None = None  # the model one merge earlier; None before the first merge
    tick: int = 0
    seed: int = 0
    current: LevelMap | None = None
    held: frozenset[int] = frozenset()  # the levels that clients have now; grow-only keeps their sub-models as they are
    plan: "ChannelPlan | None" = None  # which channels belong together; for rankings by width


class Ranking(Protocol):
    """Decides the level of every coordinate."""

    kind: ClassVar[str]

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """The level map for these inputs."""

    def due(self, tick: int, interval: int) -> bool:
        """Whether the map is made again after merge number `tick`, given the restoration interval k_rest."""

    def ladder(self, ladder: Ladder) -> Ladder:
        """The ladder this ranking works with."""


@dataclass(frozen=True, kw_only=True)
class FullModel:
    """No sub-models: every client trains every coordinate."""

    kind: ClassVar[str] = "full"

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """One level for everything."""
        return LevelMap.full(inputs.layout.size, inputs.model.device)

    def due(self, tick: int, interval: int) -> bool:
        """Never."""
        return False

    def ladder(self, ladder: Ladder) -> Ladder:
        """Only density 1."""
        return (1.0,)


@dataclass(frozen=True, kw_only=True)
class _Unstructured:
    """Ranks single coordinates by `_scores`, in the whole model together but with a floor per tensor."""

    kind: ClassVar[str] = ""
    floor: float = field(
        default=0.02,
        metadata={
            "at_least": 0,
            "at_most": 1,
            "help": "share of every prunable tensor that level 0 keeps, whatever its scores are",
        },
    )
    refresh: Literal["rerank", "grow_only"] = field(
        default="rerank",
        metadata={
            "help": (
                "at a renewal rank all coordinates again, or `grow_only`: leave the sub-models that clients hold "
                "as they are"
            )
        },
    )

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """The level map for these inputs."""
        scores = self._scores(inputs)
        if self.refresh == "grow_only" and inputs.current is not None:
            # After a recovery to the first model there may be nothing to score by.
            return inputs.current if scores is None else self._grown(scores, inputs, inputs.current)
        if scores is None:
            return within_tensors(inputs, inputs.layout.prunable, self.floor)
        return across_tensors(scores, inputs, inputs.layout.prunable, self.floor)

    def due(self, tick: int, interval: int) -> bool:
        """Every `interval` ticks."""
        return tick % interval == 0

    def ladder(self, ladder: Ladder) -> Ladder:
        """The given one: any density can be met exactly."""
        return ladder

    def _scores(self, inputs: RankingInputs) -> Tensor | None:
        """Float [N], higher is more important; None where there is nothing to score by yet."""
        raise NotImplementedError

    def _grown(self, scores: Tensor, inputs: RankingInputs, current: LevelMap) -> LevelMap:
        """Re-rank only between the levels that clients have; their sub-models stay exactly as they are."""
        scores = _lifted(scores, inputs, inputs.layout.prunable, self.floor)
        ties = torch.where(inputs.layout.always.to(scores.device), torch.inf, inputs.model.abs())
        levels = current.levels.clone()
        below = -1
        for fence in sorted(inputs.held | {len(current.ladder)}):  # the last: in no sub-model
            if fence - below > 1:
                band = torch.nonzero((current.levels >= below + 1) & (current.levels <= fence)).view(-1)
                base = current.sizes[below] if below >= 0 else 0
                ends = [size - base for size in current.sizes[below + 1 : fence + 1]]
                levels[band] = Selection([scores[band], ties[band]]).cut(ends) + (below + 1)
            below = fence
        return replace(current, levels=levels)


@dataclass(frozen=True, kw_only=True)
class Taylor(_Unstructured):
    """Importance ((W_k - W_{k-1})·W_k)²: what moving the coordinate back to zero would cost, to first order."""

    kind: ClassVar[str] = "taylor"

    def _scores(self, inputs: RankingInputs) -> Tensor | None:
        if inputs.previous is None:
            return None
        change = inputs.model - inputs.previous
        # A mean over the same kept updates again differs by its rounding alone: such a coordinate did not move (A9).
        change.masked_fill_(change.abs() <= _ROUNDING * inputs.model.abs(), 0)
        return change.mul_(inputs.model).square_()


@dataclass(frozen=True, kw_only=True)
class Magnitude(_Unstructured):
    """Importance |W_k|, divided by a cost per tensor and by the tensor's own mean where these are asked for."""

    kind: ClassVar[str] = "magnitude"
    costs: tuple[float, ...] | None = field(
        default=None,
        metadata={
            "above": 0,
            "help": (
                "divides the magnitudes of every prunable tensor by its number, in the order of the model: a dear "
                "tensor keeps fewer"
            ),
        },
    )
    relative: bool = field(
        default=False,
        metadata={"help": "divides them also by the tensor's mean magnitude, without the largest that the floor keeps"},
    )

    def _scores(self, inputs: RankingInputs) -> Tensor | None:
        tensors = inputs.layout.prunable
        if self.costs is not None and len(self.costs) != len(tensors):
            raise ValueError(
                f"method.ranking.costs has {len(self.costs)} numbers and the model {len(tensors)} prunable tensors: "
                f"give one for each of {', '.join(tensor.name for tensor in tensors)}."
            )
        if inputs.previous is None:
            return None
        scores = inputs.model.abs()
        for tensor, cost in zip(tensors, self.costs or [1.0] * len(tensors), strict=True):
            own = scores[tensor.start : tensor.stop]
            if self.relative:
                first = tensor.floor_count(self.floor)
                others = own.sum(dtype=torch.float64) - own.topk(first).values.sum(dtype=torch.float64)
                mean = others / max(1, tensor.size - first)
                own /= mean.clamp(min=torch.finfo(own.dtype).tiny).to(own.dtype)
            if cost != 1:
                own /= cost
        return scores


@dataclass(frozen=True, kw_only=True)
class Random(_Unstructured):
    """A fresh random order at every refresh (a control)."""

    kind: ClassVar[str] = "random"

    def _scores(self, inputs: RankingInputs) -> Tensor | None:
        draw = generator(inputs.seed, "ranking", inputs.tick).random(len(inputs.model), dtype="float32")
        return torch.from_numpy(draw).to(inputs.model.device)


def within_tensors(inputs: RankingInputs, tensors: Sequence[TensorPlace], floor: float) -> LevelMap:
    """Rank by magnitude within each tensor at uniform density; the largest takes up the rounding: totals are exact."""
    ladder = inputs.ladder
    left = kept_counts(ladder, sum(tensor.size for tensor in tensors))
    ends: dict[int, list[int]] = {}
    by_size = sorted(tensors, key=lambda tensor: tensor.size)
    for tensor in by_size:
        least = tensor.floor_count(floor)
        wanted = left if tensor is by_size[-1] else kept_counts(ladder, tensor.size)
        ends[tensor.start] = [min(tensor.size, max(least, n)) for n in accumulate(wanted, max)]
        left = [total - n for total, n in zip(left, ends[tensor.start], strict=True)]
    parts = _parts(tensors)
    counts = [ends[tensor.start] for tensor in tensors]
    outside = inputs.layout.size - sum(tensor.size for tensor in tensors)
    levels = Selection([inputs.model.abs()]).cut_within(parts, counts)
    return LevelMap(levels, ladder, counted=tuple(outside + sum(kept) for kept in zip(*counts, strict=True)))


def across_tensors(scores: Tensor, inputs: RankingInputs, tensors: Sequence[TensorPlace], floor: float) -> LevelMap:
    """Keep the highest scores of these tensors together, but first of all the share `floor` of each; all others too."""
    ladder, ties = inputs.ladder, inputs.model.abs()
    ranked = sum(tensor.size for tensor in tensors)
    kept, outside = kept_counts(ladder, ranked), inputs.layout.size - ranked
    floors = [tensor.floor_count(floor) for tensor in tensors]
    parts = _parts(tensors)
    if sum(floors) > kept[0]:  # the floors compete with each other, by magnitude
        always = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
        for start, stop in parts:
            always[start:stop] = False
        return LevelMap.from_scores(_lifted(scores, inputs, tensors, floor), ladder, always, ties=ties)
    levels = Selection([scores, ties]).cut_across(parts, floors, kept)
    return LevelMap(levels, ladder, counted=tuple(outside + n for n in kept))


def _lifted(scores: Tensor, inputs: RankingInputs, tensors: Sequence[TensorPlace], floor: float) -> Tensor:
    """Scores in which the floor of each of these tensors, and everything else, outranks the rest of them."""
    floors = [[tensor.floor_count(floor)] for tensor in tensors]
    first = Selection([scores, inputs.model.abs()]).cut_within(_parts(tensors), floors)
    return scores.index_fill(0, positions(first, 0), torch.inf)


def _parts(tensors: Sequence[TensorPlace]) -> list[Part]:
    """Where the tensors lie; ValueError where there is none."""
    if not tensors:
        raise ValueError(
            "The model has no parameter that may be pruned, so it has no sub-models: name some in Task.prune, or "
            "choose a method that trains whole models (fedavg, fedasync)."
        )
    return [(tensor.start, tensor.stop) for tensor in tensors]
