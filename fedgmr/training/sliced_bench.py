"""Sliced training: a client at a small width trains the physically small network, not a masked full one.

One small module per level; a task's values are gathered into it and scattered back. Channels keep their order, so
the small module's parameters are the kept coordinates in ascending order, whichever channels they are. HeteroFL's
scaler sits behind the hidden layers of the small modules. Read next: `slicing.py`, which cuts the modules.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask
from fedgmr.submodels.channels import ChannelPlan
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder
from fedgmr.submodels.widths import solve_widths
from fedgmr.training.bench import LocalRun, Loss
from fedgmr.training.rules import LocalRule
from fedgmr.training.slicing import kept_sets, scale_hidden, slice_module


class SlicedBench:
    """Small modules for the width methods."""

    task: ClientTask

    def __init__(
        self, model: nn.Module, layout: Layout, plan: ChannelPlan, ladder: Ladder, rule: LocalRule, device: torch.device
    ) -> None:
        self.model, self.layout, self.plan, self.rule = model.to(device), layout, plan, rule
        self.widths = solve_widths(plan, layout, ladder)
        batch_norm = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())
        self.scaled = batch_norm if rule.scaler is None else rule.scaler
        self._desks: dict[int, _Desk] = {}
        self._open: LocalRun | None = None
        self._state: Tensor | None = None  # all the client's values; None while one level was enough
        self._kept: dict[int, Tensor] = {}  # coordinates by level, for the map of `_kept_version`
        self._kept_version = -1

    def begin(self, task: ClientTask, loss: Loss) -> None:
        """Take up a task."""
        self.task, self._loss = task, loss
        self._open = self._state = None
        self._statistics = task.buffers.clone()
        for desk in self._desks.values():
            for counter, start in desk.counters:
                counter.copy_(start)
        if task.map_version != self._kept_version:
            self._kept.clear()
            self._kept_version = task.map_version

    def run(self, level: int | None = None) -> LocalRun:
        """The small network of `level` with the client's current values."""
        level = self.task.level if level is None else level
        if self._open is None or self._open.level != level:
            self._take_back()
            desk = self._desk(level)
            source = self.task.model if self._state is None else self._state
            torch.index_select(source, 0, self._coordinates(level), out=desk.flat)
            desk.buffers.copy_(self._statistics_of(level)[desk.statistics])
            self._open = LocalRun(
                level=level,
                module=desk.module,
                parameters=desk.parameters,
                places=desk.layout.parameters,
                flat=desk.flat,
                outside=None,
                learning_rate=self.task.learning_rate,
                loss=self._loss,
            )
        return self._open

    def finish(self) -> tuple[Tensor, Tensor]:
        """The task's values in level order, and the statistics of the widths it trained."""
        open_run = self.run() if self._open is None else self._open
        if self._state is None and open_run.level == self.task.level:
            order, size = self.task.levels.order, len(open_run.flat)
            values = open_run.flat.clone()
            if order is not None:
                values = values[torch.searchsorted(self._coordinates(self.task.level), order[:size])]
            self._keep_statistics()
        else:
            self._take_back()
            assert self._state is not None
            values = self.task.levels.pack(self._state, self.task.level)
        if self.rule.norm == "per_width":
            return values, self._statistics[: (self.task.level + 1) * self.layout.buffer_size]
        return values, self._statistics

    def _take_back(self) -> None:
        if self._open is None:
            return
        if self._state is None:
            self._state = self.task.model.clone()
        self._state.index_copy_(0, self._coordinates(self._open.level), self._open.flat)
        self._keep_statistics()

    def _keep_statistics(self) -> None:
        assert self._open is not None
        desk = self._desk(self._open.level)
        self._statistics_of(self._open.level)[desk.statistics] = desk.buffers

    def _statistics_of(self, level: int) -> Tensor:
        """The view of the client's statistics that a level uses."""
        size = self.layout.buffer_size
        return (
            self._statistics[level * size : (level + 1) * size] if self.rule.norm == "per_width" else self._statistics
        )

    def _coordinates(self, level: int) -> Tensor:
        if level not in self._kept:
            self._kept[level] = torch.nonzero(self.task.levels.levels <= level).view(-1)
        return self._kept[level]

    def _desk(self, level: int) -> "_Desk":
        if level not in self._desks:
            self._desks[level] = _Desk(self.model, self.layout, self.plan, self.widths[level], scaled=self.scaled)
        return self._desks[level]


class _Desk:
    """The small module of one level and its vectors."""

    def __init__(self, model: nn.Module, layout: Layout, plan: ChannelPlan, width: float, *, scaled: bool) -> None:
        kept = kept_sets(plan, width)
        device = next(model.parameters()).device
        self.module = slice_module(model, plan, kept).train()
        if scaled and width < 1:
            scale_hidden(self.module, plan, 1 / width)
        self.layout = Layout.of(self.module)
        self.flat = torch.zeros(self.layout.size, dtype=layout.dtype, device=device)
        self.buffers = torch.zeros(self.layout.buffer_size, dtype=layout.dtype, device=device)
        self.layout.bind(self.module, self.flat, self.buffers)
        named = dict(self.module.named_parameters())
        self.parameters: list[Tensor] = [named[place.name] for place in self.layout.parameters]
        self.statistics = _buffer_entries(layout, plan, kept).to(device)
        # Counters that no layout carries, such as num_batches_tracked: as at the start for every task.
        carried = {place.name for place in self.layout.buffers}
        self.counters = [(b, b.clone()) for name, b in self.module.named_buffers() if name not in carried]


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
