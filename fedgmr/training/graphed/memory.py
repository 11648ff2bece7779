"""A workspace whose memory never moves: what a captured CUDA graph reads and writes.

Everything that changes from task to task (values, mask, learning rate, momentum) is copied into the same places. For
plain SGD the learning rate and the mask are one vector, the rate inside the sub-model and zero outside: a step is
w - rates·g and needs no mask. Read next: `slot.py`, which captures and replays.
"""

import torch
from torch import Tensor

from fedgmr.training.graphed.fused import FusedDropping
from fedgmr.training.optimizers import Optimizer
from fedgmr.training.submodel.cut import BitMask, Cut, Cutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.workspace import SubModel, Workspace
from fedgmr.training.thresholds import Dropping


class _Rates:
    """The learning rate, the mask and the velocity of one module's tasks, in memory that stays."""

    def __init__(self, module: FlatModule, *, velocity: bool) -> None:
        flat = module.flat
        self.velocity = torch.zeros_like(flat) if velocity else None
        self.flat_rates = torch.zeros_like(flat)
        self.rates = module.views(self.flat_rates)
        self.rate = torch.zeros((), dtype=flat.dtype, device=flat.device)
        self.outside = torch.zeros(flat.shape, dtype=torch.bool, device=flat.device)
        self._filled: float | None = None  # the rate everywhere, where nothing is outside

    def set(self, rate: float, outside: Tensor | None, *, keep_mask: bool) -> None:
        """Take the learning rate and the mask of a task."""
        self.rate.fill_(rate)
        if outside is not None:
            self.flat_rates.fill_(rate).masked_fill_(outside, 0)
            self._filled = None
        elif self._filled != rate:
            self.flat_rates.fill_(rate)
            self._filled = rate
        if keep_mask:
            self.outside.zero_() if outside is None else self.outside.copy_(outside)


class StaticWorkspace(Workspace):
    """A workspace for captured steps."""

    def __init__(self, cutter: Cutter, optimizer: Optimizer, *, needs_mask: bool, fused: bool) -> None:
        """`needs_mask`: the rule looks at the mask; `fused`: thresholds are applied by the kernels."""
        super().__init__(cutter, optimizer)
        self._keep_mask = needs_mask or not optimizer.plain
        self._dropping = FusedDropping() if fused and optimizer.plain else Dropping()
        self._rates: dict[FlatModule, _Rates] = {}

    @property
    def opened(self) -> SubModel:
        """The sub-model that was opened last."""
        assert self._opened is not None
        return self._opened

    def reopen(self) -> None:
        """Open the same sub-model again, with a new state of the optimiser: captured steps begin here."""
        self._descent = self.optimizer.begin(self.task.model)
        self.opened.cut.module.reset()
        self._opened = self._static_submodel(self.opened.cut)

    def _reset(self, module: FlatModule) -> None:
        """Leave it to the captured steps."""

    def _submodel(self, cut: Cut, mask: BitMask | None) -> SubModel:
        if cut.module not in self._rates:
            self._rates[cut.module] = _Rates(cut.module, velocity=self._moments is not None)
        if self._moments is not None:
            self._moments.of(cut, room=self._rates[cut.module].velocity)
        self._rates[cut.module].set(self.task.learning_rate, cut.outside, keep_mask=self._keep_mask)
        return self._static_submodel(cut)

    def _static_submodel(self, cut: Cut) -> SubModel:
        memory = self._rates[cut.module]
        return SubModel(
            cut=cut,
            learning_rate=memory.rate,
            loss=self._loss,
            descent=self._descent,
            outside=memory.outside if self._keep_mask else None,
            rates=memory.rates if self.optimizer.plain else None,
            velocity=memory.velocity,
            dropping=self._dropping,
        )
