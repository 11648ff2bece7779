"""The verbs of one run: run, resume; and the last line of a run, with its report."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgmr.cli.arguments import RecipeWords
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import read_recipe
from fedgmr.reporting.display import Display
from fedgmr.reporting.report import write_report


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
        result = run_recipe(recipe, directory, display.begin("", recipe.label, recipe.seconds))
    finish_run(directory, result.final_accuracy)


def _resume(given: argparse.Namespace) -> None:
    directory = Path(given.run)
    recipe = read_recipe(directory)
    with Display() as display:
        result = resume_run(directory, display.begin("", recipe.label, recipe.seconds))
    finish_run(directory, result.final_accuracy)


def finish_run(directory: Path, accuracy: float) -> None:
    """Write the report of a run and say where it is."""
    report = report_line(lambda: write_report(directory), f"Run: {directory}")
    print(f"Final accuracy {100 * accuracy:.2f} %. {report}")


def report_line(write: Callable[[], Path], otherwise: str) -> str:
    """Write a report and say where it is, or say `otherwise` where a package for reports is not installed."""
    try:
        return f"Report: {write()}"
    except ModuleNotFoundError as missing:  # the simulator also runs without matplotlib
        package = (missing.name or "").partition(".")[0]
        return f"{otherwise} (no report: the package {package} is not installed)"
