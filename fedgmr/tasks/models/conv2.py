"""Nets of two convolutions and two linear layers: the paper's for FEMNIST (tab:arch, from PruneFL), and a small one."""

import math

from torch import nn

HEAD = "9.weight"  # of the last layer


class SmallNet(nn.Sequential):
    """Two convolutions with pooling and two linear layers; 100,424 parameters."""

    def __init__(self, first: int = 8, second: int = 16, hidden: int = 122, classes: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, first, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * 7 * 7, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )


class Conv2(SmallNet):
    """Conv-2, 6.6M parameters: input 1 x 28 x 28, 62 classes by default."""

    def __init__(self, classes: int = 62) -> None:
        super().__init__(first=32, second=64, hidden=2048, classes=classes)
        for layer in self:
            if isinstance(layer, nn.Linear):  # kaiming uniform, fan out; convolutions and biases as PyTorch has them
                bound = math.sqrt(6 / layer.out_features)
                nn.init.uniform_(layer.weight, -bound, bound)
