"""Sliced cuts: a client at a small width trains the physically small network, not a masked full one.

There is one small module per level. Channels keep their order, so the small module's parameters are the kept
coordinates in ascending order, whichever channels they are. HeteroFL's scaler sits behind the hidden layers of the
small modules. Read next: `fedgmr/submodels/channels/slicing.py`, which makes the modules.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.channels.slicing import slice_module
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder, LevelMap
from fedgmr.submodels.widths import WidthRule, kept_mask, levels_at, widths_for
from fedgmr.training.chains import Chain
from fedgmr.training.submodel.cut import Cut
from fedgmr.training.submodel.flat_module import FlatModule

Prepare = Callable[[nn.Module], nn.Module]


def scales(model: nn.Module, scaler: bool | None) -> bool:
    """Whether hidden activations are divided by the width in training; where a rule leaves it open, with batch norm."""
    if scaler is not None:
        return scaler
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())


class SlicedCutter:
    """Small modules for the width methods."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        plan: ChannelPlan,
        ladder: Ladder,
        device: torch.device,
        *,
        widths: WidthRule = "solved",
        scaler: bool | None = False,
        per_width: bool = False,
        channels_last: bool = False,
        prepare: Prepare | None = None,
    ) -> None:
        """Slice `model`, which stays as it is, to small modules on `device` as its levels are asked for.

        `widths` is how a density becomes a width. With `scaler` hidden activations are divided by the width in
        training; None: where the model has batch norm. With `per_width` a client's buffers are one block per level, not
        one for all. With `channels_last` convolution weights lie so. `prepare` changes a small module before it is
        used; parameters keep their names.
        """
        self.model, self.layout, self.plan, self.device = model.to(device), layout, plan, device
        self.widths = widths_for(plan, layout, ladder, widths)
        self.scaled = scales(model, scaler)
        self.per_width, self.channels_last, self.prepare = per_width, channels_last, prepare
        self._modules: dict[int, tuple[FlatModule, Tensor]] = {}  # by level, with its entries of the client's buffers

    def cut(self, levels: LevelMap, level: int) -> Cut:
        """Make the cut of a level."""
        module, entries = self._module(level)
        kept = torch.nonzero(levels.levels <= level).view(-1)
        coordinates = kept if module.order is None else kept.index_select(0, module.order)
        return Cut(module=module, levels=levels, level=level, coordinates=coordinates, statistics=entries)

    def key(self, level: int) -> int:
        """Every level has a module of its own."""
        return level

    def _module(self, level: int) -> tuple[FlatModule, Tensor]:
        if level not in self._modules:
            width = self.widths[level]
            kept = kept_mask(self.plan, width)
            small = slice_module(self.model, self.plan, kept, scale=1 / width if self.scaled else 1.0)
            chain = Chain.of(small)
            if chain is not None and self.device.type == "cpu":
                chain.arrange_for_training()
            layout = Layout.of(small)
            prepared = small if self.prepare is None else self.prepare(small)
            module = FlatModule(prepared, layout, self.device, channels_last=self.channels_last)
            entries = torch.nonzero(levels_at(self.plan, self.layout.buffers, [width]) == 0).view(-1).to(self.device)
            self._modules[level] = module, entries + (level * self.layout.buffer_size if self.per_width else 0)
        return self._modules[level]
