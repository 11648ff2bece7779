"""FIARSE's arithmetic: weights below a threshold are left out of a step, the others step with a scaled gradient.

A kept weight's gradient is multiplied by 1 + 2·theta·|w| / (|w| + theta)². Read next: `rules.py`, the rule that uses
it; `graphed/fused.py`, the same in two passes over memory.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedgmr.training.submodel.workspace import SubModel

Thetas = Sequence[Tensor | None]  # per parameter; None: none of it is dropped


class Dropping:
    """Drops weights with PyTorch's own operations."""

    def hide(self, sub: "SubModel", thetas: Thetas) -> list[Tensor]:
        """Zero the weights below their threshold; returns all weights as they were."""
        whole = [parameter.detach().clone() for parameter in sub.parameters]
        with torch.no_grad():
            for parameter, theta in zip(sub.parameters, thetas, strict=True):
                if theta is not None:
                    parameter.masked_fill_(parameter.abs() < theta, 0)
        return whole

    def descend(
        self, sub: "SubModel", whole: Sequence[Tensor], gradients: list[Tensor], thetas: Thetas, *, derivative: bool
    ) -> None:
        """Bring the weights back and step those that are kept."""
        with torch.no_grad():
            torch._foreach_copy_(sub.parameters, list(whole))
            for weight, gradient, theta in zip(whole, gradients, thetas, strict=True):
                if theta is not None:
                    gradient.mul_(self.factor(weight, theta, derivative=derivative))
        sub.descend(gradients)

    @staticmethod
    def factor(weight: Tensor, theta: Tensor, *, derivative: bool) -> Tensor:
        """Return 0 below theta, from there 1 + 2·theta·|w| / (|w| + theta)²: 1.5 at |w| = theta, falling to 1."""
        size = weight.abs()
        kept = size >= theta
        if not derivative:
            return kept.to(weight.dtype)
        both = (size + theta).clamp(min=torch.finfo(weight.dtype).tiny)  # 0 / 0 where theta and the weight are zero
        return torch.where(kept, 1 + 2 * (theta / both) * (size / both), 0)  # theta is infinite for an absent tensor
