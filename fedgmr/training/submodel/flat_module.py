"""A module in training whose parameters and buffers are views of two flat vectors.

Convolution weights may lie channels last in the vector, which a GPU works through faster: the vector then has an
order of its own. Read next: `cut.py`, how a sub-model lies in such a vector.
"""

import torch
from torch import Tensor, nn

from fedgmr.submodels.layout import Layout


class FlatModule:
    """A module, its layout, and the vectors that its tensors are views of."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device, *, channels_last: bool = False) -> None:
        """Takes `module` over: its tensors become views of the vectors `flat` and `buffers`."""
        self.module, self.layout = module.to(device).train(), layout
        self.flat = torch.zeros(layout.size, dtype=layout.dtype, device=device)
        self.buffers = torch.zeros(layout.buffer_size, dtype=layout.dtype, device=device)
        layout.bind(module, self.flat, self.buffers)
        named = dict(module.named_parameters())
        self.parameters: list[Tensor] = [named[place.name] for place in layout.parameters]
        # Int32: the layout's coordinate of each entry of `flat`, and the reverse; None where they are the same.
        self.order = self.inverse = None
        self._channels_last = channels_last
        if channels_last:
            entries = torch.arange(layout.size, device=device)
            inverse = torch.cat([view.reshape(-1) for view in self.views(entries)])
            self.order, self.inverse = torch.empty_like(inverse).scatter_(0, inverse, entries).int(), inverse.int()
            for parameter, view in zip(self.parameters, self.views(self.flat), strict=True):
                parameter.data = view
        travelling = {place.name for place in layout.buffers}
        self._counters = [(b, b.clone()) for name, b in module.named_buffers() if name not in travelling]

    def attach(self) -> None:
        """Let the module compute with this vector; there is something to do where several vectors share a module."""

    def views(self, flat: Tensor) -> list[Tensor]:
        """One view per parameter of a vector that is ordered as `flat` is."""
        if not self._channels_last:
            return self.layout.views(flat)
        views = []
        for place in self.layout.parameters:
            part = flat[place.start : place.stop]
            if len(place.shape) == 4:
                outputs, inputs, height, width = place.shape
                views.append(part.view(outputs, height, width, inputs).permute(0, 3, 1, 2))
            else:
                views.append(part.view(place.shape))
        return views

    def reset(self) -> None:
        """Set buffers outside the layout (batch counters, caches) back to their initial values."""
        for buffer, initial in self._counters:
            buffer.copy_(initial)
