"""Arrivals: how evenly clients send, how old their updates are, and how many updates a merge really averages.

The terms of the paper's Proposition E.1, which compares what arrives while the slowest client sends one update with a
synchronous round. The proposition holds for any groups of clients with the same mask; here every client is a group of
its own, because after a restoration slow and fast clients share a level. Read next: `theory.py`; docs/theory.md.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Participation:
    """How often clients sent while the slowest of them sent once."""

    mean: tuple[float | None, ...]  # m̄ by level: over the clients that train its increment
    skew: tuple[float | None, ...]  # V_m by level: the variance over these clients

    @classmethod
    def of(cls, sent: Sequence[int], levels: Sequence[int], count: int) -> "Participation | None":
        """From the updates of each client in the same time; None where somebody sent none."""
        slowest = min(sent, default=0)
        if not slowest:
            return None
        clients, sums, squares = [0] * count, [0] * count, [0] * count
        for level, number in zip(levels, sent, strict=True):
            clients[level] += 1
            sums[level] += number
            squares[level] += number * number
        means: list[float | None] = []
        skews: list[float | None] = []
        for held, total, square in zip(_above(clients), _above(sums), _above(squares), strict=True):
            means.append(total / held / slowest if held else None)
            skews.append((held * square - total * total) / (held * slowest) ** 2 if held else None)
        return cls(mean=tuple(means), skew=tuple(skews))

    @property
    def dilution(self) -> float:
        """The slowest client's weight among all arrivals, where an equal share is 1: 1 / m̄."""
        assert self.mean[0] is not None, "every client trains level 0"
        return 1.0 / self.mean[0]


@dataclass(frozen=True, kw_only=True)
class Merge:
    """The updates of an average merge, summed up by level."""

    number: tuple[float, ...]
    weight: tuple[float, ...]  # Σ w
    square: tuple[float, ...]  # Σ w²
    age: tuple[float, ...]  # Σ w · staleness²

    @classmethod
    def of(cls, updates: Sequence[tuple[int, int, float, float]], count: int) -> "Merge":
        """From level, staleness and weight of each update, and in what share of the merges it is."""
        number, weight, square, age = ([0.0] * count for _ in range(4))
        for level, staleness, each, share in updates:
            number[level] += share
            weight[level] += share * each
            square[level] += share * each * each
            age[level] += share * each * staleness * staleness
        return cls(number=tuple(number), weight=tuple(weight), square=tuple(square), age=tuple(age))

    def effective(self, level: int = 0) -> float | None:
        """(Σ w)² / Σ w² over the updates at a level or above: as many of equal weight would have a mean as noisy."""
        number, weight, square = (sum(values[level:]) for values in (self.number, self.weight, self.square))
        # Weights that differ from merge to merge alone make none of them noisier: a merge of one update has one.
        return min(number, max(1.0, weight**2 / square)) if square else None

    @property
    def staleness(self) -> tuple[float | None, ...]:
        """Θ by level: the mean of squared staleness, by weight."""
        return tuple(age / weight if weight else None for age, weight in zip(self.age, self.weight, strict=True))


def _above(values: Sequence[int]) -> list[int]:
    """By level, the sum over it and all above."""
    return list(itertools.accumulate(reversed(values)))[::-1]
