"""The paper's grid: tasks, heterogeneities and splits, the variants that are compared on it, and their recipes.

A variant is written METHOD/CHANGE/...: `fedgmr`, `fedgmr/ga`, `heterofl+aux`, `fedgmr/patience=10`; the same words are
the keys of `paper.yaml`. The recipes are a protocol's, see `protocols.py`. Read next: `studies.py`, which arranges the
numbers of variants in tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from inspect import signature
from types import MappingProxyType
from typing import Any

from fedgmr.paper.protocols import DEFAULT, PROTOCOLS, short_words
from fedgmr.recipe import Recipe, read_recipe_data, recipe_from
from fedgmr.settings.refusals import SettingError
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.partition import Partition
from fedgmr.tasks.sources import Source

TASKS: Mapping[str, str] = {
    "femnist": "FEMNIST",
    "cifar10": "CIFAR-10",
    "imagenet100": "ImageNet-100",
    "stackoverflow": "StackOverflow",
}
HETEROGENEITIES: Mapping[str, str] = {"high": "High", "medium": "Medium", "low": "Low"}
SPLITS: Mapping[str, str] = {"iid": "IID", "noniid": "non-IID"}
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


def recipe_for(
    setting: Setting,
    variant: str,
    *,
    protocol: str = DEFAULT,
    seed: int = 0,
    short: bool = False,
    overrides: Sequence[str] = (),
) -> Recipe:
    """The recipe of a variant at a setting; `seed` is counted from the recipe's own, `overrides` come last."""
    method, *changes = variant.split("/")
    data, own = read_recipe_data(f"{protocol}/{setting.task}"), PROTOCOLS[protocol]
    words = [f"fleet={setting.heterogeneity}", *_partition(setting, overrides)]
    first = recipe_from(data, method=method)
    words += own.cell_words(first, setting.heterogeneity, setting.split)
    words += short_words(first) if short else []
    words += [*(own.change_word(change, setting.task) for change in changes), *overrides]
    recipe = recipe_from(data, words, method=method)
    return recipe_from(data, [*words, f"seed={recipe.seed + seed}"], method=method) if seed else recipe


def paper_layout(task: str, options: Mapping[str, Any] = MappingProxyType({})) -> Layout:
    """The layout of a task's model with these options of the task; a table is planned without the data."""
    known = signature(_model_fields(task)).parameters
    return _layout(task, tuple(sorted((key, value) for key, value in options.items() if key in known)))


def own_partition(task: str, protocol: str, method: str) -> Partition:
    """The split of the protocol's recipe for a method."""
    return recipe_from(read_recipe_data(f"{protocol}/{task}"), method=method).partition


def _model_fields(task: str) -> Callable[..., dict[str, Any]]:
    made: Callable[..., dict[str, Any]] = import_module(f"fedgmr.tasks.{task}").model_fields
    return made


@lru_cache(maxsize=64)
def _layout(task: str, options: tuple[tuple[str, Any], ...]) -> Layout:
    # Kept: a table asks for the layouts of a hundred recipes, and there are few.
    fields = _model_fields(task)(**dict(options))
    return Layout.of(fields["model"](), keep=fields["keep"])


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
