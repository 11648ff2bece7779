"""Staleness rules: how much an update counts that started from an older model (section 2.2, A12).

Staleness is the number of merges between an update's dispatch and its merge; one merged at the very next merge has 0.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol


class Staleness(Protocol):
    """Weight of an update by its staleness."""

    kind: ClassVar[str]

    def weight(self, staleness: int) -> float:
        """In (0, 1], 1 for a fresh update."""


@dataclass(frozen=True, kw_only=True)
class Polynomial:
    """(1 + s)^-alpha."""

    kind: ClassVar[str] = "polynomial"
    alpha: float = field(
        default=0.5,
        metadata={
            "at_least": 0,
            "help": "of `polynomial`; 0 ignores staleness, 0.6 is the value of the paper's released code",
        },
    )

    def weight(self, staleness: int) -> float:
        """(1 + s)^-alpha."""
        return float((1 + staleness) ** -self.alpha)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Every update counts the same."""

    kind: ClassVar[str] = "constant"

    def weight(self, staleness: int) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Hinge:
    """1 up to staleness b, then 1 / (a·(s - b) + 1)."""

    kind: ClassVar[str] = "hinge"
    a: float = field(default=10.0, metadata={"above": 0, "help": "of `hinge`: how fast the weight falls"})
    b: float = field(
        default=4.0, metadata={"at_least": 0, "help": "of `hinge`: up to this staleness an update counts fully"}
    )

    def weight(self, staleness: int) -> float:
        """1 up to b, then falling."""
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)
