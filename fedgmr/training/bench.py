"""A client's workplace: sub-models laid out in modules, ready for SGD.

A bench holds one task at a time. `run(level)` lays out the sub-model of that level with the client's current
values; asking for another level first takes the trained values back. `MaskedBench` uses one full-size module in
which the coordinates outside the sub-model are zero; `slicing.py` and `sliced_bench.py` use physically small
modules. Read next: `rules.py`, what is done on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask
from fedgmr.submodels.layout import Layout, TensorPlace

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
    learning_rate: float
    loss: Loss

    @cached_property
    def start(self) -> list[Tensor]:
        """The parameters as they were when first asked for; a rule that needs them asks before its first step."""
        return [parameter.detach().clone() for parameter in self.parameters]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients of `loss`, one per parameter; zero where the loss does not depend on it."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def descend(self, gradients: Sequence[Tensor]) -> None:
        """One step of plain SGD within the sub-model."""
        with torch.no_grad():
            torch._foreach_add_(self.parameters, list(gradients), alpha=-self.learning_rate)
            if self.outside is not None:
                self.flat.masked_fill_(self.outside, 0)


class Bench(Protocol):
    """Where a task is worked on."""

    task: ClientTask

    def begin(self, task: ClientTask, loss: Loss) -> None:
        """Take up a task with the client's loss."""
        ...

    def run(self, level: int | None = None) -> LocalRun:
        """The sub-model of `level` (the task's own by default) with the client's current values."""
        ...

    def finish(self) -> tuple[Tensor, Tensor]:
        """The trained values in level order and the model's buffers."""
        ...


class MaskedBench:
    """One full-size module; a sub-model is the full model with zeros outside."""

    task: ClientTask

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        """Takes `module` over: its parameters and buffers become aliases of the bench's vectors."""
        self.module, self.layout = module.to(device).train(), layout
        self.flat = torch.zeros(layout.size, dtype=layout.dtype, device=device)
        self.buffers = torch.zeros(layout.buffer_size, dtype=layout.dtype, device=device)
        layout.bind(module, self.flat, self.buffers)
        named = dict(module.named_parameters())
        self.parameters: list[Tensor] = [named[place.name] for place in layout.parameters]
        # Buffers outside the layout (batch counters, caches) start every task as the model made them.
        travelling = {place.name for place in layout.buffers}
        self._others = [(b, b.clone()) for name, b in module.named_buffers() if name not in travelling]
        self._open: LocalRun | None = None
        self._state: Tensor | None = None  # all the client's values; None while one level was enough
        self._outside: dict[int, Tensor] = {}
        self._outside_version = -1

    def begin(self, task: ClientTask, loss: Loss) -> None:
        """Take up a task."""
        self.task, self._loss = task, loss
        self._open = self._state = None
        self.buffers.copy_(task.buffers)
        for buffer, initial in self._others:
            buffer.copy_(initial)

    def run(self, level: int | None = None) -> LocalRun:
        """Lay out the sub-model of `level`."""
        level = self.task.level if level is None else level
        if self._open is None or self._open.level != level:
            self._take_back()
            self.flat.copy_(self.task.model if self._state is None else self._state)
            outside = self._outside_of(level)
            if outside is not None:
                self.flat.masked_fill_(outside, 0)
            self._open = LocalRun(
                level=level,
                module=self.module,
                parameters=self.parameters,
                places=self.layout.parameters,
                flat=self.flat,
                outside=outside,
                learning_rate=self.task.learning_rate,
                loss=self._loss,
            )
        return self._open

    def finish(self) -> tuple[Tensor, Tensor]:
        """The task's values; whatever level was trained last."""
        open_run = self.run() if self._open is None else self._open
        values = self.flat
        if self._state is not None or open_run.level != self.task.level:
            self._take_back()
            assert self._state is not None
            values = self._state
        return self.task.levels.pack(values, self.task.level), self.buffers.clone()

    def _take_back(self) -> None:
        if self._open is None:
            return
        if self._state is None:
            self._state = self.task.model.clone()
        if self._open.outside is None:
            self._state.copy_(self.flat)
        else:
            torch.where(self._open.outside, self._state, self.flat, out=self._state)

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
