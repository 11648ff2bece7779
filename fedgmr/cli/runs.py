"""The verbs of one run: run, resume."""

import argparse
from pathlib import Path
from typing import Any

from fedgmr.cli.arguments import RecipeWords
from fedgmr.cli.terminal import finish_run, run_progress
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import read_recipe


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
    progress = run_progress(recipe)
    result = run_recipe(recipe, directory, progress)
    finish_run(progress, directory, result.final_accuracy)


def _resume(given: argparse.Namespace) -> None:
    directory = Path(given.run)
    progress = run_progress(read_recipe(directory))
    result = resume_run(directory, progress)
    finish_run(progress, directory, result.final_accuracy)
