"""FIARSE's dropped weights in two passes over memory, for plain SGD with a rate per weight.

With it a round of ten ResNet-18 clients takes two thirds of the time that PyTorch's own operations need. Read next:
`fedgmr/training/thresholds.py`, the arithmetic; `kernels.py`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgmr.training.execution import TRITON
from fedgmr.training.submodel.workspace import SubModel
from fedgmr.training.thresholds import Dropping, Thetas

if TRITON:
    from fedgmr.training.graphed import kernels

_SIZE = 1024  # weights per block where nothing but memory counts


class FusedDropping(Dropping):
    """Drops weights with one kernel before a step and one after it."""

    def hide(self, sub: SubModel, thetas: Thetas) -> list[Tensor]:
        """Zero the weights below their threshold; returns all weights as they were."""
        whole = []
        for parameter, theta in zip(sub.parameters, thetas, strict=True):
            copy, weight = torch.empty_like(parameter), parameter.detach()
            if theta is None:
                copy.copy_(weight)
            else:
                kernels.hide[(_blocks(weight),)](weight, copy, theta, weight.numel(), _SIZE)
            whole.append(copy.detach())
        return whole

    def descend(
        self, sub: SubModel, whole: Sequence[Tensor], gradients: list[Tensor], thetas: Thetas, *, derivative: bool
    ) -> None:
        """Bring the weights back and step those that are kept."""
        assert sub.rates is not None
        for parameter, weight, gradient, rate, theta in zip(
            sub.parameters, whole, gradients, sub.rates, thetas, strict=True
        ):
            slope = gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)
            least = weight.new_zeros(()) if theta is None else theta
            kernels.step_kept[(_blocks(weight),)](
                parameter.detach(), weight, slope, rate, least, weight.numel(), derivative, _SIZE
            )


def _blocks(weight: Tensor) -> int:
    return -(-weight.numel() // _SIZE)
