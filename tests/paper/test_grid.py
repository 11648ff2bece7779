from pathlib import Path

import numpy as np
import pytest
import torch

from fedgmr.paper.grid import Setting, paper_layout, recipe_for
from fedgmr.paper.planning import Request, plan_table
from fedgmr.tasks import cifar10, femnist, imagenet100, stackoverflow
from fedgmr.tasks.formats.arrays import Images
from fedgmr.tasks.formats.packed import ImageArrays, ImageSheets
from fedgmr.tasks.sources import Source

OPTIONS: dict[str, list[dict[str, str]]] = {
    "femnist": [{"head": "whole"}],
    "cifar10": [{"head": "whole"}],
    "imagenet100": [{"norm": "group"}],
    "stackoverflow": [{"head": "whole"}],
}
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
        for options in OPTIONS[name]:
            assert getattr(module, name)(**options).layout() == paper_layout(name, {"root": "elsewhere", **options})
            assert paper_layout(name, options) != paper_layout(name)


def test_plans_know_the_layout_of_a_tasks_options(tmp_path: Path) -> None:
    whole = ("task.options.head=whole", "network.sizes=paper")
    plans = [
        plan_table(Request(name="baselines", task="cifar10", split="iid", overrides=words), tmp_path)
        for words in (whole[1:], whole)
    ]
    one, other = (getattr(plan.runs[0].recipe.method.coordination, "period", 0.0) for plan in plans)
    # Client 0 has the whole model, and the smallest sub-models are larger by the head of 5,120 weights.
    assert one < other < 1.01 * one
