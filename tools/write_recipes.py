"""Writes the tables of keys in docs/recipes.md: defaults and meanings from the settings' own dataclasses.

The document says in which order and between which words keys stand; a row needs the key alone, or key and default where
kinds differ. Run it after a change of settings; a test compares.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from fedgmr.recipe import Recipe
from fedgmr.settings.schema import plain
from fedgmr.settings.slots import Slot, keys_of, kind_of

FILE = Path(__file__).parents[1] / "docs" / "recipes.md"
_TABLE = re.compile(r"(?<=^\| key \| default \| meaning \|\n\|---\|---\|---\|\n)(?:\|.*\n)+", re.MULTILINE)
_ROW = re.compile(r"^\| `(.+?)` \| *`?(.*?)`? *\|.*$", re.MULTILINE)


class Key(NamedTuple):
    """A setting by its dotted key; N stands for a place in a list."""

    name: str
    default: str
    meaning: str


def keys(kind: type[Any] = Recipe, prefix: str = "") -> Iterator[Key]:
    """Every setting of a recipe; one that several kinds have comes once for each."""
    for name, slot in keys_of(kind).items():
        path = f"{prefix}{name}"
        entries = [slot.inside(member) for member in slot.simple if get_origin(member) is tuple]
        if slot.component or not slot.kinds:
            yield Key(path, _default(slot), str(slot.metadata.get("help", "")))
        for place, inside in [(slot, f"{path}."), *((entry, f"{path}.N.") for entry in entries)]:
            for inner in place.kinds:
                yield from keys(inner, inside)


def told(text: str) -> set[tuple[str, str]]:
    """The keys of a document's tables, with their defaults."""
    return {row for table in _TABLE.findall(text) for row in _ROW.findall(table)}


def rewritten(text: str) -> str:
    """The document with the defaults and meanings that the settings have now."""
    known: defaultdict[str, dict[str, set[str]]] = defaultdict(dict)
    for name, default, meaning in keys():
        known[name].setdefault(default, set()).add(meaning)
    return _TABLE.sub(lambda table: _ROW.sub(lambda row: _row(row[1], row[2], known[row[1]]), table[0]), text)


def _row(name: str, default: str, known: dict[str, set[str]]) -> str:
    if len(known) == 1:
        (default,) = known
    if len(known.get(default, ())) != 1:
        raise SystemExit(f"{name} with the default {default!r} is no setting, or its kinds have different helps.")
    (meaning,) = known[default]
    return f"| `{name}` | {default if default == 'required' else f'`{default}`'} | {meaning} |"


def _default(slot: Slot) -> str:
    if slot.default is MISSING:
        return "required"
    if slot.component:
        return "none" if slot.default is None else str(kind_of(type(slot.default)))
    data = plain(slot.default)
    return data if isinstance(data, str) and data else json.dumps(data)


if __name__ == "__main__":
    FILE.write_text(rewritten(FILE.read_text()))
