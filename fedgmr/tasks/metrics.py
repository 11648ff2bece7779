"""Metrics: what a task is measured by, with a name, a unit and a direction.

A task has one metric that leads (restoration, ranking, targets follow it) and may record others beside it. Values are
pooled over batches: a measure returns a sum and how many it is over. Read next: `task.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Measure = Callable[[Tensor, Tensor], tuple[Tensor, int]]  # (outputs, targets) -> (sum of the metric, number counted)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A measure and how its values are read."""

    measure: Measure
    name: str = "accuracy"
    unit: str = "%"  # %: the value is a share, which people read as percent
    higher_is_better: bool = True
    digits: int = 2  # after the point, for people

    def score(self, value: float) -> float:
        """The value as a number of which more is better."""
        return value if self.higher_is_better else -value

    @property
    def scores(self) -> tuple[float, float]:
        """The lowest and the highest score that there can be."""
        if self.unit != "%":
            return -math.inf, math.inf
        return (0.0, 1.0) if self.higher_is_better else (-1.0, 0.0)


def top1(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Correct predictions and how many there were."""
    return (outputs.argmax(-1) == targets).sum(), targets.numel()
