"""The verbs that only print: data, show, schema, inspect."""

import argparse
import json
from typing import Any

from fedgmr.cli.arguments import RecipeWords
from fedgmr.cli.verbs import HELP
from fedgmr.experiments.assembly import make_server, make_task, resolve
from fedgmr.experiments.inspection import METHODS as METHODS_INSPECTED
from fedgmr.experiments.inspection import inspect as inspect_model
from fedgmr.experiments.inspection import width_remarks
from fedgmr.recipe import recipe_schema
from fedgmr.settings.schema import plain
from fedgmr.settings.text import dump
from fedgmr.tasks import BUILT_IN as TASKS
from fedgmr.tasks.sources import download, survey


def add_verbs(verbs: Any) -> None:
    """Add the verbs of this file to the command's."""
    data = verbs.add_parser("data", help=HELP["data"])
    data.add_argument("--root", metavar="DIR", help="directory with the data (default: FEDGMR_DATA)")
    data.add_argument("--download", metavar="TASK", help="fetch a task's public files into that directory")
    data.add_argument("download", nargs="?", default=argparse.SUPPRESS, metavar="TASK", help="as --download TASK")
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
