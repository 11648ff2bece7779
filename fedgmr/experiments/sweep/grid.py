"""A grid of recipes: every combination of the values given for some keys, for several methods and seeds.

All are built, and so checked, before the first run starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedgmr.experiments.sweep.keys import changes_results
from fedgmr.methods import PAPER, PLUGGED
from fedgmr.recipe import Recipe, recipe_from
from fedgmr.settings.refusals import SettingError

_OPEN, _CLOSED, _QUOTES = "[{(", "]})", "\"'"


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One run of a grid, and what the grid set for it."""

    values: tuple[tuple[str, str], ...]  # (key, value) in the order of the axes
    method: str  # the name it was asked for by
    recipe: Recipe


def grid_points(
    data: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    axes: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: int = 1,
) -> list[GridPoint]:
    """The runs of a grid: axes (`key=value,value,...`) outermost, then methods (names, or just "all"), then seeds.

    All start from the recipe in `data` with `overrides`. No methods means the recipe's; seeds count up from its own.
    """
    if seeds < 1:
        raise SettingError(f"--seeds is {seeds}: give at least 1.")
    spread = _checked_axes(axes)
    if methods and "method" in spread:
        raise SettingError("--grid and --methods both set the method: use --methods alone.")
    chosen_methods = [*PAPER, *PLUGGED] if list(methods) == ["all"] else list(methods)
    if len(set(chosen_methods)) < len(chosen_methods):
        raise SettingError(f"--methods is {','.join(methods)!r}: name each method once, at least one.")
    names: list[str] | list[None] = chosen_methods or [None]
    points = []
    for values in product(*spread.values()):
        chosen = tuple(zip(spread, values, strict=True))
        words = [*overrides, *(f"{key}={value}" for key, value in chosen)]
        for method in names:
            first = recipe_from(data, words, method=method).seed
            for seed in range(first, first + seeds):
                recipe = recipe_from(data, [*words, f"seed={seed}"], method=method)
                points.append(GridPoint(values=chosen, method=method or recipe.method.name, recipe=recipe))
    return points


def _checked_axes(axes: Sequence[str]) -> dict[str, list[str]]:
    checked: dict[str, list[str]] = {}
    for axis in axes:
        key, equals, text = axis.partition("=")
        key, values = key.strip(), split_values(text)
        if not equals or not key or not all(values):
            raise SettingError(f"--grid is {axis!r}: write key=value,value,...")
        if key in checked or len(set(values)) < len(values):
            raise SettingError(f"--grid is {axis!r}: give each key once, and each of its values once.")
        if not changes_results(key):
            raise SettingError(f"--grid is {axis!r}: {key} does not change what a run gives; set it as {key}=value.")
        checked[key] = values
    return checked


def split_values(text: str) -> list[str]:
    """The parts of a text between commas; commas inside brackets or quotes do not count."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter == "," and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += letter
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES:
            quote = letter
        else:
            depth += (letter in _OPEN) - (letter in _CLOSED)
    return [part.strip() for part in parts]
