"""The paper's nets on made-up samples, and runs of them at preset densities, for `client_step.py` and `paper_round.py`.

The time of a step does not depend on the content of the images. Shapes, batch size, steps and densities are the
paper's. Dropout is left out, so that results can be compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgmr.experiments.assembly import Assembly, assemble, resolve
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.recipe import recipe_from
from fedgmr.tasks.losses import PAD, token_cross_entropy
from fedgmr.tasks.metrics import accuracy
from fedgmr.tasks.models.conv2 import Conv2, SmallNet
from fedgmr.tasks.models.resnet18 import SHORTCUTS, ResNet18
from fedgmr.tasks.models.transformer import Transformer2L
from fedgmr.tasks.models.vgg11 import VGG11
from fedgmr.tasks.task import Task

DENSITIES: Mapping[str, tuple[float, ...]] = {
    "high": (1.0, 0.5, 0.2, 0.1, *[0.05] * 6),
    "dense": (1.0,) * 10,
    "alone": (1.0,),
}
BATCH, STEPS, RATE = 20, 5, 0.05
_SAMPLES = 400
_WORDS, _LENGTH = 10_004, 128


@dataclass(frozen=True, kw_only=True)
class Net:
    """A model and the shape of its inputs."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    more: Mapping[str, Any] | None = None
    adam: bool = False
    batch: int = BATCH
    steps: int = STEPS
    rate: float = RATE

    @property
    def training(self) -> dict[str, Any]:
        """The section of a recipe."""
        optimizer = {"kind": "adam" if self.adam else "sgd"}
        return {"learning_rate": self.rate, "batch_size": self.batch, "steps": self.steps, "optimizer": optimizer}


NETS: Mapping[str, Net] = {
    "conv2": Net(model=Conv2, shape=(1, 28, 28), classes=62),
    "vgg11": Net(model=VGG11, shape=(3, 32, 32), classes=10),
    "resnet18": Net(model=ResNet18, shape=(3, 64, 64), classes=100, more={"keep": (SHORTCUTS,)}),
    "transformer": Net(
        model=lambda: Transformer2L(_WORDS, dropout=0.0),
        shape=(_LENGTH,),
        classes=_WORDS,
        more={"loss": token_cross_entropy, "metric": accuracy(ignore=PAD)},
        adam=True,
        batch=16,
        steps=10,
        rate=0.002,
    ),
    "mnist5k": Net(model=SmallNet, shape=(1, 28, 28), classes=10),
}


def made_up(name: str) -> Task:
    """The net `name` with random samples of its shape."""
    net, draw = NETS[name], torch.Generator().manual_seed(0)
    words = len(net.shape) == 1

    def samples(count: int) -> tuple[Tensor, Tensor]:
        if words:
            tokens = torch.randint(1, net.classes, (count, _LENGTH + 1), generator=draw)
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        pictures = torch.randn(count, *net.shape, generator=draw)
        return pictures, torch.randint(0, net.classes, (count,), generator=draw)

    return Task(
        name=f"made_up_{name}", model=net.model, train=samples(_SAMPLES), test=samples(BATCH), **dict(net.more or {})
    )


def assembled(
    name: str,
    method: str,
    densities: Sequence[float],
    *,
    device: str,
    execution: Mapping[str, Any] | None = None,
    steps: int | None = None,
) -> Assembly[SimulatedFleet]:
    """A synchronous run of the net whose clients hold `densities`; a new level map after every merge.

    `steps`: of each task, None: the net's.
    """
    rules: dict[str, Any] = {"name": method, "coordination": {"kind": "synchronous"}}
    if method == "fedgmr":
        rules |= {"interval": 1, "restoration": None}
    if method == "fedavg":
        densities = [1.0] * len(densities)
    data = {
        "seconds": 1e9,
        "task": f"made_up_{name}",
        "method": rules,
        "fleet": {"name": "high", "clients": len(densities), "densities": list(densities)},
        "training": NETS[name].training | ({} if steps is None else {"steps": steps}),
        "device": device,
        "execution": dict(execution or {}),
    }
    task = made_up(name)
    return assemble(resolve(recipe_from(data), task), task)
