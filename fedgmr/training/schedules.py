"""Local training in a recipe: learning rate and its schedule, optimiser, batch size, steps."""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from fedgmr.settings.build import settle
from fedgmr.training.optimizers import SGD, Adam, Optimizer


class Schedule(Protocol):
    """The change of the learning rate with the tick."""

    kind: ClassVar[str]

    def factor(self, tick: float) -> float:
        """The factor on the learning rate at a tick."""


@dataclass(frozen=True, kw_only=True)
class ConstantRate:
    """The same rate throughout."""

    kind: ClassVar[str] = "constant"

    def factor(self, tick: float) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Halving:
    """0.5^(tick / every), continuously."""

    kind: ClassVar[str] = "halving"
    every: float = field(metadata={"above": 0, "help": "ticks in which the rate halves"})

    def factor(self, tick: float) -> float:
        """0.5^(tick / every)."""
        return float(0.5 ** (tick / self.every))


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Multiplied by `by` at each of the ticks `at`."""

    kind: ClassVar[str] = "steps"
    at: tuple[int, ...] = field(metadata={"at_least": 0, "help": "the ticks"})
    by: float = field(default=0.5, metadata={"above": 0, "help": "the factor"})

    def factor(self, tick: float) -> float:
        """by^(number of steps passed)."""
        return float(self.by ** sum(tick >= at for at in self.at))


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The work of a client per task."""

    learning_rate: float = field(default=0.1, metadata={"above": 0, "help": "rate at the first tick"})
    schedule: Schedule = field(
        default=ConstantRate(),
        metadata={
            "kinds": (ConstantRate, Halving, Steps),
            "help": "factor on the learning rate by tick: `constant`, `halving`, `steps`",
        },
    )
    optimizer: Optimizer = field(
        default=SGD(), metadata={"kinds": (SGD, Adam), "help": "how gradients become steps: `sgd`, `adam`"}
    )
    batch_size: int = field(default=20, metadata={"at_least": 1, "help": "samples per mini-batch"})
    steps: int = field(default=5, metadata={"at_least": 1, "help": "mini-batches per task"})

    def __post_init__(self) -> None:
        settle(self)

    def rate(self, tick: float) -> float:
        """The learning rate at a tick."""
        return self.learning_rate * self.schedule.factor(tick)
