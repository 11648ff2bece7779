"""Many runs side by side: the same experiment under several methods and seeds, in one directory.

Every run has a directory of its own below the comparison's; a finished one is not repeated and an interrupted one
is resumed, so the same command can be given again after an interruption.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.exchange import Diverged
from fedgmr.experiments.assembly import make_task, resolve
from fedgmr.experiments.run import Watcher, resume_run, run_recipe
from fedgmr.experiments.rundir import RECIPE, is_finished, read_recipe
from fedgmr.methods.method import PAPER, PLUGGED
from fedgmr.recipe import Recipe, recipe_from
from fedgmr.settings_refusals import SettingError

WatcherFor = Callable[[Recipe], Watcher | None]


def planned_runs(
    data: Mapping[str, Any], overrides: Sequence[str], methods: Sequence[str], seeds: int
) -> Iterator[tuple[str, Recipe]]:
    """(name of the run's directory, its recipe) for every method and seed; all checked before the first starts."""
    names = [*PAPER, *PLUGGED] if list(methods) == ["all"] else list(methods)
    if len(set(names)) < len(names) or not names:
        raise SettingError(f"--methods is {','.join(methods)!r}: name each method once, at least one.")
    for name in names:
        base = recipe_from(data, overrides, method=name)
        for seed in range(base.seed, base.seed + seeds):
            recipe = recipe_from(data, [*overrides, f"seed={seed}"], method=name)
            yield f"{name.replace(':', '.')}-seed{seed}", recipe


def run_all(runs: Sequence[tuple[str, Recipe]], directory: Path, watcher_for: WatcherFor) -> list[Path]:
    """Run what is missing, in order, a diverged run not keeping the others from theirs; returns the run directories."""
    done = []
    for name, recipe in runs:
        path = directory / name
        try:
            if not (path / RECIPE).exists():
                run_recipe(recipe, path, watcher_for(recipe))
            elif read_recipe(path) != resolve(recipe, make_task(recipe)):
                raise SettingError(f"{str(path)!r} holds a run with other settings: give another output or remove it.")
            elif not is_finished(path):
                resume_run(path, watcher_for(recipe))
        except Diverged as error:
            warnings.warn(f"{name}: {error}", stacklevel=2)
        done.append(path)
    return done
