"""The recipes of the paper: its settings for every task (section 3.7), fleets and splits as overrides, short ones."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgmr.experiments.assembly import resolve
from fedgmr.methods import BUILT_IN
from fedgmr.recipe import Recipe, load_recipe
from fedgmr.server.restoration import Saturation
from fedgmr.settings.schema import plain
from fedgmr.staleness import Polynomial
from fedgmr.tasks.imagenet100 import SHORTCUTS
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.models.resnet18 import ResNet18
from fedgmr.tasks.models.transformer import Transformer2L
from fedgmr.tasks.models.vgg11 import VGG11
from fedgmr.tasks.partition import IID, ByUser, Dirichlet
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.task import Task
from fedgmr.training.optimizers import SGD, Adam

RECIPES = Path(__file__).parents[2] / "recipes" / "paper"
TASKS = ("femnist", "cifar10", "imagenet100", "stackoverflow")
# Tab. hyper-parameters: seconds, interval, batch, steps, and the rates at some ticks.
PAPER = {
    "femnist": (80_000, 25, 20, 5, {0: 0.25, 9_000: 0.25}),
    "cifar10": (250_000, 50, 20, 5, {0: 0.25, 9_000: 0.25}),
    "imagenet100": (280_000, 50, 20, 5, {0: 0.05, 5_000: 0.05 * 0.5**0.5, 10_000: 0.025, 20_000: 0.0125}),
    "stackoverflow": (80_000, 25, 16, 10, {0: 2e-3, 2_499: 2e-3, 2_500: 1e-3, 5_000: 5e-4, 7_500: 2.5e-4}),
}
# Section 5.3: seconds of a synchronous round with IMS.
ROUND = {"femnist": 8.6, "cifar10": 12.5, "imagenet100": 14.5, "stackoverflow": 5.4}
NETS = {
    "femnist": (Conv2, ()),
    "cifar10": (VGG11, ()),
    "imagenet100": (ResNet18, (SHORTCUTS,)),
    "stackoverflow": (Transformer2L, ()),
}


def recipe(name: str, *overrides: str) -> Recipe:
    return load_recipe(str(RECIPES / f"{name}.yaml"), overrides)


def empty_task(name: str) -> Task:
    """The task's net, without its data."""
    net, keep = NETS[name]
    samples = Samples(torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    return Task(name=name, model=net, train=samples, test=samples, keep=keep)


@pytest.mark.parametrize("name", TASKS)
def test_the_papers_settings(name: str) -> None:
    made = recipe(name)
    seconds, interval, batch, steps, rates = PAPER[name]
    assert made.task.name == name
    assert (made.seconds, made.short, made.fleet.name, made.fleet.clients) == (seconds, False, "high", None)
    assert made.method.name == "fedgmr"
    assert made.method.interval == interval
    assert made.method.restoration == Saturation(patience=5)
    assert made.method.staleness == Polynomial(alpha=0.5)
    assert (made.training.batch_size, made.training.steps) == (batch, steps)
    assert [made.training.rate(tick) for tick in rates] == pytest.approx(list(rates.values()))
    assert made.training.optimizer == (Adam() if name == "stackoverflow" else SGD())
    expected = ByUser() if name == "stackoverflow" else Dirichlet(alpha=0.6, min_samples=100)
    assert made.partition == expected
    assert made.network.sizes == ("indexed" if name == "stackoverflow" else "paper")
    assert (made.evaluation.test_samples, made.evaluation.validation_samples) == (None, None)


@pytest.mark.parametrize("name", TASKS)
def test_the_period(name: str) -> None:
    period = resolve(replace(recipe(name), device="cpu"), empty_task(name)).method.coordination.period
    assert period == pytest.approx(1.1 * ROUND[name], rel=0.01)


@pytest.mark.parametrize("name", TASKS)
def test_fleets_and_splits_are_overrides(name: str) -> None:
    for fleet in ("high", "medium", "low"):
        made = recipe(name, f"fleet={fleet}")
        assert (made.fleet.name, made.seconds) == (fleet, PAPER[name][0])
    assert recipe(name, "partition=iid").partition == IID()
    assert recipe(name, "partition=by_user").partition == ByUser()
    for method in (*BUILT_IN, "heterofl+aux", "fjord+aux+gmr"):
        assert recipe(name, f"method={method}").method.interval == PAPER[name][1]


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from differences(one.get(key), other.get(key), f"{path}.{key}" if path else key)
    elif one != other:
        yield path


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("method", ["fedgmr", "fedavg", "fedasync", "fjord", "fiarse+aux+gmr", "fedgmr_without_buffer"])
def test_short_recipes_differ_in_how_much_is_done_only(name: str, method: str) -> None:
    short, paper = recipe(f"{name}-short", f"method={method}"), recipe(name, f"method={method}")
    assert short.short
    allowed = {"name", "about", "short", "seconds", "method.interval", "method.restoration.patience"}
    allowed |= {"training.steps", "training.batch_size", "evaluation.test_samples", "evaluation.validation_samples"}
    assert set(differences(plain(short), plain(paper))) <= allowed
    period = resolve(replace(recipe(name), device="cpu"), empty_task(name)).method.coordination.period
    assert 38 < short.seconds / period <= 40
    if short.evaluation.test_samples is not None:
        assert f"{short.evaluation.test_samples:,} test samples" in short.about
    if short.training.steps != paper.training.steps:
        assert f"{short.training.steps} local steps" in short.about
