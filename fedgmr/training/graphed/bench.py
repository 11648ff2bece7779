"""Benches whose memory never moves, so that the steps done on them can be captured once and replayed for every task.

What changes from task to task (values, mask, learning rate, the client's classes) is copied into the same places.
Read next: `static_desk.py`, the memory; `graphed.py`, which captures and replays.
"""

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder
from fedgmr.training.dropping import Dropping
from fedgmr.training.graphed.fused import FusedDropping, Ledger
from fedgmr.training.graphed.memory import Fusion, StaticDesk, StaticRun
from fedgmr.training.optimizers import Optimizer
from fedgmr.training.rules import LocalRule
from fedgmr.training.submodel.sliced_bench import SlicedBench
from fedgmr.training.submodel.workspace import Bench, Desk, LocalRun, Loss, MaskedBench


class GraphedBench(Bench):
    """What both benches below share: desks that stay, and runs that can be opened again for a capture."""

    keep_mask: bool
    channels_last: bool
    fusion: Fusion | None = None
    _ledgers: dict[int, Ledger]
    _statics: dict[int, StaticDesk]
    _last: tuple[int, Desk]
    _runs: dict[int, StaticRun]

    @property
    def desk_in_use(self) -> Desk:
        """The desk of the run that was opened last."""
        return self._last[1]

    def key(self, level: int) -> int:
        """Levels with the same key share a desk, and with it what was captured on it."""
        raise NotImplementedError

    def natural(self, level: int) -> bool:
        """Whether values of this level are handed over in natural order instead of level order."""
        return False

    def reopen(self) -> None:
        """A fresh run on the same desk, with fresh state of the optimiser: where captured steps begin."""
        level, desk = self._last
        self._descent = self.optimizer.begin(self.task.model)
        desk.reset()
        self._open = self._static_run(level, desk)

    def _opened(self, level: int, desk: Desk, outside: Tensor | None) -> LocalRun:
        static = self._statics[self.key(level)]
        static.set_rates(self.task.learning_rate, outside, keep_mask=self.keep_mask)
        self._last = (level, desk)
        if level not in self._runs:  # what is captured runs on a fresh one: see `reopen`
            self._runs[level] = self._static_run(level, desk)
        return self._runs[level]

    def _static_run(self, level: int, desk: Desk) -> StaticRun:
        static = self._statics[self.key(level)]
        return StaticRun(
            level=level,
            module=desk.module,
            parameters=desk.parameters,
            places=desk.layout.parameters,
            flat=desk.flat,
            outside=static.outside if self.keep_mask else None,
            learning_rate=static.rate,
            loss=self._loss,
            coordinates=self._coordinates(level),
            descent=self._descent,
            dropping=Dropping() if self.fusion is None else FusedDropping(static.rates),
            rates=static.rates,
            ledger=self._ledgers.get(self.key(level)),
            tf32=self.fusion is not None and self.fusion.tf32,
            outside_views=static.views(static.outside) if self.keep_mask else [None] * len(desk.parameters),
        )


class GraphedMasked(GraphedBench, MaskedBench):
    """One full-size module; a sub-model is the full model with zeros outside."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        device: torch.device,
        optimizer: Optimizer,
        *,
        channels_last: bool,
        keep_mask: bool,
        fusion: Fusion | None = None,
    ) -> None:
        self.fusion, self._ledgers = fusion, {}
        if fusion is not None:
            module, self._ledgers[0] = fusion(module)
        super().__init__(module, layout, device, optimizer)
        self.keep_mask, self.channels_last, self._runs = keep_mask, channels_last, {}
        self.static = StaticDesk(self.desk, channels_last=channels_last)
        self._statics = {0: self.static}
        self._places: dict[int, Tensor] = {}  # by level: where its values lie on the desk, in level order

    def key(self, level: int) -> int:
        """One desk for all levels."""
        return 0

    def natural(self, level: int) -> bool:
        """Whole models, which need no packing then."""
        return self.task.levels.whole(level)

    def begin(self, task: ClientTask, loss: Loss) -> None:
        """Take up a task with the client's loss; the module's other buffers are reset where the steps begin."""
        Bench.begin(self, task, loss)
        if len(task.buffers):
            self.desk.buffers.copy_(task.buffers)

    def _lay_out(self, level: int, source: Tensor) -> tuple[Desk, Tensor | None]:
        self.static.load(source, self.static.order)
        outside = self._outside_of(level)
        if outside is not None:
            self.desk.flat.masked_fill_(outside, 0)
        return self.desk, outside

    def _put_back(self, run: LocalRun, state: Tensor) -> None:
        raise AssertionError("a masked run never changes its level within a task")

    def _values(self, run: LocalRun) -> Tensor:
        levels, inverse = self.task.levels, self.static.inverse
        if self.natural(run.level):
            return run.flat.clone() if inverse is None else run.flat.index_select(0, inverse)
        if inverse is None:
            return levels.pack(run.flat, run.level)
        assert levels.order is not None, "a sub-model that is not the whole model has an order"
        if run.level not in self._places:
            self._places[run.level] = inverse.index_select(0, levels.order[: levels.sizes[run.level]])
        return run.flat.index_select(0, self._places[run.level])

    def _outside_of(self, level: int) -> Tensor | None:
        if self.task.map_version != self._outside_version:
            self._places.clear()
        known = level in self._outside and self.task.map_version == self._outside_version
        outside = super()._outside_of(level)
        if outside is None or self.static.order is None or known:
            return outside
        self._outside[level] = outside.index_select(0, self.static.order)
        return self._outside[level]


class GraphedSliced(GraphedBench, SlicedBench):
    """Small modules for the width methods, one desk per level."""

    keep_mask = False

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        plan: ChannelPlan,
        ladder: Ladder,
        rule: LocalRule,
        device: torch.device,
        optimizer: Optimizer,
        *,
        channels_last: bool,
        fusion: Fusion | None = None,
    ) -> None:
        super().__init__(model, layout, plan, ladder, rule, device, optimizer)
        self.channels_last, self.fusion, self._ledgers = channels_last, fusion, {}
        self._statics, self._runs = {}, {}
        self._packing: dict[int, Tensor] = {}  # by level: where its values lie on the desk, in level order

    def key(self, level: int) -> int:
        """A desk per level."""
        return level

    def _prepared(self, module: nn.Module, level: int) -> nn.Module:
        if self.fusion is None:
            return module
        fused, self._ledgers[level] = self.fusion(module)
        return fused

    def begin(self, task: ClientTask, loss: Loss) -> None:
        """Take up a task with the client's loss."""
        if task.map_version != self._kept_version:
            self._packing.clear()
        super().begin(task, loss)

    def _lay_out(self, level: int, source: Tensor) -> tuple[Desk, Tensor | None]:
        desk, entries = self._desk(level)
        if level not in self._statics:
            self._statics[level] = StaticDesk(desk, channels_last=self.channels_last)
        self._statics[level].load(source, self._coordinates(level))
        if len(entries):
            desk.buffers.copy_(self._buffers_of(level)[entries])
        return desk, None

    def _coordinates(self, level: int) -> Tensor:
        known = level in self._kept
        coordinates = super()._coordinates(level)
        order = self._statics[level].order if level in self._statics else None
        if known or order is None:
            return coordinates
        self._kept[level] = coordinates.index_select(0, order)
        return self._kept[level]

    def _values(self, run: LocalRun) -> Tensor:
        order, inverse = self.task.levels.order, self._statics[run.level].inverse
        if order is None and inverse is None:
            return run.flat.clone()
        if run.level not in self._packing:
            size = len(run.flat)
            at = torch.empty(len(self.task.levels), dtype=torch.int64, device=run.flat.device)
            at[self._coordinates(run.level)] = torch.arange(size, device=run.flat.device)
            self._packing[run.level] = at[:size] if order is None else at.index_select(0, order[:size])
        return run.flat.index_select(0, self._packing[run.level])
