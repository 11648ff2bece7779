"""Image nets that are plain chains, arranged so that a machine works through them faster; they compute the same.

Pooling and ReLU are several times faster when the channels of a pixel lie side by side, and ReLU has a quarter of the
work behind 2 x 2 pooling. Maximum and ReLU can change places: values and gradients stay the same bit for bit. Only
chains of PyTorch's own layers are touched, because a model's own code may count on the usual order in memory.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

# Output channels of a convolution up to which the whole chain gains in training: a step of a 105k-parameter net takes
# a quarter less, of Conv-2 a tenth less, but of VGG-11 a tenth more (one thread).
_WIDEST = 64


def arrange_chain(module: nn.Module) -> bool:
    """Arrange `module` if it is a plain chain with convolutions; whether it was."""
    if not is_chain(module) or not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return False
    for part in module.modules():
        if isinstance(part, nn.Sequential):
            _pool_first(part)
    module.register_forward_pre_hook(_with_channels_last)
    return True


def arrange_for_training(module: nn.Module, device: torch.device) -> None:
    """Arrange `module` if it is to be trained on a CPU and gains by it."""
    layers = list(module.modules())
    widest = max((layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)), default=0)
    # Batch statistics are added up in another order then, and what follows makes much of the last bits.
    normed = any(isinstance(layer, nn.modules.batchnorm._NormBase) for layer in layers)
    if device.type == "cpu" and widest <= _WIDEST and not normed:
        arrange_chain(module)


def halves(layer: nn.Module | None) -> bool:
    """Whether a layer takes the maximum of 2 x 2 fields."""
    if not isinstance(layer, nn.MaxPool2d) or layer.return_indices or layer.ceil_mode:
        return False
    given = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return all(value in (wanted, (wanted, wanted)) for value, wanted in zip(given, (2, 2, 0, 1), strict=True))


def channels_last(images: Tensor) -> Tensor:
    """The same [n, channels, height, width] with the channels of a pixel side by side."""
    if images.shape[1] > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # One channel lies both ways. Layers go by the strides, and contiguous() would leave them as they are.
    height, width = images.shape[2:]
    return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))


def is_chain(module: nn.Module) -> bool:
    """Whether `module` is nothing but PyTorch's own layers one after the other."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return False
    for child in module.children():
        known = type(child).__module__.startswith("torch.nn.modules.") or isinstance(child, nn.Dropout)
        leaf = known and not any(True for _ in child.children())
        if not leaf and not is_chain(child):
            return False
    return True


def _pool_first(chain: nn.Sequential) -> None:
    """ReLU behind pooling instead of before."""
    layers = list(chain)
    for i, (first, second) in enumerate(pairwise(layers)):
        if isinstance(first, nn.ReLU) and isinstance(second, nn.MaxPool2d) and not second.return_indices:
            chain[i], chain[i + 1] = second, first


def _with_channels_last(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    first = inputs[0]
    if isinstance(first, Tensor) and first.dim() == 4 and first.is_floating_point():
        return (channels_last(first), *inputs[1:])
    return inputs
