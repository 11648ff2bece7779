"""The key of a run: a hash of the resolved recipe without the settings that do not change the result.

Two recipes with the same key give the same metrics, so a store can be asked for a run before it is started. The key
is the same on every machine and under every version of Python. Read `plan.py` next.
"""

import hashlib
import json
from functools import lru_cache
from typing import Any

from fedgmr.experiments.assembly import resolve_device, resolve_times
from fedgmr.recipe import Recipe
from fedgmr.settings.schema import plain
from fedgmr.submodels.layout import Layout
from fedgmr.tasks import BUILT_IN, named_task
from fedgmr.training.execution import ExecutionSettings

# Sections that name a run or say where it is computed, and the settings of `execution` that change the numbers.
_WITHOUT_EFFECT = ("name", "about", "device", "checkpoint")
_NUMBER_FORMATS = ("tf32", "autocast")
_DIGITS = 12


def changes_results(key: str) -> bool:
    """Tell whether a setting, given by its dotted key, changes what a run gives."""
    section, _, name = key.partition(".")
    return name in _NUMBER_FORMATS if section == "execution" else section not in _WITHOUT_EFFECT


def recipe_key(recipe: Recipe) -> str:
    """Return twelve hex digits for everything that decides a run's result.

    TF32 is a format of GPUs: on a CPU, where it changes nothing, any value of `tf32` counts as the default.
    """
    options = json.dumps(recipe.task.options, sort_keys=True, default=str)
    data = plain(resolve_times(recipe, lambda: _layout(recipe.task.name, options)))
    if resolve_device(recipe.device).startswith("cpu"):
        data["execution"]["tf32"] = ExecutionSettings().tf32
    data["execution"] = {name: data["execution"][name] for name in _NUMBER_FORMATS}
    for section in _WITHOUT_EFFECT:
        del data[section]
    if recipe.task.name in BUILT_IN:
        # Where the files are, not what they hold.
        data["task"]["options"] = {k: v for k, v in recipe.task.options.items() if k != "root"}
    text = json.dumps(_canonical(data), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


@lru_cache(maxsize=64)
def _layout(name: str, options: str) -> Layout:
    # Kept without the data: a table asks for a hundred keys of the same task, and its seeds share their layout.
    return named_task(name, json.loads(options), 0).layout()


def _canonical(value: Any) -> Any:
    """Write numbers as any machine does: 3.0 is 3, and the last bits of a derived value do not count."""
    if isinstance(value, dict):
        return {str(name): _canonical(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(entry) for entry in value]
    if isinstance(value, float):
        rounded = float(f"{value:.{_DIGITS}g}")
        return int(rounded) if rounded.is_integer() else rounded
    return value
