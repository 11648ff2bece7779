"""The verbs that only print: list, data, show, schema, inspect."""

import argparse
import inspect
import json
from collections.abc import Iterator
from typing import Any

from fedgmr.cli.arguments import RecipeWords
from fedgmr.cli.verbs import HELP
from fedgmr.experiments.assembly import make_server, make_task, resolve
from fedgmr.experiments.inspection import METHODS as METHODS_INSPECTED
from fedgmr.experiments.inspection import inspect as inspect_model
from fedgmr.experiments.inspection import width_remarks
from fedgmr.fleets.presets import CLASSES, COMPOSITIONS
from fedgmr.methods import BUILT_IN as METHODS
from fedgmr.recipe import recipe_schema, shipped_recipes
from fedgmr.settings.schema import plain
from fedgmr.settings.text import dump, read_mapping
from fedgmr.tasks import BUILT_IN as TASKS
from fedgmr.tasks.sources import download, survey
from fedgmr.tasks.task import task_factory


def add_verbs(verbs: Any) -> None:
    """Add the verbs of this file to the command's."""
    listing = verbs.add_parser("list", help=HELP["list"])
    listing.set_defaults(call=_list)

    data = verbs.add_parser("data", help=HELP["data"])
    data.add_argument("--root", metavar="DIR", help="directory with the data (default: FEDGMR_DATA)")
    data.add_argument("--download", metavar="TASK", help="fetch a task's public files into that directory")
    data.set_defaults(call=_data)

    show = verbs.add_parser("show", help=HELP["show"])
    RecipeWords.add_to(show)
    show.add_argument("--json", action="store_true", help="as JSON, for other programs")
    show.set_defaults(call=_show)

    look = verbs.add_parser("inspect", help=HELP["inspect"])
    RecipeWords.add_to(look)
    look.set_defaults(call=_inspect)

    schema = verbs.add_parser("schema", help=HELP["schema"])
    schema.set_defaults(call=_schema)


def _list(given: argparse.Namespace) -> None:
    sections = {
        "Methods": [(name, about) for name, (_, about) in METHODS.items()],
        "Tasks": [(name, (inspect.getdoc(task_factory(name)) or "").partition("\n")[0]) for name in TASKS],
        "Fleets": list(_fleets()),
        "Recipes": [(name, str(read_mapping(path).get("about", ""))) for name, path in shipped_recipes().items()],
    }
    lines = []
    for title, entries in sections.items():
        width = max((len(name) for name, _ in entries), default=0)
        lines += [title, *(f"  {name:<{width}}  {about}" for name, about in entries), ""]
    print("\n".join(lines).rstrip())


def _fleets() -> Iterator[tuple[str, str]]:
    for name, counts in COMPOSITIONS.items():
        links = ", ".join(f"{n} x {link.down:g}/{link.up:g}" for n, link in zip(counts, CLASSES, strict=True))
        yield name, f"ten clients, down/up MiB/s: {links}"
    yield "custom", "any list of links: fleet: {name: custom, links: [{down: 20, up: 5}, ...]}"


def _data(given: argparse.Namespace) -> None:
    if given.download:
        print(f"Downloaded: {download(given.download, given.root)}")
    else:
        print(survey(given.root))


def _show(given: argparse.Namespace) -> None:
    recipe = RecipeWords.read(given.recipe).load()
    task = make_task(recipe)
    recipe = resolve(recipe, task)
    if given.json:
        print(json.dumps(plain(recipe), indent=2))
        return
    remarks = width_remarks(recipe.method, make_server(recipe, task)[0]) if recipe.method.by_width else ""
    print(dump(plain(recipe)) + remarks, end="")


def _inspect(given: argparse.Namespace) -> None:
    words = RecipeWords.read([f"task={word}" if word in TASKS else word for word in given.recipe])
    recipe = words.load()
    methods = [words.load(*words.overrides, f"method={name}").method for name in METHODS_INSPECTED]
    print(inspect_model(make_task(recipe), methods=methods, seed=recipe.seed, network=recipe.network))


def _schema(given: argparse.Namespace) -> None:
    print(json.dumps(recipe_schema(), indent=2))
