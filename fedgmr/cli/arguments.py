"""The words `[RECIPE] [key=value ...]` that most verbs take: their argument, and how they are read."""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgmr.files import file_name
from fedgmr.recipe import Recipe, load_recipe
from fedgmr.settings.refusals import SettingError

RUNS = Path("runs")  # of directories that the user did not name
_DEFAULT_RECIPE = "quickstart"
_HELP = "a recipe file or the name of one that ships with the package (default: quickstart), and settings key=value"


@dataclass(frozen=True, kw_only=True)
class RecipeWords:
    """A recipe as a command names it.

    Attributes:
        source: the file or the name of the recipe.
        overrides: the settings `key=value`, in order, without `output=DIR`.
        output: the directory after `output=`; None where it is not given.
    """

    source: str
    overrides: tuple[str, ...]
    output: Path | None

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Let a verb take a recipe and settings."""
        parser.add_argument("recipe", nargs="*", default=(), metavar="RECIPE | key=value", help=_HELP)

    @classmethod
    def read(cls, words: Sequence[str]) -> "RecipeWords":
        """Tell the recipe, the settings and the output directory apart."""
        plain = [word for word in words if "=" not in word]
        if len(plain) > 1:
            raise SettingError(
                f"Two recipes are given, {plain[0]!r} and {plain[1]!r}: give one; settings are written key=value."
            )
        overrides = [word for word in words if "=" in word]
        outputs = [word.partition("=")[2] for word in overrides if word.startswith("output=")]
        if outputs and not outputs[-1]:
            raise SettingError("output is empty: give a directory.")
        return cls(
            source=plain[0] if plain else _DEFAULT_RECIPE,
            overrides=tuple(word for word in overrides if not word.startswith("output=")),
            output=Path(os.path.expanduser(outputs[-1])) if outputs else None,  # zsh leaves ~ behind a `=`
        )

    @property
    def keys(self) -> list[str]:
        """The keys that are set."""
        return [word.partition("=")[0] for word in self.overrides]

    def load(self, *first: str) -> Recipe:
        """Read the recipe with its settings; `first` are settings that the given ones may change."""
        return load_recipe(self.source, [*first, *self.overrides])

    def directory(self, name: str) -> Path:
        """Choose the output directory: the given one, or a new one below runs/ with this name and the time."""
        if self.output is not None:
            return self.output
        stem = RUNS / file_name(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
        path, number = stem, 2
        while path.exists():
            path, number = stem.with_name(f"{stem.name}-{number}"), number + 1
        return path
