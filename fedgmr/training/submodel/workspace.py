"""A client's workspace: one task at a time, its sub-models laid out in modules and read back.

`open(level)` lays out the sub-model of that level with the client's current values; opening another level first takes
the trained values back. Which coordinates lie where is a cut, made once per level map and level. Read next: `cut.py`;
`fedgmr/training/rules.py`, what a client does with a sub-model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask
from fedgmr.submodels.inputs import Inputs, outputs_of
from fedgmr.training.optimizers import SGD, Descent, Moments, Optimizer
from fedgmr.training.submodel.cut import BitMask, Cut, Cutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.thresholds import Dropping

Loss = Callable[[Tensor, Tensor], Tensor]
_MAPS = 2  # tasks of the previous level map are still in flight when a new map is made


@dataclass(frozen=True, kw_only=True, eq=False)
class SubModel:
    """One sub-model in a module, ready for training; its parameters are views of `flat`."""

    cut: Cut
    learning_rate: float | Tensor
    loss: Loss
    descent: Descent
    outside: Tensor | None  # bool, the entries of `flat` that stay zero; None where all of it is trained
    mask: BitMask | None = None  # the same as bits, on a CPU
    rates: Sequence[Tensor] | None = None  # per parameter: the rate inside, zero outside, so SGD needs no mask
    velocity: Tensor | None = None  # the optimiser's momentum, beside `flat`; what it has outside is never used
    dropping: Dropping = Dropping()

    @property
    def module(self) -> nn.Module:
        """The module that computes with the sub-model."""
        return self.cut.module.module

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters, in the order of the module's layout."""
        return self.cut.module.parameters

    @property
    def flat(self) -> Tensor:
        """All parameters as one vector."""
        return self.cut.module.flat

    @cached_property
    def notes(self) -> dict[str, Any]:
        """Findings of a rule's first step that its other steps use again."""
        return {}

    @cached_property
    def start(self) -> list[Tensor]:
        """The parameters as they were when first asked for; a rule that needs them asks before its first step."""
        return [parameter.detach().clone() for parameter in self.parameters]

    @cached_property
    def masks(self) -> Sequence[Tensor | None]:
        """For each parameter the entries outside the sub-model (bool, in its shape); None where there are none."""
        return [None] * len(self.parameters) if self.outside is None else self.cut.module.views(self.outside)

    def loss_on(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """Compute the loss of the sub-model on a mini-batch."""
        return self.loss(outputs_of(self.module, inputs), targets)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Compute the gradients of `loss`, one per parameter; zero where the loss does not depend on it."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def descend(self, gradients: Sequence[Tensor]) -> None:
        """Do one step of the task's optimiser within the sub-model."""
        with torch.no_grad():
            self.descent(self, gradients)
            if self.mask is not None:
                self.mask.apply(self.flat)
            elif self.outside is not None:
                self.flat.masked_fill_(self.outside, 0)


class Workspace:
    """The modules in which one task at a time is trained."""

    task: ClientTask

    def __init__(self, cutter: Cutter, optimizer: Optimizer | None = None) -> None:
        """`cutter` makes the cuts; plain SGD unless an optimiser is given."""
        self.cutter, self.optimizer = cutter, optimizer or SGD()
        self._cuts: dict[int, dict[int, Cut]] = {}  # by map version and level, the version used last at the end
        self._mask: tuple[Cut, BitMask] | None = None  # of one cut at a time: it has four bytes a coordinate
        self._opened: SubModel | None = None
        self._state: Tensor | None = None  # all of the client's values; None while one level was enough
        self._used: set[nn.Module] = set()  # modules that the task has opened
        self._loss: Loss
        self._descent: Descent
        self._moments: Moments | None  # the velocity, where the optimiser has one
        self._buffers: Tensor

    def begin(self, task: ClientTask, loss: Loss) -> None:
        """Take up a task with the client's loss."""
        self.task, self._loss, self._descent = task, loss, self.optimizer.begin(task.model)
        self._buffers = task.buffers.clone() if len(task.buffers) else task.buffers
        self._opened = self._state = self._moments = None
        if self.optimizer.memory in ("velocity", "kept"):
            self._moments = Moments(task.model, 1, _remembered(task))
        self._used.clear()

    def open(self, level: int | None = None) -> SubModel:
        """Lay out the sub-model of `level` (the task's own by default) with the client's current values."""
        level = self.task.level if level is None else level
        if self._opened is None or self._opened.cut.level != level:
            self._take_back()
            cut = self.cut(level)
            mask = self._bit_mask(cut)
            cut.lay_out(self.task.model if self._state is None else self._state, mask)
            if len(cut.module.buffers):
                cut.module.buffers.copy_(self._buffers if cut.statistics is None else self._buffers[cut.statistics])
            if cut.module.module not in self._used:
                self._used.add(cut.module.module)
                self._reset(cut.module)
            self._opened = self._submodel(cut, mask)
        return self._opened

    def finish(self, *, natural: bool = False) -> tuple[Tensor, Tensor]:
        """Return the task's trained values in level order, whichever level was trained last, and the buffers.

        With `natural` the values of a whole model are in natural order instead.
        """
        opened = self.open() if self._opened is None else self._opened
        natural = natural and self.task.levels.whole(self.task.level)
        if self._state is None and opened.cut.level == self.task.level:
            self._keep_statistics(opened.cut)
            return opened.cut.whole_model() if natural else opened.cut.values(), self._buffers
        self._take_back()
        assert self._state is not None
        return self._state if natural else self.task.levels.pack(self._state, self.task.level), self._buffers

    def memory(self) -> Tensor | None:
        """The memory that the client takes into its next task, in natural order; zero outside this sub-model."""
        if self._moments is None or self.optimizer.memory != "kept":
            return None
        return self._moments.whole()[0]

    def cut(self, level: int) -> Cut:
        """Find or make the cut of a level of the task's map."""
        version = self.task.map_version
        cuts = self._cuts.pop(version, {})
        self._cuts[version] = cuts
        if len(self._cuts) > _MAPS:
            del self._cuts[next(iter(self._cuts))]
        if level not in cuts:
            cuts[level] = self.cutter.cut(self.task.levels, level)
        return cuts[level]

    def _submodel(self, cut: Cut, mask: BitMask | None) -> SubModel:
        return SubModel(
            cut=cut,
            learning_rate=self.task.learning_rate,
            loss=self._loss,
            descent=self._descent,
            outside=cut.outside,
            mask=mask,
            velocity=None if self._moments is None else self._moments.of(cut)[0],
        )

    def _reset(self, module: FlatModule) -> None:
        module.reset()

    def _bit_mask(self, cut: Cut) -> BitMask | None:
        if cut.outside is None or cut.outside.device.type != "cpu":
            return None
        if self._mask is None or self._mask[0] is not cut:
            self._mask = cut, BitMask(cut.outside, cut.module.flat)
        return self._mask[1]

    def _take_back(self) -> None:
        if self._opened is None:
            return
        cut = self._opened.cut
        if self._state is None:  # of a whole model every value is put back
            whole = self.task.levels.whole(cut.level)
            self._state = torch.empty_like(self.task.model) if whole else self.task.model.clone()
        cut.put_back(self._state)
        self._keep_statistics(cut)

    def _keep_statistics(self, cut: Cut) -> None:
        if not len(cut.module.buffers):
            return
        if cut.statistics is None:
            self._buffers.copy_(cut.module.buffers)
        else:
            self._buffers[cut.statistics] = cut.module.buffers


def _remembered(task: ClientTask) -> list[Tensor] | None:
    """A copy of the memory that the client brings along, without the coordinates that have left its sub-model."""
    if task.memory is None:
        return None
    if task.levels.whole(task.level):
        return [task.memory.clone()]
    return [task.memory.masked_fill(task.levels.levels > task.level, 0)]
