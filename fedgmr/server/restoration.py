"""Restoration: when a client moves one level up (paper, GMR; A2-A5, section 3.5).

The saturation rule watches the validation metric of each client's current sub-model; the fixed-time rule raises a floor
density with the share of the time budget spent. Both only ever move a client up its ladder.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from fedgmr.submodels.levels import Ladder


@dataclass(eq=False)
class SaturationDetector:
    """Tells when a metric has stopped improving."""

    patience: int
    best: float = -math.inf
    waited: int = 0

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience is {self.patience}: give at least 1 observation.")

    def observe(self, metric: float) -> bool:
        """True when the metric has not exceeded its best `patience` times in a row; then the count starts again."""
        if metric > self.best:
            self.best, self.waited = metric, 0
            return False
        self.waited += 1
        if self.waited < self.patience:
            return False
        self.best, self.waited = -math.inf, 0
        return True


@dataclass(frozen=True, kw_only=True)
class Check:
    """The inputs of a restoration rule at a check."""

    ladder: Ladder
    levels: Mapping[int, int]  # by client
    detectors: dict[int, SaturationDetector]  # by client; the rule's memory, kept by the server
    metrics: Mapping[int, float]  # by level; only for rules that ask for them
    progress: float  # share of the time budget spent


class Restoration(Protocol):
    """A restoration rule."""

    kind: ClassVar[str]

    def wanted(self, check_levels: Mapping[int, int], top: int) -> set[int]:
        """The levels whose validation metric the rule needs at this check."""

    def restore(self, check: Check) -> dict[int, int]:
        """New level by client, for the clients that move."""


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """A client moves up when the validation metric of its sub-model has saturated (ESM)."""

    kind: ClassVar[str] = "saturation"
    patience: int = field(
        default=5, metadata={"at_least": 1, "help": "checks without improvement before a client moves up"}
    )
    scope: Literal["client", "global"] = field(
        default="client",
        metadata={"help": "metric of each client's sub-model, or of the whole model for all (A2)"},
    )

    def wanted(self, check_levels: Mapping[int, int], top: int) -> set[int]:
        """The distinct levels below the top, or the top for the global scope."""
        below = {level for level in check_levels.values() if level < top}
        return below if self.scope == "client" or not below else {top}

    def restore(self, check: Check) -> dict[int, int]:
        """One level up for each client whose detector fires."""
        top = len(check.ladder) - 1
        moved = {}
        for client, level in check.levels.items():
            metric = check.metrics.get(level if self.scope == "client" else top)
            if level >= top or metric is None:
                continue
            detector = check.detectors.setdefault(client, SaturationDetector(self.patience))
            if detector.observe(metric):
                moved[client] = level + 1
        return moved


@dataclass(frozen=True, kw_only=True)
class FixedTime:
    """A floor density that rises at equal shares of the time budget: ladder[j] from progress j / len(ladder) on."""

    kind: ClassVar[str] = "fixed_time"

    def wanted(self, check_levels: Mapping[int, int], top: int) -> set[int]:
        """No metric is needed."""
        return set()

    def restore(self, check: Check) -> dict[int, int]:
        """Raise every client below the floor to it."""
        floor = min(len(check.ladder) - 1, int(check.progress * len(check.ladder) + 1e-9))
        return {client: floor for client, level in check.levels.items() if level < floor}
