"""Convolutions without the channels that nobody reads.

In a small unstructured sub-model a linear layer often keeps no weight at all from some channels of the convolution
before it. The content of such a channel changes nothing, and its own weights have gradient zero: the convolution is
computed without it, forward and backward. Read next: `cut.py`, which says which channels are left.
"""

import torch
from torch import Tensor, nn

from fedgmr.training.chains import Chain

# Layers in between that keep channels apart, draw nothing and remember nothing.
_APART = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d)
# As many channels fill a vector register, and few different widths mean few kernels to make.
_TOGETHER = 16


class LiveConv2d(nn.Conv2d):
    """A convolution that computes all its output channels, or for a while only `live` ones."""

    live: Tensor | None

    @classmethod
    def before(cls, chain: Chain, layer: nn.Linear) -> "LiveConv2d | None":
        """Take over the convolution whose channels `layer`, and nobody else, reads one after the other.

        It computes all channels as before. None where there is no such convolution.
        """
        layers = [each for _, each in chain.layers]
        if layers.count(layer) != 1 or layers.index(layer) < 2:
            return None
        flatten, *before = reversed(layers[: layers.index(layer)])
        source = next((earlier for earlier in before if not isinstance(earlier, _APART)), None)
        if type(flatten) is not nn.Flatten or (flatten.start_dim, flatten.end_dim) != (1, -1):
            return None
        if type(source) is not nn.Conv2d or source.groups > 1 or layers.count(source) > 1:
            return None
        if layer.in_features % source.out_channels:
            return None
        source.__class__ = cls
        assert isinstance(source, cls)
        source.live = None
        return source

    @staticmethod
    def live_channels(used: Tensor) -> Tensor | None:
        """Int32, ascending: the channels that are `used` (bool), with some others up to a full register; None: all."""
        count = -(-max(1, int(used.sum())) // _TOGETHER) * _TOGETHER
        if count >= len(used):
            return None
        return used.to(torch.uint8).argsort(descending=True, stable=True)[:count].sort().values.int()

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the convolution, with the live channels only."""
        if self.live is None:
            return super().forward(inputs)
        bias = None if self.bias is None else self.bias.index_select(0, self.live)
        found: Tensor = self._conv_forward(inputs, self.weight.index_select(0, self.live), bias)
        return found
