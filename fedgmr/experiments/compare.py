"""Many runs side by side: the same experiment under several methods and seeds, in one directory.

A sweep whose runs have names of their own (`METHOD-seedN`) below the comparison's directory; a finished one is not
repeated and an interrupted one is resumed, so the same command can be given again after an interruption.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.experiments.rundir import read_recipe
from fedgmr.experiments.sweep.grid import grid_points
from fedgmr.experiments.sweep.keys import recipe_key
from fedgmr.experiments.sweep.plan import PlannedRun, run_status
from fedgmr.recipe import Recipe
from fedgmr.settings.refusals import SettingError


def planned_runs(
    data: Mapping[str, Any], overrides: Sequence[str], methods: Sequence[str], seeds: int
) -> Iterator[tuple[str, Recipe]]:
    """(name of the run's directory, its recipe) for every method and seed; all checked before the first starts."""
    for point in grid_points(data, overrides, methods=methods, seeds=seeds):
        yield f"{point.method.replace(':', '.')}-seed{point.recipe.seed}", point.recipe


def plan_comparison(runs: Sequence[tuple[str, Recipe]], directory: Path) -> list[PlannedRun]:
    """What is done and what is to do in a comparison's directory; a run there with other settings is refused."""
    planned = []
    for name, recipe in runs:
        path, key = directory / name, recipe_key(recipe)
        status = run_status(path)
        if status != "missing" and recipe_key(read_recipe(path)) != key:
            raise SettingError(f"{str(path)!r} holds a run with other settings: give another output or remove it.")
        planned.append(PlannedRun(key=key, recipe=recipe, directory=path, status=status))
    return planned
