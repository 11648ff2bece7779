"""VGG-11, the paper's CIFAR-10 net (tab:arch, from PruneFL): no batch norm, 9.75M parameters."""

from typing import Literal

from torch import nn

HEAD = "26.weight"  # of the last layer
HeadInit = Literal["fan_out", "fan_in"]

_WIDTHS = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)  # 0 is a pooling layer


class VGG11(nn.Sequential):
    """Input 3 x 32 x 32, 10 classes by default."""

    def __init__(self, classes: int = 10, *, head_init: HeadInit = "fan_out") -> None:
        layers: list[nn.Module] = []
        inputs = 3
        for width in _WIDTHS:
            if width:
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
                inputs = width
            else:
                layers.append(nn.MaxPool2d(2))
        first, second, last = nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, classes)
        super().__init__(*layers, nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)
        # Kaiming uniform: fan in for the hidden layers, slope 1.5 for the last; the rest as PyTorch has it.
        for layer in (first, second):
            nn.init.kaiming_uniform_(layer.weight, a=0)
        nn.init.kaiming_uniform_(last.weight, a=1.5, mode=head_init)
