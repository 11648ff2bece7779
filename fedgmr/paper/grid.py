"""The paper's grid: tasks, heterogeneities and splits, the variants that are compared on it, and their recipes.

A variant is written METHOD/CHANGE/...: `fedgmr`, `fedgmr/ga`, `heterofl+aux`, `fedgmr/patience=10`; the same words are
the keys of `paper.yaml`. Read next: `studies.py`, which arranges the numbers of variants in tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from torch import nn

from fedgmr.recipe import Recipe, read_recipe_data, recipe_from, shipped_recipes
from fedgmr.settings.refusals import SettingError
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.models.resnet18 import SHORTCUTS, ResNet18
from fedgmr.tasks.models.transformer import Transformer2L
from fedgmr.tasks.models.vgg11 import VGG11
from fedgmr.tasks.sources import Source

TASKS: Mapping[str, str] = {
    "femnist": "FEMNIST",
    "cifar10": "CIFAR-10",
    "imagenet100": "ImageNet-100",
    "stackoverflow": "StackOverflow",
}
HETEROGENEITIES: Mapping[str, str] = {"high": "High", "medium": "Medium", "low": "Low"}
SPLITS: Mapping[str, str] = {"iid": "IID", "noniid": "non-IID"}
CHANGES: Mapping[str, str] = {
    "ga": "method.aggregation=gradient_average",
    "fa": "method.aggregation=zero_padded",
    "fixed_time": "method.restoration=fixed_time",
}
_WITH_WRITERS = {("femnist", "leaf"), ("femnist", "mnist_writers")}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One column of the paper's large tables, at one heterogeneity."""

    task: str
    heterogeneity: str
    split: str

    @property
    def title(self) -> str:
        """The setting for people, without the heterogeneity."""
        return f"{TASKS[self.task]} {SPLITS[self.split]}"

    @property
    def long_title(self) -> str:
        """The setting for people."""
        return f"{TASKS[self.task]}, {HETEROGENEITIES[self.heterogeneity]}, {SPLITS[self.split]}"


def has_recipe(task: str, *, short: bool) -> bool:
    """Whether a recipe of the paper's task ships with the package."""
    return _recipe_name(task, short=short) in shipped_recipes()


def recipe_for(
    setting: Setting, variant: str, *, seed: int = 0, short: bool = False, overrides: Sequence[str] = ()
) -> Recipe:
    """The recipe of a variant at a setting; `seed` is counted from the recipe's own, `overrides` come last."""
    method, *changes = variant.split("/")
    data = read_recipe_data(_recipe_name(setting.task, short=short))
    words = [f"fleet={setting.heterogeneity}", *_partition(setting, overrides)]
    words += [*(CHANGES.get(change, f"method.restoration.{change}") for change in changes), *overrides]
    first = recipe_from(data, words, method=method)
    return recipe_from(data, [*words, f"seed={first.seed + seed}"], method=method)


def paper_layout(task: str) -> Layout:
    """The layout of a task's model; a table is planned without the data."""
    models: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
        "femnist": (Conv2, ()),
        "cifar10": (VGG11, ()),
        "imagenet100": (ResNet18, (SHORTCUTS,)),
        "stackoverflow": (Transformer2L, ()),
    }
    model, keep = models[task]
    return Layout.of(model(), keep=keep)


def split_alpha(task: str) -> float | None:
    """The concentration of the recipe's own split, where it is drawn from a Dirichlet distribution."""
    partition = recipe_from(read_recipe_data(_recipe_name(task, short=False))).partition
    return getattr(partition, "alpha", None)


def _recipe_name(task: str, *, short: bool) -> str:
    return f"paper/{task}-short" if short else f"paper/{task}"


def _partition(setting: Setting, overrides: Sequence[str]) -> list[str]:
    """IID, or the recipe's own split; by writer where the data has writers."""
    if setting.split == "iid":
        return ["partition=iid"]
    prefix = "task.options."
    options = dict(word.removeprefix(prefix).split("=", 1) for word in overrides if word.startswith(prefix))
    sources = import_module(f"fedgmr.tasks.{setting.task}").SOURCES
    try:
        source = Source.find(setting.task, sources, options.get("root"), options.get("source", "auto"))[0].name
    except SettingError:  # the data is not here
        return []
    return ["partition=by_user"] if (setting.task, source) in _WITH_WRITERS else []
