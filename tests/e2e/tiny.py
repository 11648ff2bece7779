"""Tasks that train in milliseconds, importable as `e2e.tiny:NAME` where tests/ is on the path.

Every tensor of their nets begins at a multiple of 64 bytes in the flat vector, so that no matrix product can depend on
where its operands lie.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fedgmr import Task, metrics
from fedgmr.seeding import generator

_CLASSES = 4


def dense(seed: int = 0) -> Task:
    """Sixteen numbers to four classes, two linear layers."""
    return _task("dense", seed, (16,), _dense_net)


def normed(seed: int = 0) -> Task:
    """6 x 6 images: a convolution with batch norm, a linear layer."""
    return _task("normed", seed, (1, 6, 6), _normed_net)


def dropped(seed: int = 0) -> Task:
    """The same with dropout, which draws random numbers in every step."""
    return _task("dropped", seed, (1, 6, 6), lambda: _normed_net(dropout=0.25))


def wide(seed: int = 0) -> Task:
    """The first task with a net of 670,000 parameters, 2.7 MB on the wire."""
    return _task("wide", seed, (16,), _wide_net)


def few(seed: int = 0, samples: int = 12) -> Task:
    """The first task with very few samples."""
    return _task("few", seed, (16,), _dense_net, train=samples)


def numbers(seed: int = 0) -> Task:
    """Sixteen numbers to one, measured by its error, of which less is better."""
    inputs = torch.from_numpy(generator(seed, "tiny numbers").standard_normal((336, 16)).astype(np.float32))
    targets = 3 * inputs[:, :4].sum(1, keepdim=True) + 5
    return Task(
        name="numbers",
        model=lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)),
        train=(inputs[:240], targets[:240]),
        test=(inputs[240:], targets[240:]),
        loss=nn.functional.mse_loss,
        metric=metrics.mae("kWh"),
        also=(metrics.rmse("kWh"),),
        holdout=0.1,
    )


def not_a_task() -> str:
    """What a task's function must not return."""
    return "nothing"


def _dense_net() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, _CLASSES))


def _wide_net() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, _CLASSES))


def _normed_net(dropout: float = 0.0) -> nn.Module:
    convolution = (nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*convolution, nn.Dropout(dropout), nn.Linear(144, _CLASSES))


def _task(name: str, seed: int, shape: tuple[int, ...], net: Callable[[], nn.Module], *, train: int = 240) -> Task:
    draw = generator(seed, f"tiny {len(shape)}")
    centres = draw.standard_normal((_CLASSES, *shape))

    def samples(count: int) -> tuple[Tensor, Tensor]:
        labels = draw.integers(0, _CLASSES, count)
        inputs = centres[labels] + 1.5 * draw.standard_normal((count, *shape))
        return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(labels)

    return Task(name=name, model=net, train=samples(train), test=samples(96), holdout=0.1)
