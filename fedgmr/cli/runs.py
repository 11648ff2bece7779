"""The verbs of one run: run, resume, model, report, verify; and the last line of a run, with its report."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedgmr.cli.arguments import RecipeWords
from fedgmr.cli.duration import add_yes, approve, estimated, fewer_seconds
from fedgmr.cli.onward import goes_on, resuming, spoken
from fedgmr.cli.verbs import HELP
from fedgmr.experiments.assembly import make_task
from fedgmr.experiments.model_files import FORMATS, view_of_level, write_model
from fedgmr.experiments.prolonging import budget
from fedgmr.experiments.result import load
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import check_unused, read_recipe
from fedgmr.experiments.seal import verify_run
from fedgmr.experiments.sweep import PlannedRun, run_status
from fedgmr.experiments.views import MERGED
from fedgmr.files import RECIPE, write_atomic
from fedgmr.notices import said_when_slow
from fedgmr.pages.report import page_with_data, write_report
from fedgmr.reading import Reading
from fedgmr.recipe import Recipe, shipped_recipes
from fedgmr.reporting.comparison import compare_runs
from fedgmr.reporting.display import Display
from fedgmr.reporting.plots import charts_of
from fedgmr.reporting.quantities import format_seconds
from fedgmr.reporting.records import read_run
from fedgmr.reporting.run_files import find_runs
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.refusals import SettingError
from fedgmr.tasks.task import Task


def add_verbs(verbs: Any) -> None:
    """Add the verbs of this file to the command's."""
    run = verbs.add_parser("run", help=HELP["run"], description="Run a recipe; output=DIR sets the run directory.")
    RecipeWords.add_to(run)
    add_yes(run)
    run.set_defaults(call=_run)

    resume = verbs.add_parser("resume", help=HELP["resume"])
    resume.add_argument("run", metavar="RUN", help="a run directory")
    resume.add_argument(
        "changes",
        nargs="*",
        default=(),
        metavar="seconds=S",
        help="a longer time budget, which prolongs a finished run, too",
    )
    add_yes(resume)
    resume.set_defaults(call=_resume)

    model = verbs.add_parser(
        "model",
        help=HELP["model"],
        description="Write a model of a finished run, by default the best one. Without --to the models are listed.",
    )
    model.add_argument("run", metavar="RUN", help="a run directory")
    which = model.add_mutually_exclusive_group()
    which.add_argument("--view", metavar="V", help="a model by its name: merged, padded, 'level 0.05', ...")
    which.add_argument("--level", type=float, metavar="D", help="the sub-model of this density")
    which.add_argument(
        "--client", type=int, metavar="C", help="what this client would be handed: its level's sub-model"
    )
    model.add_argument("--to", metavar="FORMAT", choices=FORMATS, help=" or ".join(FORMATS))
    model.add_argument("--output", metavar="FILE", help="default: a file in the run directory, named after the model")
    model.set_defaults(call=_model)

    report = verbs.add_parser(
        "report",
        help=HELP["report"],
        description="Write report.html again, to explore in a browser, offline: into every run directory, and for a "
        "directory with runs below it a page of all; with --output one page of all runs into a file.",
    )
    report.add_argument("runs", metavar="RUN", nargs="+", help="a run, which may be unfinished, or runs below it")
    report.add_argument("--output", metavar="FILE", help="one page of all runs, as `fedgmr watch` shows them")
    report.add_argument("--figures", metavar="DIR", help="also figures for print, of one run or of methods compared")
    report.set_defaults(call=_report)

    verify = verbs.add_parser(
        "verify",
        help=HELP["verify"],
        description="Check recipe, rows, checkpoints and summary of every run below the directories; exit code 2 where "
        "something was changed, cut or mixed up.",
    )
    verify.add_argument("runs", metavar="RUN", nargs="+", help="a run directory, or a directory with runs below it")
    verify.set_defaults(call=_verify)


def _run(given: argparse.Namespace) -> None:
    words = RecipeWords.read(given.recipe)
    recipe = words.load()
    directory = words.directory(recipe.name)
    check_unused(directory)  # before anything takes time
    with goes_on(partial(resuming, directory, recipe, given.command)):
        with said_when_slow(f"reading the data of {recipe.task.name}"), recipe.execution.own_modes():
            task = make_task(recipe)
        expected = _expected(recipe, directory, task)
        shorter = f"{words.source}-short"
        ways = [f"`{spoken(['run', shorter])}`"] if shorter in shipped_recipes() else []
        approve(expected, [*ways, fewer_seconds(recipe, expected)], given)
        with Display(expected=expected) as display:
            row = display.begin("", recipe.label, recipe.seconds)
            result = run_recipe(recipe, directory, [row, _Place(directory)], task=task)
    finish_run(directory, result.summary)


def _resume(given: argparse.Namespace) -> None:
    directory, seconds = Path(given.run), _more_seconds(given.changes)
    recipe = read_recipe(directory)
    recipe = replace(recipe, seconds=budget(directory, recipe, seconds))
    expected = _expected(recipe, directory)
    approve(expected, [], given)  # its recipe is what it is
    with goes_on(partial(resuming, directory, recipe, given.command)), Display(expected=expected) as display:
        row = display.begin("", recipe.label, recipe.seconds)
        result = resume_run(directory, row, seconds=seconds)
    finish_run(directory, result.summary)


def _expected(recipe: Recipe, directory: Path, task: Task | None = None) -> float | None:
    """Wall seconds that a run takes from where it is."""
    run = PlannedRun(key="", recipe=recipe, directory=directory, status=run_status(directory))
    return estimated([run], task=task).total(1)


class _Place(Watcher):
    """Says where a run is, as soon as it is there."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.said = directory, False

    def preparing(self, stage: str) -> None:
        """Look whether the directory was made."""
        if not self.said and (self.directory / RECIPE).is_file():
            self.said = True
            print(f"Run: {self.directory}", file=sys.stderr, flush=True)


def _more_seconds(changes: Sequence[str]) -> float | None:
    """The time budget that the words of a resume give; they can change nothing else."""
    seconds = None
    for word in changes:
        key, _, value = word.partition("=")
        if key != "seconds":
            raise SettingError(f"{key} cannot be changed in a resume: only seconds=S can, for a longer run.")
        try:
            seconds = float(value)
        except ValueError:
            raise SettingError(f"seconds is {value!r}: give a number of seconds.") from None
    return seconds


def _model(given: argparse.Namespace) -> None:
    for name in ("view", "level", "client", "output") if given.to is None else ():
        if (value := getattr(given, name)) is not None:
            raise SettingError(f"--{name} is {value!r} without --to: give a format, {' or '.join(FORMATS)}.")
    result = load(given.run)
    best = result.summary.get("best_view") or MERGED
    if given.to is None:
        print("\n".join(f"{name}{' (the best)' if name == best else ''}" for name in result.final_views.names))
        return
    if given.level is not None:
        view = view_of_level(result, given.level)
    elif given.client is not None:
        view = result.view_for(given.client)
    else:
        view = given.view or best
    path = write_model(result, view, given.to, Path(given.output) if given.output else None)
    print(f"Model: {path} ({view})")


def _report(given: argparse.Namespace) -> None:
    places = [Path(run) for run in given.runs]
    if given.output:
        output = Path(given.output)
        write_atomic(output, page_with_data(places, folder=output.parent))
        print(f"Report: {output}")
    else:
        for place in places:
            print(f"Report: {write_report(place)}")
    if given.figures:
        _draw(places, Path(given.figures))


def _draw(places: Sequence[Path], folder: Path) -> None:
    """The figures of one run, or of several compared."""
    runs = [files.path for place in places for files in find_runs(place)]
    try:
        charts = charts_of(read_run(runs[0])) if len(runs) == 1 else compare_runs(runs).charts()
    except ModuleNotFoundError as missing:  # the simulator also runs without matplotlib
        package = (missing.name or "").partition(".")[0]
        raise SettingError(f"--figures needs the package {package}, which is not installed: install it.") from missing
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in charts.items():
        chart.save(folder, name)
    print(f"Figures: {folder} ({', '.join(charts)})")


def _verify(given: argparse.Namespace) -> int:
    below = {place: [path.parent for path in Path(place).rglob(RECIPE)] for place in given.runs}
    if empty := [place for place, runs in below.items() if not runs]:
        raise SettingError(f"There are no runs below {', '.join(empty)}: give run directories.")
    found, wrong = sorted(set().union(*below.values())), 0
    for directory in found:
        try:
            print(f"{directory}: {verify_run(directory)}")
        except (ValueError, OSError) as error:
            wrong += 1
            print(f"{directory}: does not hold together: {' '.join(str(error).split())}")
    print(f"{len(found)} run{'' if len(found) == 1 else 's'}, {wrong or 'none'} that cannot be trusted.")
    return 2 if wrong else 0


def finish_run(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write the report of a run and say where it is."""
    report = f"Report: {write_report(directory)}"
    best = summary["best_view"]
    other = summary["views"].get(best) if best != "merged" else None
    reading = Reading.recorded(summary)[0]
    handed_out = f" (merged; handed out: {best}, {reading.text(other['accuracy'])})" if other else ""
    if stopped := summary.get("stopped"):
        print(f"Stopped at {format_seconds(stopped['seconds'])} by {stopped['by']}: {stopped['reason']}.")
    print(f"Final {reading.name} {reading.text(summary['final_accuracy'])}{handed_out}. {report}")
