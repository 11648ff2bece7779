from pathlib import Path

import numpy as np
import pytest
import torch

from fedgmr.paper.grid import Setting, paper_layout, recipe_for
from fedgmr.tasks import cifar10, femnist, imagenet100, stackoverflow
from fedgmr.tasks.formats.arrays import Images
from fedgmr.tasks.formats.packed import ImageArrays, ImageSheets
from fedgmr.tasks.sources import Source

NONIID = Setting(task="femnist", heterogeneity="medium", split="noniid")


def test_writers_are_dealt_where_the_data_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGMR_DATA", str(tmp_path))
    assert recipe_for(NONIID, "fedgmr").partition.kind == "dirichlet"
    (tmp_path / "emnist_byclass.npz").touch()
    assert recipe_for(NONIID, "fedgmr").partition.kind == "dirichlet"
    (tmp_path / "femnist" / "train").mkdir(parents=True)
    assert recipe_for(NONIID, "fedgmr").partition.kind == "by_user"
    assert recipe_for(NONIID, "fedgmr", overrides=["task.options.source=emnist"]).partition.kind == "dirichlet"


def test_overrides_come_last_and_seeds_count_from_the_recipe() -> None:
    recipe = recipe_for(NONIID, "fedgmr/patience=7", seed=2, overrides=["seed=3", "fleet=low", "seconds=10"])
    assert (recipe.seed, recipe.fleet.name, recipe.seconds) == (5, "low", 10)
    assert recipe.method.restoration is not None
    assert getattr(recipe.method.restoration, "patience", None) == 7


def test_layouts_are_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    images = (np.zeros((2, 28, 28), np.uint8), np.zeros(2, np.int64))
    read = Images(train=images, test=images)
    words = (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long))
    for packed in (ImageArrays, ImageSheets):
        monkeypatch.setattr(packed, "read", lambda *_: read)
    monkeypatch.setattr(stackoverflow, "_samples", lambda *_: (words, words, torch.zeros(2, dtype=torch.long)))
    monkeypatch.setattr(Source, "find", lambda name, sources, *_: (sources[1], Path()))
    for module in (femnist, cifar10, imagenet100, stackoverflow):
        name = module.__name__.rpartition(".")[2]
        assert getattr(module, name)().layout() == paper_layout(name)
