"""Sub-models by channel width (sections 2.0, 2.3-2.5): prefixes (HeteroFL, FjORD) and the rolling window (FedRolex).

A width keeps the same share of the channels of every group. Clients have densities, which are shares of all
coordinates, so `solve_widths` finds the width that comes nearest to each; or the width is the density's square root.
Prefixes of one rolled order are nested, so they form a level map like any other: a coordinate's level is the highest of
its channels' levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedgmr.submodels.channels.plan import ChannelPlan, Group, shares_along
from fedgmr.submodels.layout import Layout, TensorPlace
from fedgmr.submodels.levels import Ladder, LevelMap, check_ladder
from fedgmr.submodels.rankings import RankingInputs

WidthRule = Literal["solved", "sqrt"]
_NOISE = 1e-9  # a product such as 0.07 · 100 = 7.000000000000001 still means 7 channels


def kept_channels(group: Group, width: float, shift: int) -> Tensor:
    """Int64, ascending: the channels that a width, in (0, 1], keeps of a group.

    They are {(j - shift) mod C : j < n} of C channels (FedRolex); a shift of 0 gives the prefix (HeteroFL). The number
    n is ⌈width·C⌉, so at least one stays. Where a group norm divides the channels, n is rounded down to a whole
    multiple of its groups, at least one channel of each.
    """
    if not 0 < width <= 1:
        raise ValueError(f"width is {width}: give a share of the channels above 0, at most 1.")
    count = int(_kept_counts(group, np.array([width]))[0])
    return ((torch.arange(count) - shift) % group.size).sort().values


def kept_mask(plan: ChannelPlan, width: float, shift: int = 0) -> Tensor:
    """Bool, one entry per channel: what a width keeps; a last entry, True, stands for all that is no channel."""
    masks = [torch.zeros(group.size, dtype=torch.bool) for group in plan.groups]
    for mask, group in zip(masks, plan.groups, strict=True):
        mask[kept_channels(group, width, shift)] = True
    return torch.cat([*masks, torch.ones(1, dtype=torch.bool)])


def widths_for(plan: ChannelPlan, layout: Layout, ladder: Sequence[float], rule: WidthRule) -> tuple[float, ...]:
    """For each density its width: solved for, or its square root.

    Raises:
        ValueError: two densities of the ladder come to the same sub-model.
    """
    if rule == "solved":
        return solve_widths(plan, layout, ladder)
    widths = np.sqrt(check_ladder(ladder))
    _check_growing(ladder, _kept_coordinates(plan, layout, widths), layout, plan)
    return tuple(float(width) for width in widths)


def solve_widths(plan: ChannelPlan, layout: Layout, ladder: Sequence[float]) -> tuple[float, ...]:
    """For each density the width whose kept fraction of all coordinates is nearest (the smaller of two equally near).

    The fraction is a step function of the width; returned is the largest width of the nearest step.

    Raises:
        ValueError: two densities of the ladder come to the same sub-model.
    """
    steps = check_ladder(ladder)
    # The fraction changes only where some group gains a channel: these widths are all there is to choose from.
    widths = np.unique(np.concatenate([[1.0], *(np.arange(1, group.size + 1) / group.size for group in plan.groups)]))
    counts = _kept_coordinates(plan, layout, widths)
    targets = np.array(steps) * layout.size
    above = np.searchsorted(counts, targets).clip(max=len(counts) - 1)
    below = (above - 1).clip(min=0)
    nearest = counts[np.where(targets - counts[below] <= counts[above] - targets, below, above)]
    _check_growing(steps, nearest, layout, plan)
    return tuple(float(width) for width in widths[np.searchsorted(counts, nearest, side="right") - 1])


def width_levels(
    plan: ChannelPlan, layout: Layout, widths: Sequence[float], shift: int = 0, *, ladder: Sequence[float] | None = None
) -> LevelMap:
    """The level map of nested, increasing widths, one per level; tensors that meet no sliced channel are level 0.

    `shift` is how far the kept channels are rolled, see `kept_channels`. `ladder` are the nominal densities of the
    levels; the fractions that the widths really keep where it is left out.
    """
    if ladder is None:
        ladder = (_kept_coordinates(plan, layout, np.array(widths)) / layout.size).tolist()
    steps = check_ladder(ladder)
    if len(widths) != len(steps):
        raise ValueError(f"There are {len(widths)} widths for {len(steps)} densities: give one width per density.")
    return LevelMap(levels_at(plan, layout.parameters, widths, shift), steps, implied=True)


def levels_at(plan: ChannelPlan, places: Sequence[TensorPlace], widths: Sequence[float], shift: int = 0) -> Tensor:
    """The level of each number of tensors that follow each other: the first of the nested widths that keeps it.

    What no width keeps has the number of the widths.
    """
    channels = torch.full((len(kept_mask(plan, 1.0)),), len(widths), dtype=torch.uint8)
    for level in reversed(range(len(widths))):
        channels[kept_mask(plan, widths[level], shift)] = level
    channels[-1] = 0
    levels = torch.empty(places[-1].stop if places else 0, dtype=torch.uint8)
    for place in places:
        # From the last dimension to the first, so that the one large outer maximum runs along long rows.
        inner = torch.zeros(1, dtype=torch.uint8)
        for length, axis in zip(place.shape[:0:-1], plan.axes[place.name][:0:-1], strict=True):
            inner = torch.maximum(_levels_along(length, axis, channels).view(-1, 1), inner).view(-1)
        outer = _levels_along(place.shape[0], plan.axes[place.name][0], channels) if place.shape else inner
        torch.maximum(outer.view(-1, 1), inner, out=levels[place.start : place.stop].view(-1, len(inner)))
    return levels


@dataclass(frozen=True, kw_only=True)
class _ByWidth:
    """Ranks by a width for every density of the ladder."""

    kind: ClassVar[str] = ""
    widths: WidthRule = field(
        default="solved",
        metadata={
            "help": (
                "the width whose share of all coordinates is nearest to the density, or `sqrt`: the square root "
                "of the density, whatever share that keeps"
            )
        },
    )

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """The level map of the widths."""
        plan, layout, ladder = inputs.plan, inputs.layout, inputs.ladder
        if plan is None:
            raise ValueError(
                f"The ranking {self.kind} needs the model's channels: give the inputs a plan (follow_channels)."
            )
        widths = widths_for(plan, layout, ladder, self.widths)
        ranked = width_levels(plan, layout, widths, self._shift(inputs.tick), ladder=ladder)
        return replace(ranked, levels=ranked.levels.to(inputs.model.device))

    def due(self, tick: int, interval: int) -> bool:
        """Never: the kept channels stay."""
        return False

    def ladder(self, ladder: Ladder) -> Ladder:
        """The densities stay nominal; the sizes of the map say what is really kept."""
        return ladder

    def _shift(self, tick: int) -> int:
        """How far the kept channels are rolled."""
        return 0


@dataclass(frozen=True, kw_only=True)
class WidthPrefix(_ByWidth):
    """Keeps the first channels of every group (HeteroFL, FjORD)."""

    kind: ClassVar[str] = "width_prefix"


@dataclass(frozen=True, kw_only=True)
class RollingWindow(_ByWidth):
    """Keeps a window that moves on through the channels of every group, by one at each tick (FedRolex)."""

    kind: ClassVar[str] = "rolling_window"
    every: int = field(
        default=1, metadata={"at_least": 1, "help": "of `rolling_window`: ticks between two moves of the window"}
    )
    step: int = field(default=1, metadata={"at_least": 1, "help": "of `rolling_window`: channels by which it moves"})

    def due(self, tick: int, interval: int) -> bool:
        """When the window moves."""
        return tick % self.every == 0

    def _shift(self, tick: int) -> int:
        return tick // self.every * self.step


def _check_growing(steps: Sequence[float], counts: npt.NDArray[np.int64], layout: Layout, plan: ChannelPlan) -> None:
    whole = f" (Full width: {'; '.join(plan.whole)}.)" if plan.whole else ""
    for level in range(1, len(steps)):
        if counts[level] <= counts[level - 1]:
            raise ValueError(
                f"The densities {steps[level - 1]} and {steps[level]} come to the same width, which keeps "
                f"{counts[level]} of {layout.size} coordinates: leave one out of the ladder, or widen the model.{whole}"
            )


def _kept_coordinates(plan: ChannelPlan, layout: Layout, widths: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The number of coordinates that each width keeps."""
    kept = [_kept_counts(group, widths) for group in plan.groups]
    total = np.zeros(len(widths), dtype=np.int64)
    for place in layout.parameters:
        count = np.ones(len(widths), dtype=np.int64)
        for length, axis in zip(place.shape, plan.axes[place.name], strict=True):
            if axis is None:
                count *= length
                continue
            along = np.full(len(widths), int((axis < 0).sum()))
            for group, each in shares_along(plan.groups, axis.numpy()).items():
                along += each * kept[group]
            count *= along
        total += count
    return total


def _kept_counts(group: Group, widths: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The number of channels that each width keeps."""
    if group.multiple == 1:
        return np.ceil(widths * group.size - _NOISE).clip(min=1).astype(np.int64)
    return np.floor(widths * group.size / group.multiple + _NOISE).clip(min=1).astype(np.int64) * group.multiple


def _levels_along(length: int, axis: Tensor | None, channels: Tensor) -> Tensor:
    return torch.zeros(length, dtype=torch.uint8) if axis is None else channels[axis]
