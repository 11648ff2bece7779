"""LevelMap: a nested family of sub-models as one byte per coordinate.

The sub-model at level l is `levels <= l`, the increment j is `levels == j`, nesting holds by construction. Values
travel and are stored in *level order* (increment 0 ascending, then increment 1, ...), so a sub-model is a prefix
and an increment is a slice. Read next: `rankings.py`, which decides the levels; `selection.py`, which counts them.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedgmr.submodels.blocks import gather, positions
from fedgmr.submodels.selection import Selection

Ladder = tuple[float, ...]


def check_ladder(ladder: Sequence[float]) -> Ladder:
    """Return `ladder` as a tuple, or raise a ValueError that says what is wrong with it."""
    steps = tuple(float(density) for density in ladder)
    if not steps or not all(0 < density <= 1 for density in steps):
        raise ValueError(f"The ladder {list(ladder)} has a density outside (0, 1]: give densities above 0, at most 1.")
    if any(b <= a for a, b in itertools.pairwise(steps)):
        raise ValueError(f"The ladder {list(ladder)} is not increasing: list each density once, smallest first.")
    if len(steps) > 254:
        raise ValueError(f"The ladder has {len(steps)} densities: give at most 254, a level is one byte.")
    return steps


def kept_counts(ladder: Sequence[float], prunable: int) -> list[int]:
    """The number of `prunable` coordinates that each level keeps, rounded to nearest, halves up."""
    return [math.floor(density * prunable + 0.5) for density in ladder]


@dataclass(frozen=True, eq=False)
class LevelMap:
    """One level per coordinate; a coordinate with level len(ladder) is in no sub-model."""

    levels: Tensor
    ladder: Ladder
    implied: bool = False  # a client can compute the map itself, so it never travels
    counted: tuple[int, ...] | None = None  # the size of each sub-model, where the maker of the map knows it

    @classmethod
    def from_scores(
        cls, scores: Tensor, ladder: Sequence[float], always: Tensor | None = None, *, ties: Tensor | None = None
    ) -> "LevelMap":
        """Level l keeps all `always` coordinates and the ⌊ladder[l]·P + 0.5⌋ highest-scored of the P others.

        `scores` and `ties` are float [N], `always` is bool [N]. Between equal scores the higher of `ties` comes first,
        then the lower index.
        """
        steps = check_ladder(ladder)
        scores = torch.as_tensor(scores)
        if scores.dim() != 1:
            raise ValueError(f"scores has shape {tuple(scores.shape)}: give one score per coordinate.")
        keys = [scores] if ties is None else [scores, torch.as_tensor(ties)]
        exempt = None if always is None else torch.as_tensor(always, device=scores.device)
        exempted = 0 if exempt is None else int(torch.count_nonzero(exempt))
        kept = kept_counts(steps, len(scores) - exempted)
        levels = Selection(keys).cut(kept, exempt=exempt)
        return cls(levels, steps, counted=tuple(exempted + n for n in kept))

    @classmethod
    def full(cls, size: int, device: torch.device | str = "cpu") -> "LevelMap":
        """The family of one: every coordinate in the only sub-model."""
        return cls(torch.zeros(size, dtype=torch.uint8, device=device), (1.0,), implied=True)

    def __len__(self) -> int:
        return len(self.levels)

    @property
    def top(self) -> int:
        """The highest level."""
        return len(self.ladder) - 1

    def mask(self, level: int) -> Tensor:
        """Bool [N]: the coordinates of the sub-model at `level`."""
        return self.levels <= self._checked(level)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of coordinates in each level's sub-model."""
        if self.counted is not None:
            return self.counted
        levels = range(len(self.ladder))
        if self.levels.device.type == "cpu":
            counts = torch.bincount(self.levels, minlength=len(levels))[: len(levels)]
        else:  # in a GPU's histogram of few different numbers additions collide
            counts = torch.stack([torch.count_nonzero(self.levels == level) for level in levels])
        return tuple(itertools.accumulate(counts.tolist()))

    @cached_property
    def increments(self) -> tuple[int, ...]:
        """The number of coordinates that each level adds."""
        return tuple(size - below for below, size in itertools.pairwise([0, *self.sizes]))

    @cached_property
    def order(self) -> Tensor | None:
        """Int64 [N]: coordinate indices in level order; None where level order is the natural order."""
        if self.sizes[0] == len(self):
            return None
        if self.levels.device.type != "cpu":
            return torch.sort(self.levels, stable=True).indices
        order = torch.empty(len(self), dtype=torch.int64, device=self.levels.device)
        for level, (start, stop) in enumerate(itertools.pairwise([0, *self.sizes, len(self)])):
            if stop > start:
                order[start:stop] = positions(self.levels, level)
        return order

    @cached_property
    def position(self) -> Tensor:
        """Int32 [N]: where each coordinate stands in level order."""
        places = torch.arange(len(self), dtype=torch.int32, device=self.levels.device)
        return places if self.order is None else torch.empty_like(places).scatter_(0, self.order, places)

    def whole(self, level: int) -> bool:
        """Whether the sub-model at `level` is the whole model."""
        return self.sizes[self._checked(level)] == len(self)

    def order_of(self, size: int) -> Tensor:
        """Int64 [size]: the first coordinates of the level order."""
        return torch.arange(size, device=self.levels.device) if self.order is None else self.order[:size]

    def pack(self, flat: Tensor, level: int) -> Tensor:
        """A new vector: the sub-model's values in level order."""
        if self.order is None:
            return flat.clone()
        return gather(flat, self.order[: self.sizes[self._checked(level)]])

    def spread(self, values: Tensor, rest: Tensor) -> Tensor:
        """A new flat vector: the values, given in level order, in their places, and `rest` where they do not reach."""
        if len(values) == len(self):
            # Reading in several rising streams and writing in one is twice as fast as the reverse.
            return values.clone() if self.order is None else gather(values, self.position)
        return rest.scatter(0, self.order_of(len(values)), values)

    def _checked(self, level: int) -> int:
        if not 0 <= level < len(self.ladder):
            raise ValueError(f"level is {level}: give a level from 0 to {self.top}.")
        return level
