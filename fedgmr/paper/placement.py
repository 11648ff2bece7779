"""Which cell of the paper a run belongs to, read off its recipe, and in which settings it differs from the cell's own.

What is derived (null in the shipped recipe), what names a run and what says how it is computed does not count.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgmr.experiments.rundir import read_recipe
from fedgmr.experiments.sweep.keys import WITHOUT_EFFECT
from fedgmr.paper.grid import HETEROGENEITIES, TASKS, Setting, has_recipe, recipe_for, split_alpha
from fedgmr.paper.numbers import Paper
from fedgmr.paper.tables import Measure
from fedgmr.recipe import Recipe
from fedgmr.reporting.rundir import Run, read_run
from fedgmr.settings.schema import plain

# In this order: where tables contradict each other, the first counts (A40).
ACCURACY_TABLES = ("baselines", "ablation", "aggregation", "plugin", "fixed_time")
PATIENCE = "method.restoration.patience"  # the paper tunes it
_SKIPPED = (*WITHOUT_EFFECT, "seed", "short", "partition", "method.title")


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A run in its place."""

    run: Run
    setting: Setting
    variant: str
    differences: Mapping[str, Any]  # settings that are not the cell's own, by dotted key
    split: str  # how the data was dealt

    @property
    def faithful(self) -> bool:
        """Whether the run has the paper's settings, but for the patience."""
        return not set(self.differences) - {PATIENCE}

    @property
    def changes(self) -> str:
        """The differences for people."""
        return ", ".join(f"{key}={json.dumps(value)}" for key, value in self.differences.items())


def place_run(directory: Path, paper: Paper) -> Placed | None:
    """The place of a run; None where it has none in the paper's tables."""
    recipe = read_recipe(directory)
    setting = _setting(recipe)
    if setting is None or not has_recipe(setting.task, short=recipe.short):
        return None
    candidates = dict.fromkeys(v for table in ACCURACY_TABLES for v in paper.variants(table))
    matches = [
        (variant, dict(_differences(setting, variant, recipe)))
        for variant in candidates
        if variant.partition("/")[0] == recipe.method.name
    ]
    if not matches:
        return None
    variant, differences = min(matches, key=lambda match: len(match[1]))
    alpha = getattr(recipe.partition, "alpha", None)
    split = recipe.partition.kind if alpha is None else f"{recipe.partition.kind} {alpha:g}"
    run = read_run(directory)
    return Placed(run=run, setting=setting, variant=variant, differences=differences, split=split)


def paper_accuracy(paper: Paper, setting: Setting, variant: str) -> Measure | None:
    """The paper's number for a variant, from the first table that has it."""
    numbers = (paper.accuracy(table, setting, variant) for table in ACCURACY_TABLES)
    return next((number for number in numbers if number is not None), None)


def _setting(recipe: Recipe) -> Setting | None:
    if recipe.task.name not in TASKS or recipe.fleet.name not in HETEROGENEITIES:
        return None
    split = "iid" if recipe.partition.kind == "iid" else "noniid"
    return Setting(task=recipe.task.name, heterogeneity=recipe.fleet.name, split=split)


def _differences(setting: Setting, variant: str, recipe: Recipe) -> Iterator[tuple[str, Any]]:
    wanted = _flat(plain(recipe_for(setting, variant, short=recipe.short)))
    found = _flat(plain(recipe))
    found.pop("task.options.root", None)
    for key in dict.fromkeys([*wanted, *found]):
        if key.startswith(_SKIPPED) or (key in wanted and wanted[key] is None):
            continue
        if wanted.get(key) != found.get(key):
            yield key, found.get(key)
    alpha = getattr(recipe.partition, "alpha", None)
    if alpha is not None and alpha != split_alpha(setting.task):
        yield "partition.alpha", alpha


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key."""
    if not isinstance(data, dict):
        return {prefix: data}
    found: dict[str, Any] = {}
    for name, value in data.items():
        found |= _flat(value, f"{prefix}.{name}" if prefix else name)
    return found
