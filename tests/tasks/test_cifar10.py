"""CIFAR-10: sources, normalisation, and augmentation that belongs to a mini-batch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask
from fedgmr.experiments.assembly import resolve
from fedgmr.recipe import load_recipe
from fedgmr.seeding import derived_seed
from fedgmr.submodels.levels import LevelMap
from fedgmr.tasks.cifar10 import MEAN, STD, cifar10
from fedgmr.tasks.images import black_of, flip_and_crop
from fedgmr.tasks.partition import Dirichlet, SampleOrder
from fedgmr.tasks.task import Task
from fedgmr.training.bench import MaskedBench
from fedgmr.training.local_sgd import LocalTrainer
from fedgmr.training.rules import PlainSGD
from tasks.test_formats import write_batches
from tasks.test_packed import write_sheets

RECIPES = Path(__file__).parents[2] / "recipes" / "paper"


def test_sources(tmp_path: Path) -> None:
    write_sheets(tmp_path / "cifar10.npz")
    packed = cifar10(root=str(tmp_path))
    assert packed.title == "CIFAR-10 in JPEG copies (VGG-11)"
    assert "JPEG" in str(packed.stand_in)
    assert packed.train[0].shape == (11, 3, 32, 32)
    write_batches(tmp_path / "cifar-10-batches-py")
    original = cifar10(root=str(tmp_path))
    assert (original.title, original.stand_in) == ("CIFAR-10 (VGG-11)", None)
    assert len(original.train[0]) == 15
    assert original.train[0].dtype == torch.uint8
    assert cifar10(root=str(tmp_path), source="packed").title == packed.title
    assert original.layout().size == 9_750_922


def test_missing_data_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"put cifar-10-batches-py \(.*\), or cifar10\.npz \(.*\) there, or run `fedgmr dat"
    ):
        cifar10(root=str(tmp_path))


def test_normalisation_and_black(tmp_path: Path) -> None:
    write_batches(tmp_path / "cifar-10-batches-py")
    task = cifar10(root=str(tmp_path))
    pixels = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    pixels[0, 1] = 255
    inputs = task.inputs(pixels)
    assert inputs[0, :, 0, 0].tolist() == pytest.approx([-0.4914 / 0.2023, (1 - 0.4822) / 0.1994, -0.4465 / 0.2010])
    assert black_of(MEAN, STD)[0] == pytest.approx(float(inputs[0, 0, 0, 0]))
    assert pixels.max() == 255, "what is stored stays as it is"


def crops(image: Tensor, pad: int, black: Tensor) -> list[Tensor]:
    """All that flipping and cropping can make of one image, spelt out."""
    channels, height, width = image.shape
    made = []
    for flipped in (image, image.flip(2)):
        padded = black.view(-1, 1, 1).expand(channels, height + 2 * pad, width + 2 * pad).clone()
        padded[:, pad : pad + height, pad : pad + width] = flipped
        made += [
            padded[:, top : top + height, left : left + width]
            for top in range(2 * pad + 1)
            for left in range(2 * pad + 1)
        ]
    return made


def test_augmentation_makes_every_crop_and_nothing_else() -> None:
    image = torch.arange(2 * 5 * 4.0).view(2, 5, 4)
    black = torch.tensor([-1.0, -2.0])
    possible = crops(image, 2, black)
    made = flip_and_crop(2, black.tolist())(image.repeat(2000, 1, 1, 1), torch.Generator().manual_seed(0))
    matches = torch.stack([(made == one).all(-1).all(-1).all(-1) for one in possible])
    assert matches.any(0).all()
    counts = matches.sum(1)
    assert len(possible) == 50
    assert counts.min() > 15  # 40 each on average
    assert counts.max() < 70


def test_augmentation_is_the_same_for_the_same_generator() -> None:
    augment, images = flip_and_crop(4, (0.0, 0.0, 0.0)), torch.randn(20, 3, 32, 32)
    first, again, other = (augment(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class Seen(nn.Module):
    """Remembers its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x.clone())
        return x * self.weight


def trained_on(steps: int, first: int, client: int, *, augmented: bool = True) -> list[Tensor]:
    """The inputs that a client's mini-batches number `first` and on are trained on; the data is 0, 1, 2, ..."""
    data = torch.arange(24.0).view(12, 2), torch.zeros(12, dtype=torch.int64)
    task = Task(
        name="seen",
        model=Seen,
        train=data,
        test=data,
        prepare=lambda x: x * 100,
        augment=(lambda x, draws: x + torch.rand(len(x), 1, generator=draws)) if augmented else None,
    )
    module, layout = Seen(), task.layout()
    order = SampleOrder([np.arange(6), np.arange(6)], seed=3, batch_size=4)
    bench = MaskedBench(module, layout, torch.device("cpu"))
    trainer = LocalTrainer(task, bench, order, steps=steps, seed=3, rule=PlainSGD())
    levels = LevelMap(torch.zeros(1, dtype=torch.uint8), (1.0,))
    work = ClientTask(
        client=client,
        version=0,
        level=0,
        levels=levels,
        map_version=0,
        model=torch.ones(1),
        buffers=torch.empty(0),
        learning_rate=0.1,
        first_batch=first,
    )
    trainer.train(work)
    return module.inputs


def test_training_augments_prepared_inputs_by_client_and_mini_batch() -> None:
    whole, later = trained_on(3, 5, 0), trained_on(1, 7, 0)
    assert torch.equal(whole[2], later[0]), "a mini-batch is augmented the same however training is cut"
    plain = trained_on(3, 5, 0, augmented=False)
    draws = torch.Generator().manual_seed(derived_seed(3, "augment", 0, 6))
    assert torch.equal(whole[1], plain[1] + torch.rand(4, 1, generator=draws))
    other = [a - b for a, b in zip(trained_on(3, 5, 1), trained_on(3, 5, 1, augmented=False), strict=True)]
    assert not torch.allclose(whole[0] - plain[0], other[0])


def test_recipe_has_the_papers_settings(tmp_path: Path) -> None:
    recipe = load_recipe(str(RECIPES / "cifar10.yaml"))
    assert (recipe.seconds, recipe.method.interval, recipe.network.sizes) == (250_000, 50, "paper")
    assert (recipe.training.learning_rate, recipe.training.batch_size, recipe.training.steps) == (0.25, 20, 5)
    assert recipe.partition == Dirichlet(alpha=0.6, min_samples=100)
    short = load_recipe(str(RECIPES / "cifar10-short.yaml"))
    assert short.short
    write_batches(tmp_path / "cifar-10-batches-py")
    period = resolve(replace(short, device="cpu"), cifar10(root=str(tmp_path))).method.coordination.period
    assert 30 < short.seconds / period <= 40
