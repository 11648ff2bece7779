"""The verbs of one run: run, resume."""

import argparse
from pathlib import Path
from typing import Any

from fedgmr.cli.arguments import RecipeWords
from fedgmr.cli.terminal import finish_run, show_run
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import read_recipe
from fedgmr.reporting.display import Display


def add_verbs(verbs: Any) -> None:
    """Add the verbs of this file to the command's."""
    run = verbs.add_parser("run", help="run a recipe", description="Run a recipe; output=DIR sets the run directory.")
    RecipeWords.add_to(run)
    run.set_defaults(call=_run)

    resume = verbs.add_parser("resume", help="continue an interrupted run")
    resume.add_argument("run", metavar="RUN", help="a run directory")
    resume.set_defaults(call=_resume)


def _run(given: argparse.Namespace) -> None:
    words = RecipeWords.read(given.recipe)
    recipe = words.load()
    directory = words.directory(recipe.name)
    with Display() as display:
        result = run_recipe(recipe, directory, show_run(display, recipe))
    finish_run(directory, result.final_accuracy)


def _resume(given: argparse.Namespace) -> None:
    directory = Path(given.run)
    recipe = read_recipe(directory)
    with Display() as display:
        result = resume_run(directory, show_run(display, recipe))
    finish_run(directory, result.final_accuracy)
