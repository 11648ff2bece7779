"""Convolutions without dead channels: found by hand, and the updates of the masked model."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedgmr.submodels.levels import LevelMap
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.task import Task
from fedgmr.training.chains import Chain
from fedgmr.training.optimizers import SGD, Adam, Optimizer
from fedgmr.training.sparse.channels import LiveConv2d

from .test_cut import (
    LADDER,
    RULES,
    SEED,
    close,
    images,
    job_of,
    masked_space,
    sparse_space,
    train,
)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 40, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(640, 12), nn.Linear(12, 5)
    ).double()


def task_of_net() -> Task:
    return Task(name="t", model=net, train=images(), test=images(5))


def levels_without(task: Task, dead: slice) -> LevelMap:
    """A map whose two smaller levels keep nothing of what the linear layer has for the channels `dead`."""
    layout = task.layout()
    scores = 1.5 + torch.sin(torch.arange(layout.size) * 1.7)
    place = next(place for place in layout.parameters if place.name == "4.weight")
    scores[place.start : place.stop].view(12, 40, 16)[:, dead] *= 1e-6
    return LevelMap.from_scores(scores, LADDER, layout.always)


def before(model: nn.Module, layer: nn.Module) -> LiveConv2d | None:
    chain = Chain.of(model)
    assert chain is not None
    assert isinstance(layer, nn.Linear)
    return LiveConv2d.before(chain, layer)


def test_the_convolution_that_a_linear_layer_reads() -> None:
    model = Conv2()
    assert before(model, model[9]) is None, "it reads a linear layer"
    assert before(model, model[7]) is model[3]
    assert isinstance(model[3], LiveConv2d)
    inner = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    nested = nn.Sequential(inner, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 2))
    assert before(nested, nested[3]) is inner[0]


@pytest.mark.parametrize(
    "between",
    [
        [nn.BatchNorm2d(4), nn.Flatten()],  # it keeps statistics of every channel
        [nn.Dropout(0.5), nn.Flatten()],  # it would draw other numbers
        [nn.Softmax2d(), nn.Flatten()],  # every channel reads every other
        [nn.Flatten(2), nn.Flatten()],
        [nn.ReLU()],
    ],
)
def test_no_convolution_that_it_reads_alone(between: list[nn.Module]) -> None:
    layer = nn.Linear(36, 2)
    assert before(nn.Sequential(nn.Conv2d(1, 4, 3), *between, layer), layer) is None


def test_a_convolution_called_twice_stays_as_it_is() -> None:
    twice, layer = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(36, 2)
    assert before(nn.Sequential(twice, twice, nn.Flatten(), layer), layer) is None
    grouped = nn.Conv2d(4, 4, 3, groups=2)
    assert before(nn.Sequential(grouped, nn.Flatten(), layer), layer) is None


def used(count: int, *channels: int) -> Tensor:
    mask = torch.zeros(count, dtype=torch.bool)
    mask[list(channels)] = True
    return mask


def test_live_channels_fill_registers() -> None:
    found = LiveConv2d.live_channels(used(40, 39, 17, 2))
    assert found is not None
    assert found.tolist() == [*range(14), 17, 39]
    seventeen = LiveConv2d.live_channels(used(40, *range(20, 37)))
    assert seventeen is not None
    assert len(seventeen) == 32
    assert set(range(20, 37)) < set(seventeen.tolist())
    assert LiveConv2d.live_channels(used(40, *range(33))) is None, "48 were more than there are"
    assert LiveConv2d.live_channels(used(16, 3)) is None


@pytest.mark.parametrize("optimizer", [SGD(), Adam()])
@pytest.mark.parametrize("rule", RULES)
def test_updates_of_the_masked_model(rule: str, optimizer: Optimizer) -> None:
    task = task_of_net()
    space, oracle = sparse_space(task, optimizer), masked_space(task, optimizer)
    convolution = space.cutter.module.module[0]  # type: ignore[attr-defined]
    assert isinstance(convolution, LiveConv2d)
    job = replace(job_of(task, 0), levels=levels_without(task, slice(3, 30)), learning_rate=0.02)
    for level, width in ((0, 16), (2, None), (1, 16)):  # one workspace for all, with and without dead channels
        found = train(task, space, replace(job, level=level), RULES[rule])
        close(found, train(task, oracle, replace(job, level=level), RULES[rule]), 1e-12)
        assert (None if convolution.live is None else len(convolution.live)) == width


def test_it_computes_fewer_channels_and_their_gradients() -> None:
    layer = LiveConv2d(2, 20, 3)
    layer.live = None
    pictures = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(SEED))
    whole = layer(pictures)
    layer.live = torch.tensor([1, 5, 6], dtype=torch.int32)
    found = layer(pictures)
    torch.testing.assert_close(found, whole[:, [1, 5, 6]])
    of_weight, of_bias = torch.autograd.grad(found.square().sum(), [layer.weight, layer.bias])  # type: ignore[list-item]
    wanted, _ = torch.autograd.grad(whole[:, [1, 5, 6]].square().sum(), [layer.weight, layer.bias])  # type: ignore[list-item]
    torch.testing.assert_close(of_weight, wanted)
    assert of_bias.nonzero().flatten().tolist() == [1, 5, 6]
