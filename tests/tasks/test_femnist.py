"""FEMNIST: which source is taken, what a stand-in says, and the paper's recipe."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgmr.experiments.assembly import resolve
from fedgmr.recipe import load_recipe
from fedgmr.settings.refusals import SettingError
from fedgmr.tasks import named_task
from fedgmr.tasks.femnist import femnist
from fedgmr.tasks.partition import ByUser, Dirichlet, Pool
from tasks.test_formats import write_leaf
from tasks.test_packed import write_arrays

RECIPES = Path(__file__).parents[2] / "recipes" / "paper"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_leaf(tmp_path / "femnist" / "train" / "a.json", {"a": [1, 2], "b": [3], "c": [61]})
    write_leaf(tmp_path / "femnist" / "test" / "a.json", {"a": [4]})
    write_arrays(tmp_path / "emnist_byclass.npz")
    write_arrays(tmp_path / "mnist_writers.npz", writers=True)
    return tmp_path


def test_the_real_data_comes_first(root: Path) -> None:
    task = femnist(root=str(root))
    assert (task.title, task.stand_in) == ("FEMNIST (Conv-2)", None)
    assert task.train.targets.tolist() == [1, 2, 3, 61]
    assert task.users is not None
    assert task.users.tolist() == [0, 0, 1, 2]
    assert task.layout().size == 6_603_710


def test_what_stands_in_says_so(root: Path) -> None:
    (root / "femnist").rename(root / "elsewhere")
    emnist = femnist(root=str(root))
    assert emnist.title == "EMNIST by class for FEMNIST (Conv-2)"
    assert str(emnist.stand_in).startswith("EMNIST by class stands in for FEMNIST")
    assert emnist.users is None
    writers = femnist(root=str(root), source="mnist_writers")
    assert writers.title == "MNIST by writer for FEMNIST (Conv-2)"
    assert writers.users is not None
    (root / "emnist_byclass.npz").unlink()
    assert femnist(root=str(root)).title == writers.title
    assert emnist.layout().size == writers.layout().size == 6_603_710


def test_inputs_loss_and_gradient(root: Path) -> None:
    task = femnist(root=str(root), source="leaf")
    inputs = task.inputs(task.train.inputs)
    assert inputs.dtype == torch.float32
    assert inputs.unique().tolist() == pytest.approx([0.8])  # LEAF's 0.2, inverted
    model = task.initial_model(0)
    outputs = model(inputs)
    assert outputs.shape == (4, 62)
    task.loss(outputs, task.train.targets).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_partition_by_writer(root: Path) -> None:
    task = femnist(root=str(root))
    assert task.users is not None
    pool = Pool(indices=np.arange(4), labels=None, users=task.users.numpy(), clients=2, seed=0)
    assert [part.tolist() for part in ByUser().deal(pool)] == [[0, 1], [2, 3]]


def test_missing_data_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGMR_DATA", raising=False)
    wanted = r"femnist/train and femnist/test \(the JSON files of LEAF\), or emnist_byclass\.npz \(.*\), or mnist_wri"
    with pytest.raises(
        SettingError, match=rf"needs data and FEDGMR_DATA is not set: set it, or .*root, .* with {wanted}"
    ):
        femnist()
    with pytest.raises(SettingError, match=rf"{tmp_path} has no data for the task femnist: put {wanted}"):
        femnist(root=str(tmp_path))
    with pytest.raises(
        SettingError, match=r"has no data for the task femnist: put emnist_byclass\.npz \([a-z -]*\) there\.$"
    ):
        femnist(root=str(tmp_path), source="emnist")
    with pytest.raises(
        SettingError, match=r"task\.options\.root is '.*nowhere', which is no directory: create it and put"
    ):
        femnist(root=str(tmp_path / "nowhere"))
    monkeypatch.setenv("FEDGMR_DATA", str(tmp_path / "gone"))
    with pytest.raises(SettingError, match=r"FEDGMR_DATA is '.*gone', which is no directory"):
        femnist()
    with pytest.raises(SettingError, match=r"task\.options\.source is 'emnst': did you mean emnist\?"):
        femnist(root=str(tmp_path), source="emnst")
    with pytest.raises(SettingError, match=r"task\.options\.source is 3: choose one of auto, leaf"):
        femnist(root=str(tmp_path), source=3)  # type: ignore[arg-type]
    for number in (2024, True, ["data"]):  # a directory's name that YAML reads as a number, for one
        with pytest.raises(SettingError, match=r"task\.options\.root is .*: give the path of a directory, as a text"):
            femnist(root=number)  # type: ignore[arg-type]


def test_the_environment_tells_where(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGMR_DATA", str(root))
    assert named_task("femnist", {}, seed=0).title == "FEMNIST (Conv-2)"


def test_recipe_has_the_papers_settings(root: Path) -> None:
    recipe = load_recipe(str(RECIPES / "femnist.yaml"))
    assert (recipe.seconds, recipe.method.interval, recipe.network.sizes) == (80_000, 25, "paper")
    assert (recipe.training.learning_rate, recipe.training.batch_size, recipe.training.steps) == (0.25, 20, 5)
    assert recipe.partition == Dirichlet(alpha=0.6, min_samples=100)
    assert "Dirichlet" in recipe.about
    assert load_recipe(str(RECIPES / "femnist.yaml"), ["partition=by_user"]).partition == ByUser()
    short = load_recipe(str(RECIPES / "femnist-short.yaml"))
    assert short.short
    period = resolve(short, femnist(root=str(root))).method.coordination.period
    assert 30 < short.seconds / period <= 40


@pytest.mark.skipif("FEDGMR_DATA" not in os.environ, reason="FEDGMR_DATA is not set")
def test_real_writers_can_be_dealt() -> None:
    task = femnist(source="mnist_writers")
    assert task.users is not None
    pool = Pool(indices=np.arange(60_000), labels=None, users=task.users.numpy(), clients=10, seed=0)
    sizes = [len(part) for part in ByUser(min_samples=100).deal(pool)]
    assert sum(sizes) == 60_000
    assert min(sizes) > 4_000
