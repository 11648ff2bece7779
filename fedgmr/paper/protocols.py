"""Protocols: the settings under which a table compares the methods. Each has a folder of recipes, one per task.

Beside its recipes a protocol may have a patience per cell and its own reading of a variant's changes. A short run does
as little as the short recipe in `recipes/paper`. Read next: `grid.py`, which makes the recipe of a cell.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgmr.recipe import Recipe, load_recipe
from fedgmr.server.coordination import Fastest
from fedgmr.server.restoration import Saturation

DEFAULT = "fair"
_CHANGES = {
    "ga": "method.aggregation=gradient_average",
    "fa": "method.aggregation=zero_padded",
    "fixed_time": "method.restoration=fixed_time",
}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings of a table that its recipes do not have."""

    about: str  # one line for people
    tuned: bool = False  # whether trials of equal number have chosen the recipes' rates and patiences
    patience: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)  # by task, split, fleet
    fastest: Mapping[tuple[str, str], int] = field(default_factory=dict)  # clients waited for, by task and fleet
    climb: Mapping[str, float] = field(default_factory=dict)  # by task: when fixed times have all clients whole
    changes: Mapping[str, str] = field(default_factory=dict)  # words of a variant's changes, where they are others

    def cell_words(self, recipe: Recipe, heterogeneity: str, split: str) -> list[str]:
        """The settings of a cell, for the recipe of a method."""
        task, method = recipe.task.name, recipe.method
        words = []
        if isinstance(method.restoration, Saturation) and task in self.patience:
            words.append(f"method.restoration.patience={self.patience[task][split][heterogeneity]}")
        if isinstance(method.coordination, Fastest) and (task, heterogeneity) in self.fastest:
            words.append(f"method.coordination.clients={self.fastest[task, heterogeneity]}")
        return words

    def change_word(self, change: str, task: str) -> str:
        """The setting that a variant's change stands for: a name, or a key of the restoration with its value."""
        if change == "fixed_time" and task in self.climb:
            return f"method.restoration={{kind: fixed_time, seconds: {self.climb[task]}}}"
        return {**_CHANGES, **self.changes}.get(change, f"method.restoration.{change}")


def _patiences(iid: tuple[int, int, int], noniid: tuple[int, int, int]) -> dict[str, dict[str, int]]:
    fleets = ("high", "medium", "low")
    return {"iid": dict(zip(fleets, iid, strict=True)), "noniid": dict(zip(fleets, noniid, strict=True))}


PROTOCOLS: Mapping[str, Protocol] = {
    "fair": Protocol(about="one split, one time model and one budget of tuning for every method", tuned=True),
    "released": Protocol(
        about="as the code that the paper's authors have released runs it",
        patience={
            "femnist": _patiences((5, 5, 3), (7, 3, 1)),
            "cifar10": _patiences((10, 25, 1), (15, 30, 1)),
            "imagenet100": _patiences((40, 30, 40), (25, 30, 30)),
            "stackoverflow": _patiences((15, 20, 8), (10, 10, 20)),
        },
        fastest={("femnist", "low"): 2},
        climb={"femnist": 70_000, "cifar10": 220_000, "imagenet100": 250_000, "stackoverflow": 70_000},  # t*
        changes={
            "ga": "method.aggregation={kind: gradient_average, reference: current, over: arrivals}",
            "fa": "method.aggregation={kind: zero_padded, over: arrivals}",
        },
    ),
    "paper": Protocol(about="as the paper describes it"),
}


def short_words(recipe: Recipe) -> list[str]:
    """The settings that make a protocol's recipe as short as the short recipe of its task."""
    short = load_recipe(f"paper/{recipe.task.name}-short")
    words = {
        "name": f"{recipe.name}-short",
        "short": True,
        "seconds": short.seconds,
        "training.steps": short.training.steps,
        "training.batch_size": short.training.batch_size,
        "evaluation.test_samples": short.evaluation.test_samples,
        "evaluation.every_seconds": None,
        "method.interval": short.method.interval,
    }
    if recipe.evaluation.validation == "server":
        words["evaluation.validation_samples"] = short.evaluation.validation_samples
    if isinstance(recipe.method.restoration, Saturation) and isinstance(short.method.restoration, Saturation):
        words["method.restoration.patience"] = short.method.restoration.patience
    return [f"{key}={json.dumps(value)}" for key, value in words.items()]
