"""The key of a run: a hash of the resolved recipe without the settings that do not change the result.

Two recipes with the same key give the same metrics, so a store can be asked for a run before it is started. A setting
that has the default of its dataclass does not count either, so a new option renames no run that was kept before it.
Therefore whoever changes a default raises SCHEMA_VERSION, which always counts. The key is the same on every machine and
under every version of Python. Read `plan.py` next.
"""

import hashlib
import json
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from fedgmr.experiments.assembly import resolve_device, resolve_times
from fedgmr.recipe import Recipe
from fedgmr.settings.schema import plain
from fedgmr.submodels.layout import Layout
from fedgmr.tasks import BUILT_IN, named_task
from fedgmr.training.execution import ExecutionSettings

# Settings that name a run, say where it is computed or what else of it is tested; and the settings of `execution` that
# do change the numbers.
_WITHOUT_EFFECT = (
    "name",
    "about",
    "device",
    "checkpoint",
    "deployment",
    "evaluation.views",
    "evaluation.padded_every",
    "evaluation.levels_every",
    "evaluation.trips",
)
_NUMBER_FORMATS = ("tf32", "autocast")
_DIGITS = 12


def changes_results(key: str) -> bool:
    """Tell whether a setting, given by its dotted key, changes what a run gives."""
    section, _, name = key.partition(".")
    if section == "execution":
        return name in _NUMBER_FORMATS
    return section not in _WITHOUT_EFFECT and key not in _WITHOUT_EFFECT


def recipe_key(recipe: Recipe) -> str:
    """Return twelve hex digits for everything that decides a run's result.

    TF32 is a format of GPUs: on a CPU, where it changes nothing, any value of `tf32` counts as the default.
    """
    options = json.dumps(recipe.task.options, sort_keys=True, default=str)
    resolved = resolve_times(recipe, lambda: _layout(recipe.task.name, options))
    data = plain(_with_effect(resolved), defaults=False) | {"schema_version": recipe.schema_version}
    text = json.dumps(_canonical(data), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _with_effect(recipe: Recipe) -> Recipe:
    """The recipe in which everything that does not change the result has its default."""
    formats = {name: getattr(recipe.execution, name) for name in _NUMBER_FORMATS}
    if resolve_device(recipe.device).startswith("cpu"):
        del formats["tf32"]
    task = recipe.task
    if task.name in BUILT_IN:
        # Where the files are, not what they hold.
        task = replace(task, options={name: value for name, value in task.options.items() if name != "root"})
    evaluation, execution = _reset(recipe.evaluation, "evaluation."), ExecutionSettings(**formats)
    counted: Recipe = _reset(recipe, "")
    return replace(counted, task=task, evaluation=evaluation, execution=execution)


def _reset(settings: Any, section: str) -> Any:
    without = [entry for entry in fields(settings) if f"{section}{entry.name}" in _WITHOUT_EFFECT]
    return replace(settings, **{entry.name: entry.default for entry in without})


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
