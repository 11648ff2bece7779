"""Coverage: how many clients train each coordinate, and the factors of the convergence bound that follow from it.

The paper's Theorems 5.5 and 5.6 sum over groups of clients with the same sub-model. With nested levels a group is a
level, and the coordinates that the fewest clients of a group's sub-model share are those of its own increment. So
everything follows from the number of clients at each level. Read next: `theory.py`; docs/theory.md.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

Energy = Sequence[float]  # f² by level: the share of a gradient's squared norm inside the sub-model, 1 for the whole


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The number of clients at each level."""

    groups: tuple[int, ...]  # |C_g|

    @classmethod
    def of(cls, levels: Iterable[int], count: int) -> "Coverage":
        """Count clients by their levels, of which there are `count`."""
        groups = [0] * count
        for level in levels:
            groups[level] += 1
        return cls(groups=tuple(groups))

    @cached_property
    def covered(self) -> tuple[int, ...]:
        """By level, the clients that train its increment: those at it or above; c*_g for the group at this level."""
        return tuple(itertools.accumulate(reversed(self.groups)))[::-1]

    @property
    def least(self) -> int:
        """The least coverage of any coordinate: the number of clients with the whole model."""
        return self.covered[-1]

    @property
    def whole(self) -> "Coverage":
        """The same clients, all with the whole model."""
        return Coverage(groups=(*(0 for _ in self.groups[1:]), sum(self.groups)))

    def raised(self, level: int) -> "Coverage":
        """One client of a level moved up by one."""
        groups = list(self.groups)
        groups[level] -= 1
        groups[level + 1] += 1
        return Coverage(groups=tuple(groups))

    def factors(self, energy: Energy) -> dict[str, float]:
        """All three factors by name."""
        return {"drift": self.drift(energy), "variance": self.variance(energy), "noise": self.noise(energy)}

    def drift(self, energy: Energy) -> float:
        """Σ |C_g| / c*_g · f²(g): the drift of local training; with another f² the bias of unlike data."""
        return math.fsum(self.parts(energy, power=1))

    def variance(self, energy: Energy) -> float:
        """Σ |C_g| / (c*_g)² · f²(g): the noise of mini-batches."""
        return math.fsum(self.parts(energy, power=2))

    def noise(self, energy: Energy) -> float:
        """Σ over increments of their f² / coverage: the variance before its bound puts c*_g for every coverage.

        The noise of one client that is left after the mean over all who train a coordinate.
        """
        return math.fsum(part / held for part, held in zip(increments(energy), self.covered, strict=True) if held)

    def padded_noise(self, energy: Energy) -> float:
        """Σ over increments of f² · coverage / clients²: the same for the padded view, which shrinks what few train."""
        parts = zip(increments(energy), self.covered, strict=True)
        return math.fsum(part * held for part, held in parts) / sum(self.groups) ** 2

    def untrained(self, energy: Energy) -> float:
        """The share of a gradient in coordinates that nobody trains; above 0 the theorems say nothing."""
        return 1.0 - max(share for share, held in zip(energy, self.covered, strict=True) if held)

    def parts(self, energy: Energy, *, power: int) -> list[float]:
        """By level, the summands of a factor: of drift with power 1, of variance with power 2."""
        groups = zip(self.groups, self.covered, energy, strict=True)
        return [count / held**power * share if count else 0.0 for count, held, share in groups]


def increments(energy: Energy) -> list[float]:
    """By level, the share in its increment alone."""
    return [inside - below for below, inside in itertools.pairwise([0.0, *energy])]
