from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgmr.experiments.time_model import make_network, run_untrained
from fedgmr.methods import PAPER
from fedgmr.paper.grid import HETEROGENEITIES, TASKS, Setting, paper_layout, recipe_for
from fedgmr.paper.planning import Request, plan_table
from fedgmr.recipe import Recipe, load_recipe
from fedgmr.server.aggregation import GradientAverage, MaskAware, ZeroPadded
from fedgmr.server.coordination import Fastest, Synchronous
from fedgmr.server.restoration import FixedTime, Saturation
from fedgmr.settings.schema import plain
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.rankings import Magnitude
from fedgmr.tasks import cifar10, femnist, imagenet100, stackoverflow
from fedgmr.tasks.formats.arrays import Images
from fedgmr.tasks.formats.cifar_sheets import CifarSheets
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
    chosen = {"training.learning_rate", "method.restoration.patience"}  # on validation
    others = {"name", "about", "network.sizes", "network.sends", "evaluation.every_seconds"}
    others |= {"seconds"} if task == "cifar10" else set()  # it ends with the evaluations around t*
    assert differences(fair, paper) - chosen == others
    assert (fair.network.sizes, fair.network.sends) == ("wire", "shared")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", ["fedgmr", "fedgmr_without_buffer", "fedavg", "fjord", "fiarse+aux+gmr"])
def test_short_runs_are_those_of_the_short_recipes(task: str, method: str) -> None:
    setting = Setting(task=task, heterogeneity="high", split="noniid")
    short = recipe_for(setting, method, protocol="paper", short=True)
    assert differences(short, load_recipe(f"paper/{task}-short", [f"method={method}"])) == {"about"}
    fair = recipe_for(setting, f"{method}/patience=3" if "gmr" in method else method, short=True)
    changed = {"about", "name", "network.sizes", "network.sends"}
    changed |= {"method.restoration.patience"} if "gmr" in method else set()
    assert differences(fair, short) - {"training.learning_rate"} == changed


PATIENCES = {
    ("femnist", "iid"): [5, 5, 3],
    ("femnist", "noniid"): [7, 3, 1],
    ("cifar10", "iid"): [10, 25, 1],
    ("cifar10", "noniid"): [15, 30, 1],
    ("imagenet100", "iid"): [40, 30, 40],
    ("imagenet100", "noniid"): [25, 30, 30],
    ("stackoverflow", "iid"): [15, 20, 8],
    ("stackoverflow", "noniid"): [10, 10, 20],
}


@pytest.mark.parametrize(("task", "split"), PATIENCES)
def test_the_released_patience_is_the_cells(task: str, split: str) -> None:
    for method in ("fedgmr", "fedgmr_without_buffer", "fedgmr/ga", "heterofl+aux+gmr"):
        settings = [Setting(task=task, heterogeneity=level, split=split) for level in HETEROGENEITIES]
        rules = [recipe_for(setting, method, protocol="released").method.restoration for setting in settings]
        assert rules == [
            Saturation(patience=patience, hold_off=2, metric="own_update", server=True)
            for patience in PATIENCES[task, split]
        ]
    high = Setting(task=task, heterogeneity="high", split="noniid")
    alone = load_recipe(f"released/{task}").method.restoration
    assert recipe_for(high, "fedgmr", protocol="released").method.restoration == alone


def released(variant: str, task: str = "cifar10", heterogeneity: str = "high") -> Recipe:
    setting = Setting(task=task, heterogeneity=heterogeneity, split="noniid")
    return recipe_for(setting, variant, protocol="released")


def test_released_variants() -> None:
    assert released("fedgmr").method.coordination == Fastest(clients=1, grace=0.5)
    assert released("fedgmr", "femnist", "low").method.coordination == Fastest(clients=2, grace=0.5)
    assert released("fedavg", "femnist", "low").method.coordination == Synchronous()
    assert released("fedgmr_without_asynchrony").method.coordination == Synchronous()
    assert released("fedgmr").method.aggregation == MaskAware(over="arrivals")
    assert released("fedgmr_without_buffer_and_ims").method.aggregation == MaskAware(over="arrivals", mix=True)
    assert released("fedasync").method.aggregation == MaskAware(over="arrivals", mix=True)
    assert released("fedgmr/ga").method.aggregation == GradientAverage(reference="current", over="arrivals")
    assert released("fedgmr_without_restoration/fa").method.aggregation == ZeroPadded(over="arrivals")
    assert released("fedgmr/fixed_time").method.restoration == FixedTime(seconds=220_000)
    assert released("fedgmr/fixed_time", "stackoverflow").method.restoration == FixedTime(seconds=70_000)
    assert released("fedgmr/patience=3").method.restoration == Saturation(
        patience=3, hold_off=2, metric="own_update", server=True
    )
    heads = {name: released(name).task.options["head_init"] for name in ("fedgmr", "heterofl", "fjord", "fedrolex")}
    assert heads == {"fedgmr": "fan_in", "heterofl": "fan_in", "fjord": "fan_out", "fedrolex": "fan_out"}
    rates = {name: released(name, "imagenet100").training.learning_rate for name in PAPER}
    assert rates == dict.fromkeys(PAPER, 0.02) | dict.fromkeys(("heterofl", "fjord", "fedrolex"), 0.05)
    later = released("fedgmr", "imagenet100").training.rate(10_000)
    assert later == pytest.approx(0.01, rel=1e-9)  # half of it after five steps


@pytest.mark.parametrize("task", TASKS)
def test_released_recipes_fit_their_nets_and_their_pace(task: str) -> None:
    recipe = released("fedgmr_without_restoration", task)
    layout = paper_layout(task, recipe.task.options)
    assert isinstance(recipe.method.ranking, Magnitude)
    costs = recipe.method.ranking.costs
    assert costs is not None
    assert len(costs) == sum(place.prunable for place in layout.parameters)
    assert (
        layout.prunable_size
        == {
            "femnist": 6_474_528,
            "cifar10": 9_742_016,
            "imagenet100": 11_046_080,
            "stackoverflow": 1_202_784,
        }[task]
    )
    small = Layout.of(nn.Linear(40, 25, bias=False))  # linear sizes do not ask the net
    network = make_network(recipe, small, recipe.fleet.resolved_links())
    tick = run_untrained(small, network, recipe.method, ticks=400).now / 400
    assert recipe.evaluation.every_seconds == pytest.approx(recipe.method.interval * tick, rel=0.01)


@pytest.mark.parametrize("task", TASKS)
def test_short_released_runs_are_evaluated(task: str) -> None:
    setting = Setting(task=task, heterogeneity="high", split="noniid")
    short = recipe_for(setting, "fedgmr", protocol="released", short=True)
    assert (short.name, short.short, short.method.interval) == (f"released-{task}-short", True, 10)
    assert (short.evaluation.validation, short.evaluation.every_seconds) == ("test", None)
    assert short.method.restoration == Saturation(patience=1, hold_off=2, metric="own_update", server=True)


def test_layouts_are_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {femnist: (1, 28, 28), cifar10: (3, 32, 32), imagenet100: (3, 64, 64), stackoverflow: ()}
    words = (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long))
    monkeypatch.setattr(stackoverflow, "_samples", lambda *_: (words, words, torch.zeros(2, dtype=torch.long)))
    monkeypatch.setattr(Source, "find", lambda name, sources, *_: (sources[1], Path()))
    for module, shape in shapes.items():
        images = (np.zeros((2, *shape), np.uint8), np.zeros(2, np.int64))
        for packed in (ImageArrays, ImageSheets, CifarSheets):
            monkeypatch.setattr(packed, "read", lambda *_, images=images: Images(train=images, test=images))
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
