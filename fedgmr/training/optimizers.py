"""Optimisers: a step of plain SGD, or of Adam with fresh moments for every task (A28).

An optimiser in a recipe is a value; the memory of a task is in the `Descent` that it begins, and ends with the task.
Nothing here looks at a tensor's values, so the steps of a task can be captured as a CUDA graph. Read next:
`submodel/workspace.py`, where `SubModel.descend` calls it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedgmr.training.submodel.workspace import SubModel


# A step of one task: moves the parameters of a sub-model; the caller puts entries outside it back to zero.
Descent = Callable[["SubModel", Sequence[Tensor]], None]


class Optimizer(Protocol):
    """The rule that turns gradients into steps."""

    kind: ClassVar[str]
    plain: ClassVar[bool]  # a step is w - rate·g and nothing else, so executors may do it themselves

    def begin(self, model: Tensor, /) -> Descent:
        """Begin a new task; `model` is the full flat vector, for its size, type and device."""


@dataclass(frozen=True, kw_only=True)
class SGD:
    """w - rate·g, without momentum."""

    kind: ClassVar[str] = "sgd"
    plain: ClassVar[bool] = True

    def begin(self, model: Tensor) -> Descent:
        """Nothing is remembered from step to step."""
        return self.step

    def step(self, sub: "SubModel", gradients: Sequence[Tensor]) -> None:
        """One step."""
        if sub.rates is not None:
            torch._foreach_addcmul_(sub.parameters, list(gradients), list(sub.rates), value=-1.0)
        else:
            assert not isinstance(sub.learning_rate, Tensor)
            torch._foreach_add_(sub.parameters, list(gradients), alpha=-sub.learning_rate)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba, 2015) whose moments start at zero with every task."""

    kind: ClassVar[str] = "adam"
    plain: ClassVar[bool] = False
    beta1: float = field(default=0.9, metadata={"at_least": 0, "below": 1, "help": "decay of the mean of gradients"})
    beta2: float = field(default=0.999, metadata={"at_least": 0, "below": 1, "help": "decay of the mean of squares"})
    eps: float = field(default=1e-8, metadata={"above": 0, "help": "added to the root of the mean of squares"})

    def begin(self, model: Tensor) -> Descent:
        """Zero moments for every coordinate."""
        return _AdamSteps(self, model).step


class _AdamSteps:
    """The moments of one task.

    They belong to coordinates of the full model. A step at some level moves the coordinates of its sub-model and their
    moments, and no others, so a rule that changes levels within a task (ordered dropout) goes on with what the smaller
    and the larger sub-model share. The bias correction counts the steps of the task, whatever their level.
    """

    def __init__(self, settings: Adam, model: Tensor) -> None:
        self.settings, self.model, self.taken = settings, model, 0
        self._sub: SubModel | None = None  # whose coordinates the moments have
        self._moments: tuple[Tensor, Tensor]  # mean and mean of squares, in the order of the sub-model's vector
        self._all: tuple[Tensor, Tensor] | None = None  # of the full model; None while one level was enough

    def step(self, sub: "SubModel", gradients: Sequence[Tensor]) -> None:
        """One step."""
        if sub is not self._sub:
            self._moments = self._moments_for(sub)
            self._sub = sub
        self.taken += 1
        (mean, square), beta1, beta2 = self._moments, self.settings.beta1, self.settings.beta2
        gradient = torch.empty_like(sub.flat)
        torch._foreach_copy_(sub.cut.module.views(gradient), list(gradients))
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square.sqrt() / (1 - beta2**self.taken) ** 0.5).add_(self.settings.eps)
        rate = sub.learning_rate / (1 - beta1**self.taken)
        if isinstance(rate, Tensor):
            sub.flat.sub_(mean.div(root).mul_(rate))
        else:
            sub.flat.addcdiv_(mean, root, value=-rate)

    def _moments_for(self, sub: "SubModel") -> tuple[Tensor, Tensor]:
        """Zero at first; where the level changes, what the coordinates of `sub` have so far."""
        if self._sub is None:
            return torch.zeros_like(sub.flat), torch.zeros_like(sub.flat)
        if self._all is None:
            self._all = torch.zeros_like(self.model), torch.zeros_like(self.model)
        for whole, part in zip(self._all, self._moments, strict=True):
            own, outside = self._sub.cut.coordinates, self._sub.outside
            kept = part if outside is None else torch.where(outside, _entries(whole, own), part)
            whole.copy_(kept) if own is None else whole.index_copy_(0, own.long(), kept)
        mean, square = (_entries(whole, sub.cut.coordinates).clone() for whole in self._all)
        return mean, square


def _entries(whole: Tensor, coordinates: Tensor | None) -> Tensor:
    return whole if coordinates is None else whole[coordinates]
