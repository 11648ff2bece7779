"""The rows of a stack: one for each client, with all weights of its model in an order that suits the kernels.

Every tensor begins at a multiple of 16 numbers. The table says where a task's sub-model comes from and where its values
go. Read next: `table.py`; `net.py` and `fedgmr/training/folded/net.py`, which compute on rows.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedgmr.submodels.layout import Layout, Ranks
from fedgmr.training.execution import TRITON
from fedgmr.training.optimizers import SGD
from fedgmr.training.rules import Stacking
from fedgmr.training.stacked.table import Column
from fedgmr.training.work import LocalWork

if TRITON:
    from fedgmr.training.stacked import row_kernels

_ALIGNED = 16
_SIZE = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class RowOrder:
    """Where each number of a row lies in the model's vector."""

    order: Tensor  # int32 [row]: coordinates, -1 between tensors
    layout: Layout

    def ranked(self, ranks: Ranks) -> Tensor:
        """Bool [row]: what has a threshold."""
        ranked = torch.zeros(self.layout.size + 1, dtype=torch.bool)  # the last: between tensors
        for place in self.layout.parameters:
            ranked[place.start : place.stop] = place.ranked(ranks)
        return ranked.to(self.order.device)[self.order.long()]

    @cached_property
    def inverse(self) -> Tensor:
        """Int32 [size of the model]: where each coordinate lies in a row."""
        device = self.order.device
        inverse = torch.empty(self.layout.size, dtype=torch.int32, device=device)
        places = torch.arange(len(self.order), dtype=torch.int32, device=device)
        inverse[self.order[self.order >= 0].long()] = places[self.order >= 0]
        return inverse


@dataclass(eq=False)
class RowWriter:
    """Lays out a model's tensors in a row, one after the other."""

    layout: Layout
    length: int = 0
    _parts: list[Tensor] = field(default_factory=list)

    @cached_property
    def coordinates(self) -> dict[str, Tensor]:
        """The coordinates of each parameter, in its shape."""
        return {p.name: torch.arange(p.start, p.stop).view(p.shape) for p in self.layout.parameters}

    def put(self, coordinates: Tensor) -> int:
        """Append a tensor's coordinates; where it begins in a row."""
        start, flat = self.length, coordinates.reshape(-1)
        gap = -len(flat) % _ALIGNED
        self._parts += [flat, torch.full((gap,), -1)]
        self.length += len(flat) + gap
        return start

    def finish(self) -> RowOrder | None:
        """The order of a row; None where not every coordinate has its place."""
        order = torch.cat(self._parts)
        if int((order >= 0).sum()) != self.layout.size:
            return None
        return RowOrder(order=order.to(torch.int32), layout=self.layout)


Rules = tuple[str, bool, float, float]  # of a step: mode, derivative, momentum, decay


class Descent(NamedTuple):
    """What a step of SGD reads and writes beside the gradient, as kernels take it."""

    weights: Tensor
    levels: Tensor
    fallen: Tensor
    velocities: Tensor
    limits: Tensor
    thetas: Tensor
    rates: Tensor


class Rows:
    """Memory for up to `most` clients side by side, which stays where it is; a subclass computes the steps."""

    classes = 0  # outputs of the model, where these are asked for
    absent = False  # classes that a client does not have are left out of its loss
    draws = False  # the model may draw while it trains

    def __init__(
        self, order: RowOrder, work: LocalWork, stacking: Stacking, sgd: SGD, *, most: int, buffers: int = 0
    ) -> None:
        """Take memory for tasks of `work` whose steps are of the form `stacking`, with so many buffers."""
        device = work.device
        self.device, self.most, self.stacking, self.sgd = device, most, stacking, sgd
        self.batch, self.steps = work.order.batch_size, work.steps
        self.precision = "tf32" if work.execution.tf32 else "ieee"
        order = replace(order, order=order.order.to(device))  # a CPU would take a third of a second for the inverse
        self.order, self.inverse, self.size, self.row = order.order, order.inverse, order.layout.size, len(order.order)
        self.ranked = order.ranked(stacking.ranks).to(torch.uint8)
        self.weights = torch.zeros((most, self.row), device=device)
        # What products read: in a step of one of several levels, zeros outside.
        self.alive = torch.zeros_like(self.weights) if stacking.mode == "level" else self.weights
        self.levels = torch.zeros((most, self.row), dtype=torch.uint8, device=device)
        self.fallen = torch.zeros_like(self.weights) if stacking.mode == "threshold" else self.weights[:0]
        self.velocities = torch.zeros_like(self.weights) if sgd.momentum else self.weights[:0]
        self.table = torch.zeros((most, len(Column)), dtype=torch.int64, device=device)
        # Each step's begin at a multiple of 128 bytes, so that one compiled kernel does for all steps.
        self.limits = torch.zeros((self.steps, -(-most // 32) * 32), dtype=torch.int32, device=device)
        self.rates, self.thetas, self.losses = (torch.zeros(most, device=device) for _ in range(3))
        self.damaged = torch.zeros(most, dtype=torch.int32, device=device)
        self.buffers = torch.zeros((most, buffers), device=device)

    def arranged(self, inputs: Tensor) -> Tensor:
        """Inputs [steps, batch, ...] as the steps take them, each step's in the first dimension."""
        return inputs

    def step(self, number: int, inputs: Tensor, targets: Tensor, count: int) -> None:
        """Step `number` of `count` clients; inputs and targets have the clients in their first dimension."""
        raise NotImplementedError

    @property
    def rules(self) -> Rules:
        """Of a step."""
        return self.stacking.mode, self.stacking.derivative, self.sgd.momentum, self.sgd.weight_decay

    def descent(self, limits: Tensor) -> Descent:
        """What a step reads and writes, where the clients' levels go up to `limits`."""
        return Descent(self.weights, self.levels, self.fallen, self.velocities, limits, self.thetas, self.rates)

    def show(self, limits: Tensor, count: int) -> None:
        """Let products read the weights of a step, where its levels go up to `limits`."""
        if self.stacking.mode == "level":
            grid = (-(-self.row // _SIZE), count)
            row_kernels.select[grid](self.weights, self.levels, limits, self.alive, self.row, _SIZE)

    def lay_out(self, count: int) -> None:
        """Every client's sub-model, from where the table says."""
        grid = (-(-self.row // _SIZE), count)
        if self.stacking.mode == "threshold":
            self.thetas[:count].fill_(torch.inf)
            self.fallen[:count].zero_()
        row_kernels.lay_out[grid](
            self.table, self.order, self.ranked, self.weights, self.levels, self.velocities,
            self.thetas.view(torch.int32), self.row, len(Column), _SIZE, self.stacking.mode, self.sgd.momentum,
        )  # fmt: skip
        self.losses[:count].zero_()
        self.damaged[:count].zero_()

    def take_out(self, count: int) -> None:
        """Every client's values, to where the table says.

        A client whose values are damaged brings back what it was given, and its loss is NaN.
        """
        grid = (-(-self.size // _SIZE), count)
        row_kernels.take_out[grid](
            self.table, self.inverse, self.weights, self.fallen, self.velocities, self.damaged, self.row,
            len(Column), _SIZE, self.stacking.mode, self.sgd.momentum,
        )  # fmt: skip
        row_kernels.bring_back[grid](self.table, self.damaged, len(Column), _SIZE, self.sgd.momentum)
        self.losses[:count].masked_fill_(self.damaged[:count] > 0, torch.nan)
