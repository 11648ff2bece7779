"""ResNet-18, the paper's ImageNet-100 net (tab:arch): stem, four stages of two basic blocks, 11.2M parameters.

Its norms are batch norms, or group norms of four groups. The 1 x 1 convolutions of the shortcuts are never pruned
(A10): a task that uses this net keeps `SHORTCUTS`.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

SHORTCUTS = "*.downsample.0.weight"
Norm = Literal["batch", "group"]
HeadInit = Literal["default", "fan_in"]
_NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm2d, "group": partial(nn.GroupNorm, 4)}


class ResNet18(nn.Module):
    """Input 3 x any size that is large enough, 100 classes by default."""

    def __init__(self, classes: int = 100, *, norm: Norm = "batch", head_init: HeadInit = "default") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = _NORMS[norm](64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, norm, stride=1)
        self.layer2 = _stage(64, 128, norm, stride=2)
        self.layer3 = _stage(128, 256, norm, stride=2)
        self.layer4 = _stage(256, 512, norm, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if head_init == "fan_in":
            nn.init.kaiming_uniform_(self.fc.weight, a=1.5)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, classes]."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


class _BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, norm: Norm, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = _NORMS[norm](outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = _NORMS[norm](outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), _NORMS[norm](outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """relu(residual + shortcut)."""
        residual = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(residual + self.downsample(x))


def _stage(inputs: int, outputs: int, norm: Norm, *, stride: int) -> nn.Sequential:
    return nn.Sequential(_BasicBlock(inputs, outputs, norm, stride), _BasicBlock(outputs, outputs, norm, 1))
