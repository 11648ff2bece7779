"""Convolutions without the channels that nobody reads.

In a small unstructured sub-model a linear layer often keeps no weight at all from some channels of the convolution
before it. What such a channel has in it changes nothing, and its own weights have gradient zero: the convolution is
computed without it, forward and backward. Read next: `sparse_bench.py`, which says which channels are left.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedgmr.training.plain.chains import is_chain

# Layers in between that keep channels apart, draw nothing and remember nothing.
_APART = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d)
# As many channels fill a vector register, and few different widths mean few kernels to make.
_TOGETHER = 16


class LiveConv2d(nn.Conv2d):
    """A convolution that computes all its output channels, or for a while only `live` ones."""

    live: Tensor | None

    @classmethod
    def take_over(cls, layer: nn.Conv2d) -> "LiveConv2d":
        """`layer` itself, of this class from now on; it computes all channels as before."""
        layer.__class__ = cls
        assert isinstance(layer, cls)
        layer.live = None
        return layer

    def forward(self, inputs: Tensor) -> Tensor:
        """The convolution, with the live channels only."""
        if self.live is None:
            return super().forward(inputs)
        bias = None if self.bias is None else self.bias.index_select(0, self.live)
        found: Tensor = self._conv_forward(inputs, self.weight.index_select(0, self.live), bias)
        return found


def convolution_before(module: nn.Module, layer: nn.Linear) -> nn.Conv2d | None:
    """The convolution whose channels `layer` reads one after the other and nobody else; None if it is not so."""
    layers = list(_leaves(module)) if is_chain(module) else []
    if layers.count(layer) != 1 or layers.index(layer) < 2:
        return None
    flatten, *before = reversed(layers[: layers.index(layer)])
    source = next((earlier for earlier in before if not isinstance(earlier, _APART)), None)
    if type(flatten) is not nn.Flatten or (flatten.start_dim, flatten.end_dim) != (1, -1):
        return None
    if type(source) is not nn.Conv2d or source.groups > 1 or layers.count(source) > 1:
        return None
    return source if layer.in_features % source.out_channels == 0 else None


def live_channels(used: Tensor) -> Tensor | None:
    """Int32, ascending: the channels that are `used` (bool), with some others up to a full register; None: all."""
    count = -(-max(1, int(used.sum())) // _TOGETHER) * _TOGETHER
    if count >= len(used):
        return None
    return used.to(torch.uint8).argsort(descending=True, stable=True)[:count].sort().values.int()


def _leaves(chain: nn.Module) -> Iterator[nn.Module]:
    """The layers in the order they are called, one that is called twice twice."""
    for part in chain if isinstance(chain, nn.Sequential) else [chain]:
        yield from _leaves(part) if isinstance(part, nn.Sequential) else [part]
