"""The verb deploy: a recipe on a fleet of Flower nodes. Modules that need Flower are imported where they are used."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgmr.cli.arguments import RecipeWords
from fedgmr.cli.duration import add_yes, approve, fewer_seconds
from fedgmr.cli.onward import resuming
from fedgmr.cli.runs import finish_run
from fedgmr.cli.verbs import HELP
from fedgmr.experiments.rundir import check_unused, read_recipe
from fedgmr.recipe import Recipe
from fedgmr.reporting.display import Display
from fedgmr.reporting.rows import RunRow
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain
from fedgmr.settings.trust import import_paths, trust_packages

_BY_NODE = "deployment.identity=node"  # authenticated nodes keep their ids, so nobody has to be believed
_BY_CLAIM = "deployment.identity=claimed"  # others come back with new ids; on the loopback interface they are our own

_CODES = {"diverged": 3, "empty": 4}


def add_verbs(verbs: Any) -> None:
    """Add the verb of this file to the command's."""
    deploy = verbs.add_parser("deploy", help=HELP["deploy"])
    deploy.add_argument("--resume", metavar="RUN", help="go on with an interrupted run of deploy local")
    deploy.set_defaults(call=_resume)
    places = deploy.add_subparsers(metavar="WHERE")

    local = places.add_parser(
        "local",
        help="SuperLink, SuperNodes and the run on this machine, for trying out",
        description="Run a recipe on a fleet on this machine; 30 ticks, some minutes, unless seconds= is given.",
    )
    RecipeWords.add_to(local)
    local.add_argument("--clients", type=int, default=4, metavar="N", help="how many SuperNodes (default: 4)")
    local.add_argument("--output", metavar="DIR", help="the run directory; the same as output=DIR")
    local.add_argument("--tls", action="store_true", help="certificates, and nodes that authenticate themselves")
    add_yes(local)
    local.set_defaults(call=_local)

    init = places.add_parser("init", help="write a Flower app for machines of your own")
    init.add_argument("folder", metavar="DIR", help="a new folder")
    RecipeWords.add_to(init)
    init.set_defaults(call=_init)


def _local(given: argparse.Namespace) -> int:
    from fedgmr.deploy.local import between_nodes, deploy_local
    from fedgmr.deploy.pace import measure_start, pace_for_trial
    from fedgmr.deploy.site import check_flower

    words = RecipeWords.read(given.recipe)
    if given.clients < 1:
        raise SettingError(f"--clients is {given.clients}: give at least 1.")
    recipe = words.load(_BY_NODE if given.tls else _BY_CLAIM)
    trust_packages(import_paths(plain(recipe)))  # the nodes of this fleet are the user's own
    check_flower()
    directory = Path(given.output) if given.output else words.directory(f"{recipe.name}-deployed")
    check_unused(directory)  # before anything takes time
    start = measure_start(given.clients)
    recipe = pace_for_trial(recipe, words.keys, clients=given.clients, start=start)
    expected = start + given.clients * between_nodes() + recipe.seconds
    approve(expected, [fewer_seconds(recipe, expected)], given)
    return _watched(
        given,
        directory,
        recipe,
        lambda row: deploy_local(recipe, directory, tls=given.tls, follow=row.follow, notify=_notify),
    )


def _resume(given: argparse.Namespace) -> int:
    from fedgmr.deploy.local import resume_local

    if given.resume is None:
        raise SettingError("deploy needs to know where: give local, init, or --resume RUN.")
    directory = Path(given.resume)
    recipe = read_recipe(directory)
    return _watched(given, directory, recipe, lambda row: resume_local(directory, follow=row.follow, notify=_notify))


def _init(given: argparse.Namespace) -> None:
    from fedgmr.deploy.app import write_project
    from fedgmr.deploy.pace import pace_for_machines

    words = RecipeWords.read(given.recipe)
    if words.output is not None:
        raise SettingError("output is not a setting of deploy init: it stands in the pyproject.toml of DIR.")
    write_project(Path(given.folder), pace_for_machines(words.load(_BY_NODE), words.keys))
    print(f"Flower app: {given.folder}. Its README.md has the commands for server and nodes.")


def _watched(
    given: argparse.Namespace, directory: Path, recipe: Recipe, perform: Callable[[RunRow], dict[str, Any]]
) -> int:
    """Run a fleet to its end, and say how it ended."""
    try:
        with Display() as display:
            summary = perform(display.begin("", recipe.label, recipe.seconds))
    except KeyboardInterrupt:
        again = resuming(directory, recipe, given.command, ("deploy", "--resume"))
        print(f"fedgmr: interrupted; the fleet was stopped; {again}", file=sys.stderr)
        return 130
    if summary["status"] in _CODES:
        print(f"fedgmr: {summary['problem']}", file=sys.stderr)
        return _CODES[summary["status"]]
    finish_run(directory, summary)
    if advice := summary.get("advice"):
        _notify(advice)
    return 0


def _notify(event: str) -> None:
    print(f"fedgmr: {event}", file=sys.stderr)
