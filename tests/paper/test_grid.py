from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgmr.paper.grid import TASKS, Setting, paper_layout, recipe_for
from fedgmr.paper.planning import Request, plan_table
from fedgmr.recipe import Recipe, load_recipe
from fedgmr.settings.schema import plain
from fedgmr.tasks import cifar10, femnist, imagenet100, stackoverflow
from fedgmr.tasks.formats.arrays import Images
from fedgmr.tasks.formats.packed import ImageArrays, ImageSheets
from fedgmr.tasks.sources import Source

OPTIONS: dict[str, list[dict[str, str]]] = {
    "femnist": [{"head": "whole"}],
    "cifar10": [{"head": "whole"}],
    "imagenet100": [{"norm": "group"}],
    "stackoverflow": [{"head": "whole"}, {"net": "post_norm"}, {"vocabulary": "appearance"}],
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


def flat(recipe: Recipe) -> dict[str, Any]:
    """Settings by dotted key."""

    def walk(data: Any, path: str) -> Iterator[tuple[str, Any]]:
        if not isinstance(data, dict):
            yield path, data
            return
        for name, value in data.items():
            yield from walk(value, f"{path}.{name}" if path else name)

    return dict(walk(plain(recipe), ""))


def differences(one: Recipe, other: Recipe) -> set[str]:
    first, second = flat(one), flat(other)
    return {key for key in {**first, **second} if first.get(key) != second.get(key)}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", ["fedgmr", "fedgmr_without_buffer", "fedavg", "fjord", "fiarse+aux+gmr"])
def test_the_fair_protocol_has_the_papers_settings_and_one_time_model(task: str, method: str) -> None:
    setting = Setting(task=task, heterogeneity="low", split="noniid")
    fair, paper = (recipe_for(setting, method, protocol=protocol) for protocol in ("fair", "paper"))
    assert differences(fair, paper) == {"name", "about", "network.sizes", "network.sends"}
    assert (fair.network.sizes, fair.network.sends) == ("wire", "shared")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", ["fedgmr", "fedgmr_without_buffer", "fedavg", "fjord", "fiarse+aux+gmr"])
def test_short_runs_are_those_of_the_short_recipes(task: str, method: str) -> None:
    setting = Setting(task=task, heterogeneity="high", split="noniid")
    short = recipe_for(setting, method, protocol="paper", short=True)
    assert differences(short, load_recipe(f"paper/{task}-short", [f"method={method}"])) == {"about"}
    fair = recipe_for(setting, f"{method}/patience=3" if "gmr" in method else method, short=True)
    changed = {"about", "name", "network.sizes", "network.sends"}
    assert differences(fair, short) == changed | ({"method.restoration.patience"} if "gmr" in method else set())


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
