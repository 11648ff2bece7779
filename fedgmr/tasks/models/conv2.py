"""Conv-2, the paper's FEMNIST net (tab:arch, from PruneFL): two convolutions, two linear layers, 6.6M parameters."""

import math

from torch import nn


class Conv2(nn.Sequential):
    """Input 1 x 28 x 28, 62 classes by default."""

    def __init__(self, classes: int = 62) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3136, 2048),
            nn.ReLU(),
            nn.Linear(2048, classes),
        )
        for layer in self:
            if isinstance(layer, nn.Linear):  # kaiming uniform, fan out; convolutions and biases as PyTorch has them
                bound = math.sqrt(6 / layer.out_features)
                nn.init.uniform_(layer.weight, -bound, bound)
