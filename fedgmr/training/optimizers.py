"""Optimisers: a step of SGD with or without momentum, or of Adam with fresh moments for every task (A28).

An optimiser in a recipe is a value. Momentum lies in the sub-model's `velocity`, which the workspace lays out as it
does the weights, so a client may keep it from task to task. Nothing here looks at a tensor's values, so the steps of a
task can be captured as a CUDA graph. Read next: `submodel/workspace.py`, where `SubModel.descend` calls it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedgmr.training.submodel.cut import Cut
    from fedgmr.training.submodel.workspace import SubModel


# A step of one task: moves the parameters of a sub-model; the caller puts entries outside it back to zero.
Descent = Callable[["SubModel", Sequence[Tensor]], None]

# Beside the weights a step remembers nothing; `SubModel.velocity`, for a task or from task to task; or what is in the
# `Descent` of its own, which ends with the task and cannot be captured in pieces.
Memory = Literal["none", "velocity", "kept", "own"]


class Optimizer(Protocol):
    """The rule that turns gradients into steps."""

    kind: ClassVar[str]

    @property
    def plain(self) -> bool:
        """Whether a step is w - rate·g and nothing else, so that executors may do it themselves."""

    @property
    def memory(self) -> Memory:
        """What steps remember."""

    def begin(self, model: Tensor, /) -> Descent:
        """Begin a new task; `model` is the full flat vector, for its size, type and device."""


@dataclass(frozen=True, kw_only=True)
class SGD:
    """v = momentum·v + g + weight_decay·w, then w - rate·v, as PyTorch has it; by default w - rate·g."""

    kind: ClassVar[str] = "sgd"
    momentum: float = field(
        default=0.0, metadata={"at_least": 0, "below": 1, "help": "share of a step's direction in the next one's"}
    )
    weight_decay: float = field(
        default=0.0, metadata={"at_least": 0, "help": "so much of a weight is added to its gradient"}
    )
    keep: bool = field(
        default=False,
        metadata={"help": "a client keeps its velocity from task to task; `false`: zero at the start of every task"},
    )

    def __post_init__(self) -> None:
        if self.keep and not self.momentum:
            raise ValueError(
                "keep is true and momentum is 0: there is nothing to keep; give a momentum, or keep: false."
            )

    @property
    def plain(self) -> bool:
        """Without momentum and decay."""
        return not (self.momentum or self.weight_decay)

    @property
    def memory(self) -> Memory:
        """The momentum, if there is any."""
        if not self.momentum:
            return "none"
        return "kept" if self.keep else "velocity"

    def begin(self, model: Tensor) -> Descent:
        """The velocity is the sub-model's."""
        return self.step

    def step(self, sub: "SubModel", gradients: Sequence[Tensor]) -> None:
        """One step."""
        if not self.plain:
            self._step(sub, gradients)
        elif sub.rates is not None:
            torch._foreach_addcmul_(sub.parameters, list(gradients), list(sub.rates), value=-1.0)
        else:
            assert not isinstance(sub.learning_rate, Tensor)
            torch._foreach_add_(sub.parameters, list(gradients), alpha=-sub.learning_rate)

    def _step(self, sub: "SubModel", gradients: Sequence[Tensor]) -> None:
        direction = _in_one(sub, gradients)
        if self.weight_decay:
            direction.add_(sub.flat, alpha=self.weight_decay)
        if self.momentum:
            assert sub.velocity is not None
            direction = torch.add(direction, sub.velocity, alpha=self.momentum, out=sub.velocity)
        if isinstance(sub.learning_rate, Tensor):
            sub.flat.addcmul_(direction, sub.learning_rate, value=-1.0)
        else:
            sub.flat.add_(direction, alpha=-sub.learning_rate)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba, 2015) whose moments start at zero with every task."""

    kind: ClassVar[str] = "adam"
    plain: ClassVar[bool] = False
    memory: ClassVar[Memory] = "own"
    beta1: float = field(default=0.9, metadata={"at_least": 0, "below": 1, "help": "decay of the mean of gradients"})
    beta2: float = field(
        default=0.999, metadata={"at_least": 0, "below": 1, "help": "decay of the mean of squared gradients"}
    )
    eps: float = field(default=1e-8, metadata={"above": 0, "help": "added to the root of the mean of squares"})

    def begin(self, model: Tensor) -> Descent:
        """Zero moments for every coordinate."""
        return _AdamSteps(self, model).step


class _AdamSteps:
    """The moments of one task; the bias correction counts its steps, whatever their level."""

    def __init__(self, settings: Adam, model: Tensor) -> None:
        self.settings, self.moments, self.taken = settings, Moments(model, 2), 0

    def step(self, sub: "SubModel", gradients: Sequence[Tensor]) -> None:
        """One step."""
        mean, square = self.moments.of(sub.cut)
        self.taken += 1
        beta1, beta2 = self.settings.beta1, self.settings.beta2
        gradient = _in_one(sub, gradients)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square.sqrt() / (1 - beta2**self.taken) ** 0.5).add_(self.settings.eps)
        rate = sub.learning_rate / (1 - beta1**self.taken)
        if isinstance(rate, Tensor):
            sub.flat.sub_(mean.div(root).mul_(rate))
        else:
            sub.flat.addcdiv_(mean, root, value=-rate)


class Moments:
    """Numbers beside the weights that belong to coordinates of the full model.

    A step at some level moves the coordinates of its sub-model and their moments, and no others, so a rule that changes
    levels within a task (ordered dropout) goes on with what the smaller and the larger sub-model share.
    """

    def __init__(self, model: Tensor, count: int, whole: Sequence[Tensor] | None = None) -> None:
        """`count` vectors as long as `model`, zero unless they are given; given ones are written to."""
        self._model, self._count = model, count
        self._cut: Cut | None = None  # whose coordinates the parts have
        self._parts: list[Tensor] = []  # in the order of the cut's vector
        self._whole = whole  # of the full model; None while one level was enough

    def of(self, cut: "Cut", *, room: Tensor | None = None) -> list[Tensor]:
        """The moments of a cut's coordinates, in its order, to be changed in place; in `room` where it is given."""
        if cut is not self._cut:
            if self._cut is not None:
                self.whole()
            if self._whole is None:
                parts = [torch.zeros_like(cut.module.flat) for _ in range(self._count)]
            else:
                parts = [_entries(whole, cut.coordinates).clone() for whole in self._whole]
            self._parts, self._cut = parts if room is None else [room.copy_(part) for part in parts], cut
        return self._parts

    def whole(self) -> Sequence[Tensor]:
        """The moments of the full model, with what the cut in hand has by now."""
        if self._whole is None:
            self._whole = [torch.zeros_like(self._model) for _ in range(self._count)]
        if self._cut is not None:
            own, outside = self._cut.coordinates, self._cut.outside
            for whole, part in zip(self._whole, self._parts, strict=True):
                kept = part if outside is None else torch.where(outside, _entries(whole, own), part)
                whole.copy_(kept) if own is None else whole.index_copy_(0, own.long(), kept)
        return self._whole


def _in_one(sub: "SubModel", gradients: Sequence[Tensor]) -> Tensor:
    """A new vector: the gradients in the order of the sub-model's."""
    gradient = torch.empty_like(sub.flat)
    torch._foreach_copy_(sub.cut.module.views(gradient), list(gradients))
    return gradient


def _entries(whole: Tensor, coordinates: Tensor | None) -> Tensor:
    return whole if coordinates is None else whole[coordinates]
