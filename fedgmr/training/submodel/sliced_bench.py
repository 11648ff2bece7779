"""Sliced training: a client at a small width trains the physically small network, not a masked full one.

One small module per level; a task's values are gathered into it and scattered back. Channels keep their order, so
the small module's parameters are the kept coordinates in ascending order, whichever channels they are. HeteroFL's
scaler sits behind the hidden layers of the small modules. Read next: `slicing.py`, which cuts the modules.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder
from fedgmr.submodels.widths import solve_widths
from fedgmr.training.optimizers import SGD, Optimizer
from fedgmr.training.plain.chains import arrange_for_training
from fedgmr.training.rules import LocalRule
from fedgmr.training.submodel.slicing import kept_sets, scale_hidden, slice_module
from fedgmr.training.submodel.workspace import Bench, Desk, LocalRun, Loss


class SlicedBench(Bench):
    """Small modules for the width methods."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        plan: ChannelPlan,
        ladder: Ladder,
        rule: LocalRule,
        device: torch.device,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(optimizer or SGD())
        self.model, self.layout, self.plan, self.rule, self.device = model.to(device), layout, plan, rule, device
        self.widths = solve_widths(plan, layout, ladder)
        batch_norm = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())
        self.scaled = batch_norm if rule.scaler is None else rule.scaler
        self._desks: dict[int, tuple[Desk, Tensor]] = {}  # by level: a small module, its entries of the buffer vector
        self._kept: dict[int, Tensor] = {}  # coordinates by level, for the map of `_kept_version`
        self._kept_version = -1

    def begin(self, task: ClientTask, loss: Loss) -> None:
        """Take up a task with the client's loss."""
        super().begin(task, loss)
        self._buffers = task.buffers.clone() if len(task.buffers) else task.buffers
        for desk, _ in self._desks.values():
            desk.reset()
        if task.map_version != self._kept_version:
            self._kept.clear()
            self._kept_version = task.map_version

    def _lay_out(self, level: int, source: Tensor) -> tuple[Desk, Tensor | None]:
        desk, entries = self._desk(level)
        torch.index_select(source, 0, self._coordinates(level), out=desk.flat)
        desk.buffers.copy_(self._buffers_of(level)[entries])
        return desk, None

    def _put_back(self, run: LocalRun, state: Tensor) -> None:
        state.index_copy_(0, self._coordinates(run.level), run.flat)
        self._keep_statistics(run)

    def _values(self, run: LocalRun) -> Tensor:
        order = self.task.levels.order
        if order is None:
            return run.flat.clone()
        return run.flat[torch.searchsorted(self._coordinates(run.level), order[: len(run.flat)])]

    def _statistics(self, run: LocalRun) -> Tensor:
        """Where they are kept per width, those of the widths up to the task's."""
        self._keep_statistics(run)
        blocks = self.task.level + 1
        return self._buffers[: blocks * self.layout.buffer_size] if self.rule.norm == "per_width" else self._buffers

    def _keep_statistics(self, run: LocalRun) -> None:
        desk, entries = self._desk(run.level)
        if len(entries):
            self._buffers_of(run.level)[entries] = desk.buffers

    def _buffers_of(self, level: int) -> Tensor:
        """The view of the client's buffers that a level uses."""
        if self.rule.norm != "per_width":
            return self._buffers
        size = self.layout.buffer_size
        return self._buffers[level * size : (level + 1) * size]

    def _coordinates(self, level: int) -> Tensor:
        if level not in self._kept:
            self._kept[level] = torch.nonzero(self.task.levels.levels <= level).view(-1)
        return self._kept[level]

    def _desk(self, level: int) -> tuple[Desk, Tensor]:
        if level not in self._desks:
            width = self.widths[level]
            kept = kept_sets(self.plan, width)
            module = slice_module(self.model, self.plan, kept)
            if self.scaled and width < 1:
                scale_hidden(module, self.plan, 1 / width)
            arrange_for_training(module, self.device)
            entries = _buffer_entries(self.layout, self.plan, kept).to(self.device)
            small = Layout.of(module)
            self._desks[level] = (Desk(self._prepared(module, level), small, self.device), entries)
        return self._desks[level]

    def _prepared(self, module: nn.Module, level: int) -> nn.Module:
        """The small module of a level as it is trained; its parameters keep their names."""
        return module


def _buffer_entries(layout: Layout, plan: ChannelPlan, kept: Mapping[int, Tensor]) -> Tensor:
    """Which entries of the full buffer vector the small module has, in its order."""
    entries = []
    for place in layout.buffers:
        chosen = torch.ones(place.shape, dtype=torch.bool)
        for dim, axis in enumerate(plan.axes[place.name]):
            if axis is not None:
                mask = torch.zeros(plan.groups[axis.group].size, dtype=torch.bool)
                mask[kept[axis.group]] = True
                along = [1] * len(place.shape)
                along[dim] = -1
                chosen &= axis.spread(mask).view(along)
        entries.append(place.start + torch.nonzero(chosen.view(-1)).view(-1))
    return torch.cat(entries) if entries else torch.empty(0, dtype=torch.int64)
