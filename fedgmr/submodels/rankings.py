"""Rankings: which coordinates the small sub-models keep (paper, Extract; A7-A10).

A ranking turns what the server knows into a LevelMap. Unstructured rankings score single coordinates: Taylor
importance ((W_k - W_{k-1})·W_k)², magnitude, random. Their scope is global with a floor: every prunable tensor
keeps a share at level 0, because a purely global ranking deletes whole layers. Before the first update exists they
rank within each tensor by magnitude (A8).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedgmr.seeding import generator
from fedgmr.submodels.layout import Layout, TensorPlace
from fedgmr.submodels.levels import Ladder, LevelMap, check_scores, increments_of, kept_counts
from fedgmr.submodels.selection import place, place_across, place_within, positions

if TYPE_CHECKING:
    from fedgmr.submodels.channels.plan import ChannelPlan


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
        ...

    def due(self, tick: int, interval: int) -> bool:
        """Whether the map is made anew after merge number `tick`, given the restoration interval k_rest."""
        ...

    def ladder(self, ladder: Ladder) -> Ladder:
        """The ladder this ranking works with."""
        ...


@dataclass(frozen=True, kw_only=True)
class FullModel:
    """No sub-models: every client trains every coordinate."""

    kind: ClassVar[str] = "full"

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """One level for everything."""
        return LevelMap.full(inputs.layout.size, inputs.model.device)

    def due(self, tick: int, interval: int) -> bool:
        """Never again."""
        return False

    def ladder(self, ladder: Ladder) -> Ladder:
        """Only density 1."""
        return (1.0,)


@dataclass(frozen=True, kw_only=True)
class _Unstructured:
    """Single coordinates, scored by `_scores`; global scope with a floor per tensor."""

    kind: ClassVar[str] = ""
    floor: float = field(
        default=0.02,
        metadata={
            "at_least": 0,
            "at_most": 1,
            "help": "share of every prunable tensor that level 0 always keeps",
        },
    )
    refresh: Literal["rerank", "grow_only"] = field(
        default="rerank",
        metadata={"help": "rerank all coordinates at every refresh, or keep those that clients hold (A7)"},
    )

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """The level map for these inputs."""
        scores = self._scores(inputs)
        if scores is None:
            return _within_tensors(inputs, inputs.layout.prunable, self.floor)
        if self.refresh == "grow_only" and inputs.current is not None:
            ties = torch.where(inputs.layout.always.to(scores.device), torch.inf, inputs.model.abs())
            return _grow(inputs.current, inputs.held, _lift(scores, inputs, self.floor), ties)
        return _across_tensors(scores, inputs, self.floor)

    def due(self, tick: int, interval: int) -> bool:
        """Every `interval` ticks."""
        return tick % interval == 0

    def ladder(self, ladder: Ladder) -> Ladder:
        """Any ladder can be counted out exactly."""
        return ladder

    def _scores(self, inputs: RankingInputs) -> Tensor | None:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Taylor(_Unstructured):
    """Importance ((W_k - W_{k-1})·W_k)²: what moving the coordinate back to zero would cost, to first order."""

    kind: ClassVar[str] = "taylor"

    def _scores(self, inputs: RankingInputs) -> Tensor | None:
        if inputs.previous is None:
            return None
        return (inputs.model - inputs.previous).mul_(inputs.model).square_()


@dataclass(frozen=True, kw_only=True)
class Magnitude(_Unstructured):
    """Importance |W_k|."""

    kind: ClassVar[str] = "magnitude"

    def _scores(self, inputs: RankingInputs) -> Tensor | None:
        return None if inputs.previous is None else inputs.model.abs()


@dataclass(frozen=True, kw_only=True)
class Random(_Unstructured):
    """A fresh random order at every refresh (a control)."""

    kind: ClassVar[str] = "random"

    def _scores(self, inputs: RankingInputs) -> Tensor | None:
        draw = generator(inputs.seed, "ranking", inputs.tick).random(len(inputs.model), dtype="float32")
        return torch.from_numpy(draw).to(inputs.model.device)


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """FIARSE: magnitude of the current model, biases ranked with the weights, normalisation parameters always kept.

    The literal global threshold deletes whole layers at initialisation (section 2.6); `layerwise` ranks within each
    tensor.
    """

    kind: ClassVar[str] = "threshold"
    scope: Literal["global", "layerwise"] = field(
        default="global", metadata={"help": "one threshold for the model, or one per tensor"}
    )

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """The level map of the current magnitudes."""
        ranked = [tensor for tensor in inputs.layout.parameters if not tensor.norm]
        if self.scope == "layerwise":
            return _within_tensors(inputs, ranked, floor=0.0)
        always = torch.ones(inputs.layout.size, dtype=torch.bool, device=inputs.model.device)
        for tensor in ranked:
            always[tensor.start : tensor.stop] = False
        return LevelMap.from_scores(inputs.model.abs(), inputs.ladder, always)

    def due(self, tick: int, interval: int) -> bool:
        """Every tick: a client's threshold comes from the model it is sent."""
        return True

    def ladder(self, ladder: Ladder) -> Ladder:
        """Any ladder can be counted out."""
        return ladder


def floor_count(size: int, floor: float) -> int:
    """How many coordinates of a prunable tensor of `size` level 0 keeps at least."""
    return max(1, int(floor * size)) if floor > 0 else 0


def _across_tensors(scores: Tensor, inputs: RankingInputs, floor: float) -> LevelMap:
    """The highest scores of the whole model; first of all, though, the highest of each prunable tensor: its floor."""
    layout, ladder, ties = inputs.layout, inputs.ladder, inputs.model.abs()
    kept = kept_counts(ladder, layout.prunable_size)
    floors = [floor_count(tensor.size, floor) for tensor in layout.prunable]
    if sum(floors) > kept[0]:  # the floors compete with each other, by magnitude
        always = layout.always.to(scores.device)
        return LevelMap.from_scores(_lift(scores, inputs, floor), ladder, always, ties=ties)
    parts = [(tensor.start, tensor.stop) for tensor in layout.prunable]
    levels = place_across([check_scores(scores), ties], parts, floors, kept)
    return LevelMap(levels, ladder, counted=_increments(layout.size - layout.prunable_size, [kept]))


def _lift(scores: Tensor, inputs: RankingInputs, floor: float) -> Tensor:
    """Scores in which every prunable tensor's floor, and what is always kept, outranks everything else."""
    parts = [(tensor.start, tensor.stop) for tensor in inputs.layout.prunable]
    floors = [[floor_count(tensor.size, floor)] for tensor in inputs.layout.prunable]
    first = place_within([scores, inputs.model.abs()], parts, floors)
    return scores.index_fill(0, positions(first, 0), torch.inf)


def _within_tensors(inputs: RankingInputs, tensors: Sequence[TensorPlace], floor: float) -> LevelMap:
    """Magnitude within each tensor at uniform density; the largest takes up the rounding, so totals are exact."""
    ladder = inputs.ladder
    left = kept_counts(ladder, sum(tensor.size for tensor in tensors))
    ends: dict[int, list[int]] = {}
    by_size = sorted(tensors, key=lambda tensor: tensor.size)
    for tensor in by_size:
        least = floor_count(tensor.size, floor)
        wanted = left if tensor is by_size[-1] else kept_counts(ladder, tensor.size)
        ends[tensor.start] = [min(tensor.size, max(least, n)) for n in accumulate(wanted, max)]
        left = [total - n for total, n in zip(left, ends[tensor.start], strict=True)]
    parts = [(tensor.start, tensor.stop) for tensor in tensors]
    counts = [ends[tensor.start] for tensor in tensors]
    outside = inputs.layout.size - sum(tensor.size for tensor in tensors)
    return LevelMap(place_within([inputs.model.abs()], parts, counts), ladder, counted=_increments(outside, counts))


def _increments(outside: int, kept: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """What each level adds where `outside` coordinates are always in and `kept` are the counts of the parts."""
    return increments_of([outside + sum(counts) for counts in zip(*kept, strict=True)])


def _grow(current: LevelMap, held: frozenset[int], scores: Tensor, ties: Tensor) -> LevelMap:
    """Re-rank only between the levels that clients hold; their sub-models stay exactly as they are."""
    levels = current.levels.clone()
    fences = sorted(held | {len(current.ladder)})  # the last: in no sub-model
    below = -1
    for fence in fences:
        if fence - below > 1:
            band = torch.nonzero((current.levels >= below + 1) & (current.levels <= fence)).view(-1)
            base = current.sizes[below] if below >= 0 else 0
            ends = [size - base for size in current.sizes[below + 1 : fence + 1]]
            levels[band] = place([scores[band], ties[band]], ends) + (below + 1)
        below = fence
    return replace(current, levels=levels)
