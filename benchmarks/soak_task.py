"""The task of the soak: it learns in milliseconds, and takes as long as the node is told to (`task.pause`)."""

import random
import time

import torch
from torch import nn

from fedgmr import Task
from fedgmr.seeding import generator


def paced(seed: int = 0, pause: float = 0.0) -> Task:
    """Sixteen numbers to four classes; makes a node wait, by chance up to twice `pause` seconds."""
    time.sleep(random.uniform(0.0, 2.0 * pause))
    draw = generator(seed, "soak")
    centres = draw.standard_normal((4, 16))

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = draw.integers(0, 4, count)
        return torch.from_numpy(centres[labels] + draw.standard_normal((count, 16))).float(), torch.from_numpy(labels)

    return Task(name="paced", model=_net, train=samples(2000), test=samples(200), holdout=0.1)


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
