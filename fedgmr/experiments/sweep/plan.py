"""The work of a sweep: which of its runs a store already holds, which are begun, which are missing.

Runs are found by what their directories say, not by the names of the directories, so a store may be renamed, merged
with another or nested. Read `perform.py` next.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedgmr.experiments.rundir import locked, read_recipe
from fedgmr.experiments.seal import read_sealed_run
from fedgmr.experiments.sweep.grid import GridPoint
from fedgmr.experiments.sweep.keys import recipe_key
from fedgmr.files import RECIPE, SUMMARY, file_name, read_json
from fedgmr.recipe import Recipe
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain
from fedgmr.settings.trust import import_paths

Status = Literal["finished", "diverged", "interrupted", "missing"]
_ENDED = ("finished", "diverged")
_LONGEST_WORD, _LONGEST_WORDS = 32, 100  # letters in the name of a directory


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a sweep: what it is, where it is or will be, and how far it was when the sweep was planned."""

    key: str
    recipe: Recipe
    directory: Path
    status: Status

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.directory.name

    @property
    def to_do(self) -> bool:
        """Whether something is left to compute. A diverged run would diverge again."""
        return self.status in ("interrupted", "missing")


def plan_sweep(
    recipes: Sequence[Recipe], store: Path, *, also: Sequence[Path] = (), words: Sequence[Sequence[str]] = ()
) -> list[PlannedRun]:
    """Make one entry per recipe, in their order; equal recipes share a run. Nothing is written.

    Interrupted runs are taken up in `store`, and missing ones will be there; finished ones below `also` count, too.
    `words` are, by recipe, what the name of a new directory says of its settings.
    """
    keys = [recipe_key(recipe) for recipe in recipes]
    wanted = dict(zip(keys, recipes, strict=True))
    here = _runs_below(store, wanted)
    elsewhere = [run for place in also for run in _runs_below(place, wanted) if run[2] == "finished"]
    found: dict[str, tuple[Path, Status]] = {}
    # The first of these wins: a result, then what is known to diverge, then what has begun.
    for key, directory, status in sorted([*here, *elsewhere], key=lambda run: _RANKS[run[2]]):
        found.setdefault(key, (directory, status))
    planned: dict[str, PlannedRun] = {}
    for key, recipe, told in zip(keys, recipes, words or [()] * len(recipes), strict=True):
        if key not in planned:
            directory, status = found.get(key, (store / run_name(recipe, key, told), "missing"))
            planned[key] = PlannedRun(key=key, recipe=recipe, directory=directory, status=status)
    return [planned[key] for key in keys]


def plan_comparison(points: Sequence[GridPoint], directory: Path) -> list[PlannedRun]:
    """Plan the runs of a comparison, in directories `METHOD-seedN` below its own; a run with other settings is refused.

    A finished run is not repeated and an interrupted one is resumed, so the same command can be given again.
    """
    planned = []
    for point in points:
        key = recipe_key(point.recipe)
        path = directory / _name_in_comparison(point)
        status = run_status(path)
        if status != "missing" and recipe_key(read_recipe(path, import_paths(plain(point.recipe)))) != key:
            raise SettingError(f"{str(path)!r} holds a run with other settings: give another output or remove it.")
        if status in _ENDED:
            read_sealed_run(path)
        planned.append(PlannedRun(key=key, recipe=point.recipe, directory=path, status=status))
    return planned


def unfinished_comparison(points: Sequence[GridPoint], places: Iterable[Path]) -> Path | None:
    """The last of these directories, by name, that holds a part of this comparison, nothing else, and is not in use."""
    names = {_name_in_comparison(point) for point in points}
    for place in sorted(places, reverse=True):
        begun = {path.parent.name for path in place.glob(f"*/{RECIPE}")}
        if begun and begun <= names and any(run_status(place / name) in ("interrupted", "missing") for name in names):
            try:
                plan_comparison(points, place)
                for name in begun:
                    with locked(place / name):
                        pass
            except (ValueError, OSError):  # of other settings, damaged, or in use
                continue
            return place
    return None


def _name_in_comparison(point: GridPoint) -> str:
    return f"{point.method.replace(':', '.')}-seed{point.recipe.seed}"


_RANKS: dict[Status, int] = {"finished": 0, "diverged": 1, "interrupted": 2, "missing": 3}


def describe_plan(runs: Sequence[PlannedRun]) -> str:
    """The number of runs and their progress, in a sentence."""
    statuses = Counter({run.key: run.status for run in runs}.values())
    words = {status: "to start" if status == "missing" else status for status in _RANKS}
    parts = [f"{statuses[status]} {word}" for status, word in words.items() if statuses[status]]
    return f"{statuses.total()} run{'' if statuses.total() == 1 else 's'}: {', '.join(parts)}."


def find_finished(recipes: Sequence[Recipe], stores: Sequence[Path]) -> dict[str, Path]:
    """Directories of the finished runs of these recipes anywhere below `stores`, by key; the first store wins."""
    wanted = {recipe_key(recipe): recipe for recipe in recipes}
    runs = [run for store in stores for run in _runs_below(store, wanted) if run[2] == "finished"]
    return {key: directory for key, directory, _ in reversed(runs)}


def run_name(recipe: Recipe, key: str, words: Sequence[str] = ()) -> str:
    """The name of a run's directory in a store; `words` say what tells it apart."""
    told = "-".join(word[:_LONGEST_WORD] for word in words)[:_LONGEST_WORDS]
    return file_name("-".join(filter(None, (recipe.name, recipe.method.name, told, f"s{recipe.seed}", key))))


def run_status(directory: Path) -> Status:
    """The progress of the run in a directory."""
    status = read_json(directory / SUMMARY).get("status")
    if status in _ENDED:
        return "finished" if status == "finished" else "diverged"
    return "interrupted" if (directory / RECIPE).is_file() else "missing"


def _runs_below(store: Path, wanted: Mapping[str, Recipe]) -> Iterator[tuple[str, Path, Status]]:
    """Yield (key, directory, status) of the wanted runs below a directory; warn of those that cannot be read.

    What the wanted recipes import, those of the store may import too.
    """
    trust = {path for recipe in wanted.values() for path in import_paths(plain(recipe))}
    for path in sorted(store.rglob(RECIPE)):
        try:
            key = recipe_key(read_recipe(path.parent, trust))
            if key in wanted:
                status = run_status(path.parent)
                if status in _ENDED:
                    read_sealed_run(path.parent)
                yield key, path.parent, status
        except (ValueError, OSError) as error:
            warnings.warn(f"The run in {str(path.parent)!r} cannot be read and does not count: {error}", stacklevel=2)
