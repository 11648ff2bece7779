"""The paper's numbers: complete, consistent with each other, and each with a recipe."""

import pytest

from fedgmr.methods import PAPER
from fedgmr.paper.accuracy import mean_relative_improvement
from fedgmr.paper.grid import TASKS, Setting, recipe_for
from fedgmr.paper.numbers import Paper
from fedgmr.paper.protocols import PROTOCOLS

TABLES = {"baselines": 7 * 24, "aggregation": 6 * 24, "ablation": 6 * 24, "plugin": 12, "fixed_time": 16}
CIFAR = Setting(task="cifar10", heterogeneity="high", split="noniid")


@pytest.mark.parametrize("table", TABLES)
def test_no_cell_is_missing(paper: Paper, table: str) -> None:
    cells = [paper.accuracy(table, s, v) for s in paper.settings(table) for v in paper.variants(table)]
    assert len([cell for cell in cells if cell]) == TABLES[table]


def test_a_cell(paper: Paper) -> None:
    cell = paper.accuracy("ablation", CIFAR, "fedgmr_without_restoration")
    assert cell is not None
    assert (cell.mean, cell.std) == (71.93, 0.45)
    assert paper.accuracy("plugin", CIFAR, "heterofl") is None
    assert (paper.t_star("cifar10"), paper.seconds("cifar10")) == (220_000, 250_000)


def test_printed_improvements_follow_from_the_means(paper: Paper) -> None:
    for setting in paper.settings("baselines"):
        means = {v: cell.mean for v in PAPER if (cell := paper.accuracy("baselines", setting, v))}
        assert mean_relative_improvement(means) == pytest.approx(paper.mri(setting).mean, abs=0.01), setting


def test_gains_by_patience_follow_from_the_accuracies(paper: Paper) -> None:
    for row in paper.data["patience"]["tasks"].values():
        assert row["best"] == row["highest"]
        assert row["best"] - row["without"] == pytest.approx(row["gain"], abs=0.005)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_variant_has_a_recipe(paper: Paper, protocol: str) -> None:
    recipes = {
        variant: recipe_for(CIFAR, variant, protocol=protocol) for table in TABLES for variant in paper.variants(table)
    }
    rules = {
        v: (r.method.name, r.method.aggregation.kind, getattr(r.method.restoration, "kind", None))
        for v, r in recipes.items()
    }
    assert rules["fedgmr"] == ("fedgmr", "mask_aware", "saturation")
    assert rules["fedgmr/ga"] == ("fedgmr", "gradient_average", "saturation")
    assert rules["fedgmr_without_restoration/fa"] == ("fedgmr_without_restoration", "zero_padded", None)
    assert rules["fedgmr/fixed_time"] == ("fedgmr", "mask_aware", "fixed_time")
    assert rules["fiarse+aux+gmr"][2] == "saturation"
    assert len(set(map(repr, recipes.values()))) == len(recipes)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("task", TASKS)
def test_recipes_have_the_length_of_the_paper(paper: Paper, task: str, protocol: str) -> None:
    setting = Setting(task=task, heterogeneity="low", split="iid")
    recipe = recipe_for(setting, "fedavg", protocol=protocol)
    # But for the paper's own they may end with the evaluations around t*.
    around = paper.t_star(task) + 10 * (recipe.evaluation.every_seconds or 0.0)
    assert recipe.seconds == paper.seconds(task) or (protocol != "paper" and recipe.seconds >= around)
    assert (recipe.fleet.name, recipe.partition.kind, recipe.short) == ("low", "iid", False)
    assert recipe_for(setting, "fedavg", protocol=protocol, short=True).short
