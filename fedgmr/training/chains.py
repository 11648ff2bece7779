"""Chains: nets that are nothing but PyTorch's own layers one after the other, which can be rearranged or taken apart.

Pooling and ReLU are several times faster when the channels of a pixel lie side by side, and ReLU has a quarter of the
work behind 2 x 2 pooling. Maximum and ReLU can change places: values and gradients stay the same bit for bit. Only
chains are touched, because a model's own code may count on the usual order in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

# Output channels of a convolution up to which the whole chain gains in training: a step of a 105k-parameter net takes
# a quarter less, of Conv-2 a tenth less, but of VGG-11 a tenth more (one thread).
_WIDEST = 64


@dataclass(frozen=True, eq=False)
class Chain:
    """A plain chain: the module, and its layers by name in the order they are called."""

    module: nn.Sequential
    layers: Sequence[tuple[str, nn.Module]]  # a layer that is called twice stands here twice

    @classmethod
    def of(cls, module: nn.Module) -> "Chain | None":
        """Read `module` as a chain; None where it is not one."""
        if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
            return None
        layers: list[tuple[str, nn.Module]] = []
        for name, child in module._modules.items():
            assert child is not None
            if isinstance(child, nn.Sequential):
                inner = cls.of(child)
                if inner is None:
                    return None
                layers += [(f"{name}.{rest}", layer) for rest, layer in inner.layers]
                continue
            known = type(child).__module__.startswith("torch.nn.modules.") or isinstance(child, nn.Dropout)
            if not known or any(True for _ in child.children()):
                return None
            layers.append((name, child))
        return cls(module, layers)

    def arrange(self) -> None:
        """Arrange a chain with convolutions so that a machine works through it faster; it computes the same."""
        if not any(isinstance(layer, nn.Conv2d) for _, layer in self.layers):
            return
        for part in self.module.modules():
            if isinstance(part, nn.Sequential):
                _pool_first(part)
        self.module.register_forward_pre_hook(_with_channels_last)

    def arrange_for_training(self) -> None:
        """Arrange the chain if training it on a CPU gains by it."""
        widest = max((layer.out_channels for _, layer in self.layers if isinstance(layer, nn.Conv2d)), default=0)
        # Batch statistics are added up in another order then, and later layers make much of the last bits.
        normed = any(isinstance(layer, nn.modules.batchnorm._NormBase) for _, layer in self.layers)
        if widest <= _WIDEST and not normed:
            self.arrange()

    @staticmethod
    def halves(layer: nn.Module | None) -> bool:
        """Whether a layer takes the maximum of 2 x 2 fields."""
        if not isinstance(layer, nn.MaxPool2d) or layer.return_indices or layer.ceil_mode:
            return False
        given = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return all(value in (wanted, (wanted, wanted)) for value, wanted in zip(given, (2, 2, 0, 1), strict=True))


def _pool_first(chain: nn.Sequential) -> None:
    """Put ReLU behind pooling instead of before it."""
    layers = list(chain)
    for i, (first, second) in enumerate(pairwise(layers)):
        if isinstance(first, nn.ReLU) and isinstance(second, nn.MaxPool2d) and not second.return_indices:
            chain[i], chain[i + 1] = second, first


def _with_channels_last(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hand images on with the channels of a pixel side by side."""
    return (channels_last(inputs[0]), *inputs[1:]) if inputs else inputs  # none: given by name


def channels_last(images: Any) -> Any:
    """Images [n, channels, height, width] with the channels of a pixel side by side; anything else as it is."""
    if not isinstance(images, Tensor) or images.dim() != 4 or not images.is_floating_point():
        return images
    if images.shape[1] > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # One channel lies both ways. Layers go by the strides, and contiguous() would leave them as they are.
    height, width = images.shape[2:]
    return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))
