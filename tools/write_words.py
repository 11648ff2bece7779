"""Writes fedgmr/cli/words.json: what `fedgmr list` prints and the shell completes, so that neither loads torch.

Run it after a change of verbs, options, recipe keys, methods, tasks, fleets or recipes; a test compares.
"""

import argparse
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgmr.cli.main import make_parser
from fedgmr.fleets.presets import CLASSES, COMPOSITIONS
from fedgmr.methods import BUILT_IN as METHODS
from fedgmr.paper.planning import COMPUTED, studies
from fedgmr.recipe import Recipe, shipped_recipes
from fedgmr.settings.slots import keys_of
from fedgmr.settings.text import read_mapping
from fedgmr.tasks import BUILT_IN as TASKS
from fedgmr.tasks.task import task_factory

VARYING_WORDS = {
    "lte": "ten clients, 13.4/3.4 to 0.67/0.17 MiB/s on average, all on the road: rates vary, with silent seconds",
    "commute": "the same links, on the road for 17 minutes of every 51",
    "day_night": "the same links, steady; each client is away for 9 minutes of every 24",
}
FILE = Path(__file__).parents[1] / "fedgmr" / "cli" / "words.json"


def words() -> dict[str, Any]:
    """Everything that the file holds."""
    listed = {
        "Methods": {name: about for name, (_, about) in METHODS.items()},
        "Tasks": {name: (inspect.getdoc(task_factory(name)) or "").partition("\n")[0] for name in TASKS},
        "Fleets": dict(_fleets()),
        "Recipes": {name: str(read_mapping(path).get("about", "")) for name, path in shipped_recipes().items()},
    }
    keys = _keys(Recipe)
    for section, title in (("method", "Methods"), ("task", "Tasks"), ("fleet", "Fleets")):
        keys[section] = keys[f"{section}.name"] = list(listed[title])
    return {"list": listed, "keys": dict(sorted(keys.items())), "command": _command(make_parser())}


def _fleets() -> Iterator[tuple[str, str]]:
    for name, counts in COMPOSITIONS.items():
        links = ", ".join(f"{n} x {link.down:g}/{link.up:g}" for n, link in zip(counts, CLASSES, strict=True))
        yield name, f"ten clients, down/up MiB/s: {links}"
    for name, words in VARYING_WORDS.items():
        yield name, words
    yield "custom", "any list of links: fleet: {name: custom, links: [{down: 20, up: 5}, ...]}"


def _keys(kind: type[Any], prefix: str = "") -> dict[str, list[str]]:
    """By dotted key the words that may stand there; none where it is a number or a text."""
    found: dict[str, list[str]] = {}
    for name, slot in keys_of(kind).items():
        key = f"{prefix}{name}"
        if slot.component or not slot.kinds:
            found[key] = [*slot.choices(), *(("true", "false") if bool in slot.simple else ())]
        if slot.component:
            found[f"{key}.kind"] = [word for word in slot.choices() if word != "none"]
        for inner in slot.kinds:
            for below, options in _keys(inner, f"{key}.").items():
                found[below] = list(dict.fromkeys([*found.get(below, []), *options]))
    return found


def _command(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Options (false: a flag, true: with a value, or the values), other words, verbs; whether recipes, keys follow."""
    node: dict[str, Any] = {"options": {}, "words": [], "recipe": False, "keys": False, "verbs": {}}
    for action in parser._actions:
        choices = list(action.choices) if action.choices is not None else []
        if isinstance(action, argparse._SubParsersAction):
            node["verbs"] = {name: _command(verb) for name, verb in action.choices.items()}
        elif action.option_strings:
            node["options"] |= dict.fromkeys(action.option_strings, choices or action.nargs != 0)
        else:
            node["words"] += [*studies(), *COMPUTED] if action.dest == "table" else choices
            node["recipe"] |= "RECIPE" in str(action.metavar)
            node["keys"] |= action.dest == "recipe"
    return node


if __name__ == "__main__":
    FILE.write_text(json.dumps(words(), indent=1, ensure_ascii=False) + "\n")
