"""A client's workplace: sub-models laid out in modules, ready for SGD.

A bench holds one task at a time. `run(level)` lays out the sub-model of that level with the client's current
values; asking for another level first takes the trained values back. `MaskedBench` uses one full-size module in
which the coordinates outside the sub-model are zero; `slicing.py` and `sliced_bench.py` use physically small
modules. Read next: `rules.py`, what is done on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask
from fedgmr.submodels.layout import Layout, TensorPlace
from fedgmr.training.dropping import Dropping
from fedgmr.training.optimizers import SGD, Descent, Optimizer

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalRun:
    """One sub-model in a module; its parameters alias `flat`."""

    level: int
    module: nn.Module
    parameters: list[Tensor]
    places: Sequence[TensorPlace]  # of the full model, one per parameter
    flat: Tensor
    outside: Tensor | None  # bool, the coordinates of `flat` that stay zero; None where all of it is trained
    learning_rate: float | Tensor
    loss: Loss
    coordinates: Tensor | None = None  # where `flat` lies in the full vector; None where it is the full vector
    descent: Descent = SGD()
    dropping: Dropping = Dropping()

    @cached_property
    def notes(self) -> dict[str, Any]:
        """What a rule finds out in its first step and uses again in the others."""
        return {}

    @cached_property
    def start(self) -> list[Tensor]:
        """The parameters as they were when first asked for; a rule that needs them asks before its first step."""
        return [parameter.detach().clone() for parameter in self.parameters]

    @property
    def masks(self) -> Sequence[Tensor | None]:
        """For each parameter what lies outside the sub-model, in its shape; None where nothing does."""
        if self.outside is None:
            return [None] * len(self.places)
        return [self.outside[place.start : place.stop].view(place.shape) for place in self.places]

    def loss_on(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of the sub-model on a mini-batch."""
        return self.loss(self.module(inputs), targets)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients of `loss`, one per parameter; zero where the loss does not depend on it."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def descend(self, gradients: Sequence[Tensor]) -> None:
        """One step of the task's optimiser within the sub-model."""
        with torch.no_grad():
            self.descent.step(self, gradients)
            if self.outside is not None:
                self.flat.masked_fill_(self.outside, 0)


class Desk:
    """A module in training whose parameters and buffers are two flat vectors."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        """Takes `module` over: its tensors become aliases of the desk's vectors."""
        self.module, self.layout = module.to(device).train(), layout
        self.flat = torch.zeros(layout.size, dtype=layout.dtype, device=device)
        self.buffers = torch.zeros(layout.buffer_size, dtype=layout.dtype, device=device)
        layout.bind(module, self.flat, self.buffers)
        named = dict(module.named_parameters())
        self.parameters: list[Tensor] = [named[place.name] for place in layout.parameters]
        travelling = {place.name for place in layout.buffers}
        self._others = [(b, b.clone()) for name, b in module.named_buffers() if name not in travelling]

    def reset(self) -> None:
        """Buffers outside the layout (batch counters, caches) as the model made them: no task leaves a trace."""
        for buffer, initial in self._others:
            buffer.copy_(initial)


class Bench:
    """Where a task is worked on; what is left open is how a sub-model lies on a desk."""

    task: ClientTask
    _loss: Loss
    _descent: Descent

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._open: LocalRun | None = None
        self._state: Tensor | None = None  # all the client's values; None while one level was enough

    def begin(self, task: ClientTask, loss: Loss) -> None:
        """Take up a task with the client's loss."""
        self.task, self._loss, self._descent = task, loss, self.optimizer.begin(task.model)
        self._open = self._state = None

    def run(self, level: int | None = None) -> LocalRun:
        """The sub-model of `level` (the task's own by default) with the client's current values."""
        level = self.task.level if level is None else level
        if self._open is None or self._open.level != level:
            self._take_back()
            desk, outside = self._lay_out(level, self.task.model if self._state is None else self._state)
            self._open = self._opened(level, desk, outside)
        return self._open

    def finish(self, *, natural: bool = False) -> tuple[Tensor, Tensor]:
        """The task's trained values in level order, whatever level was trained last, and the model's buffers.

        With `natural` the values of a whole model are in natural order instead.
        """
        run = self.run() if self._open is None else self._open
        natural = natural and self.task.levels.whole(self.task.level)
        if self._state is None and run.level == self.task.level and not natural:
            return self._values(run), self._statistics(run)
        self._take_back()
        assert self._state is not None
        values = self._state if natural else self.task.levels.pack(self._state, self.task.level)
        return values, self._statistics(run)

    def _take_back(self) -> None:
        if self._open is not None:
            if self._state is None:  # of a whole model every value is put back
                whole = self.task.levels.whole(self._open.level)
                self._state = torch.empty_like(self.task.model) if whole else self.task.model.clone()
            self._put_back(self._open, self._state)

    def _opened(self, level: int, desk: Desk, outside: Tensor | None) -> LocalRun:
        """The run on a desk that has just been laid out."""
        return LocalRun(
            level=level,
            module=desk.module,
            parameters=desk.parameters,
            places=desk.layout.parameters,
            flat=desk.flat,
            outside=outside,
            learning_rate=self.task.learning_rate,
            loss=self._loss,
            coordinates=self._coordinates(level),
            descent=self._descent,
        )

    def _lay_out(self, level: int, source: Tensor) -> tuple[Desk, Tensor | None]:
        """A desk with the sub-model of `level` out of the full vector `source`, and what lies outside it there."""
        raise NotImplementedError

    def _coordinates(self, level: int) -> Tensor | None:
        """Where a desk's vector lies in the full one; None: it is the full one."""
        return None

    def _put_back(self, run: LocalRun, state: Tensor) -> None:
        """Write the run's values into the full vector `state`."""
        raise NotImplementedError

    def _values(self, run: LocalRun) -> Tensor:
        """The run's values in level order."""
        raise NotImplementedError

    def _statistics(self, run: LocalRun) -> Tensor:
        """The model's buffers after the last run."""
        raise NotImplementedError


class MaskedBench(Bench):
    """One full-size module; a sub-model is the full model with zeros outside."""

    def __init__(
        self, module: nn.Module, layout: Layout, device: torch.device, optimizer: Optimizer | None = None
    ) -> None:
        """Takes `module` over; plain SGD unless an optimiser is given."""
        super().__init__(optimizer or SGD())
        self.desk = Desk(module, layout, device)
        self._outside: dict[int, Tensor] = {}
        self._outside_version = -1

    def begin(self, task: ClientTask, loss: Loss) -> None:
        """Take up a task with the client's loss."""
        super().begin(task, loss)
        self.desk.buffers.copy_(task.buffers)
        self.desk.reset()

    def _lay_out(self, level: int, source: Tensor) -> tuple[Desk, Tensor | None]:
        self.desk.flat.copy_(source)
        outside = self._outside_of(level)
        if outside is not None:
            self.desk.flat.masked_fill_(outside, 0)
        return self.desk, outside

    def _put_back(self, run: LocalRun, state: Tensor) -> None:
        if run.outside is None:
            state.copy_(run.flat)
        else:
            torch.where(run.outside, state, run.flat, out=state)

    def _values(self, run: LocalRun) -> Tensor:
        return self.task.levels.pack(run.flat, run.level)

    def _statistics(self, run: LocalRun) -> Tensor:
        return self.desk.buffers.clone()

    def _outside_of(self, level: int) -> Tensor | None:
        levels = self.task.levels
        if levels.sizes[level] == len(levels):
            return None
        if self.task.map_version != self._outside_version:
            self._outside.clear()
            self._outside_version = self.task.map_version
        if level not in self._outside:
            self._outside[level] = levels.levels > level
        return self._outside[level]
