"""Bytes of the objects that cross the network: the exact ones of the wire format, two kinds that the paper has, linear.

Read next: `network.py`, which turns bytes into seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedgmr.submodels.levels import LevelMap
from fedgmr.wire import ValueType, map_bytes, update_bytes, values_bytes


class Sizes(Protocol):
    """Bytes of the objects that cross the network."""

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        """The object with the values of levels first..last, as the server sends it."""

    def level_map(self, levels: LevelMap, first: int, last: int) -> int:
        """The level map's part for levels first..last; 0 where every object carries its own."""
        return 0

    def download(self, levels: LevelMap, cuts: Sequence[int]) -> int:
        """Values on a client's downlink when they come as one object per entry of `cuts`, the objects' last levels.

        As many as in the update, however many objects, unless said otherwise.
        """
        return self.update(levels, cuts[-1])

    def update(self, levels: LevelMap, level: int) -> int:
        """The update of a client at `level`."""


@dataclass(frozen=True, kw_only=True)
class WireSizes(Sizes):
    """The exact encoded length of `fedgmr.wire`."""

    buffers: int
    per_width: bool = False  # the model's buffers travel once per level
    value_type: ValueType = ValueType.FP32

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        """Values of the increments; model buffers travel with level 0."""
        count = sum(levels.increments[first : last + 1])
        blocks = len(levels.ladder) if self.per_width else 1
        return values_bytes(count, blocks * self.buffers if first == 0 else 0, self.value_type)

    def level_map(self, levels: LevelMap, first: int, last: int) -> int:
        """Entropy-coded membership."""
        return map_bytes(levels.increments, total=len(levels), first=first, last=last)

    def download(self, levels: LevelMap, cuts: Sequence[int]) -> int:
        """The sum of all objects."""
        firsts = [0, *(cut + 1 for cut in cuts[:-1])]
        return sum(self.values(levels, first, last) for first, last in zip(firsts, cuts, strict=True))

    def update(self, levels: LevelMap, level: int) -> int:
        """The values only."""
        blocks = level + 1 if self.per_width else 1
        return update_bytes(levels.sizes[level], blocks * self.buffers, self.value_type)


@dataclass(frozen=True, kw_only=True)
class PaperSizes(Sizes):
    """Section 5.2: values + one bit per weight + dense parameters on the server's link, density × full on others."""

    weights: int  # prunable coordinates
    dense: int  # always-kept coordinates

    @property
    def full(self) -> float:
        """Bytes of the full model in the paper's sparse format."""
        return 4 * self.weights + self.weights / 8 + 4 * self.dense

    def _density(self, levels: LevelMap, first: int, last: int) -> float:
        kept = levels.sizes[last] - (levels.sizes[first - 1] if first else 0)
        # Rankings without always-kept coordinates count densities on everything.
        return min(1.0, (kept - (self.dense if first == 0 else 0)) / self.weights)

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        """Every object carries its own bitmap and the dense parameters."""
        return round(4 * self._density(levels, first, last) * self.weights + self.weights / 8 + 4 * self.dense)

    def update(self, levels: LevelMap, level: int) -> int:
        """Density × full size."""
        return round(self._density(levels, 0, level) * self.full)


@dataclass(frozen=True, kw_only=True)
class IndexedSizes(Sizes):
    """A41: a 4-byte value and a 4-byte index per coordinate, on every link."""

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        """The coordinates of the increments."""
        return 8 * sum(levels.increments[first : last + 1])

    def update(self, levels: LevelMap, level: int) -> int:
        """The sub-model."""
        return 8 * levels.sizes[level]


@dataclass(frozen=True, kw_only=True)
class LinearSizes(Sizes):
    """Nominal density × full size on every link, an increment the difference of densities; no map, nothing dense."""

    full: float  # bytes of the whole model

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        """The share of the full size between two densities of the ladder."""
        return round(self.full * (levels.ladder[last] - (levels.ladder[first - 1] if first else 0.0)))

    def update(self, levels: LevelMap, level: int) -> int:
        """Density × full size."""
        return round(self.full * levels.ladder[level])
