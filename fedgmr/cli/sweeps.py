"""The verbs of many runs: demo, compare, sweep."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.cli.arguments import RUNS, RecipeWords
from fedgmr.cli.duration import add_yes, approve, estimated, fewer_seconds, more_jobs
from fedgmr.cli.onward import goes_on, repeating
from fedgmr.cli.verbs import HELP
from fedgmr.experiments.assembly import as_evaluated, make_task
from fedgmr.experiments.estimate import Estimate
from fedgmr.experiments.sweep import (
    GridPoint,
    Outcome,
    PlannedRun,
    check_jobs,
    describe_plan,
    exit_code,
    expected_runs,
    grid_points,
    perform_sweep,
    plan_comparison,
    plan_sweep,
    unfinished_comparison,
)
from fedgmr.files import SUMMARY, file_name
from fedgmr.notices import said_when_slow
from fedgmr.pages.report import write_report
from fedgmr.recipe import read_recipe_data
from fedgmr.reporting.comparison import compare_runs
from fedgmr.reporting.display import Display
from fedgmr.reporting.grid_table import grid_table
from fedgmr.reporting.records import read_summary
from fedgmr.reporting.run_files import is_run
from fedgmr.settings.refusals import SettingError

_METHODS = "fedgmr,fedgmr_without_restoration,fedavg,fedasync"


def add_verbs(verbs: Any) -> None:
    """Add the verbs of this file to the command's."""
    demo = verbs.add_parser(
        "demo",
        help=HELP["demo"],
        description="Compare four methods on the quickstart, in runs/demo; settings and options change it.",
    )
    demo.add_argument("recipe", nargs="*", metavar="key=value", help="settings of the quickstart, and output=DIR")
    demo.set_defaults(call=_demo)
    compare = verbs.add_parser("compare", help=HELP["compare"])
    RecipeWords.add_to(compare)
    compare.set_defaults(call=_compare)
    for verb in (demo, compare):
        verb.add_argument("--methods", default=_METHODS, help="names with commas, or all")
        verb.add_argument("--target", type=float, help="value of the metric (accuracy: 0..1), for time and bytes to it")
        verb.add_argument(
            "--clients", action="store_true", help="add the 10th percentile, the worst client and Jain's index"
        )

    sweep = verbs.add_parser(
        "sweep",
        help=HELP["sweep"],
        description="Run every combination of a grid. Give the same command again after an interruption.",
    )
    RecipeWords.add_to(sweep)
    sweep.add_argument(
        "--grid", action="append", default=[], metavar="KEY=V1,V2", help="values to try for a key; may be repeated"
    )
    sweep.add_argument("--methods", help="names with commas, or all (default: the recipe's)")
    sweep.add_argument("--store", metavar="DIR", default="runs/sweep", help="where the runs are (default: runs/sweep)")
    sweep.add_argument(
        "--also", action="append", default=[], metavar="DIR", help="a directory whose finished runs count too"
    )
    sweep.add_argument("--ray", metavar="ADDRESS", help="run on a Ray cluster: its address, or local")
    sweep.add_argument("--gpu-share", type=float, metavar="SHARE", help="with --ray: share of a GPU for each run")
    sweep.set_defaults(call=_sweep)
    for verb in (demo, compare, sweep):
        verb.add_argument("--seeds", type=int, default=1, help="how many seeds, counted up from the recipe's")
        verb.add_argument("--jobs", type=int, default=1, help="how many runs at once, in processes of their own")
        add_yes(verb)


def _demo(given: argparse.Namespace) -> int:
    if recipes := [word for word in given.recipe if "=" not in word]:
        raise SettingError(f"demo runs the quickstart: leave {recipes[0]!r} out, or give it to `fedgmr compare`.")
    given.recipe = ["quickstart", "output=runs/demo", *given.recipe]
    return _compare(given)


def _compare(given: argparse.Namespace) -> int:
    words = RecipeWords.read(given.recipe)
    data = read_recipe_data(words.source)
    check_jobs(given.jobs)
    points = grid_points(data, words.overrides, methods=given.methods.split(","), seeds=given.seeds)
    if given.clients and not all(point.recipe.evaluation.clients for point in points):
        raise SettingError("--clients needs evaluations per client: set evaluation.clients, such as to 10.")
    if given.target is not None and not 0 < given.target <= 1:  # a value of some metric, but of no accuracy
        recipe = points[0].recipe
        as_evaluated(make_task(recipe), recipe).metrics[0].check_target(given.target, "--target")
    directory = words.output or _directory(points, words)
    _check_no_run(directory, "output")
    with said_when_slow("looking for runs that are there, which takes the data"):
        plan = plan_comparison(points, directory)
    estimate = estimated(plan, [directory], apart=given.jobs > 1)
    print(f"{describe_plan(plan)} Directory: {directory}", file=sys.stderr, flush=True)
    again = [*given.command, *([] if words.output else [f"output={directory}"])]
    shorter = ["fewer --methods or --seeds", fewer_seconds(points[0].recipe, estimate.total(given.jobs))]
    outcomes = perform_watched(plan, estimate, given, again, shorter=shorter)
    ended = [run.directory for run, end in zip(plan, outcomes, strict=True) if end.status in ("finished", "diverged")]
    if not ended:
        return exit_code(outcomes)
    comparison = compare_runs(ended, target=given.target, clients=given.clients)
    print(comparison.text())
    comparison.write(directory)
    print(f"\nReport: {write_report(directory, comparison=comparison)}")
    return exit_code(outcomes)


def _sweep(given: argparse.Namespace) -> int:
    words = RecipeWords.read(given.recipe)
    if words.output is not None:
        raise SettingError("output is not a setting of a sweep: give --store DIR.")
    if given.gpu_share is not None and given.ray is None:
        raise SettingError(f"--gpu-share is {given.gpu_share}: it is for --ray; without it runs share a GPU freely.")
    check_jobs(given.jobs)
    methods = given.methods.split(",") if given.methods else []
    data = read_recipe_data(words.source)
    points = grid_points(data, words.overrides, axes=given.grid, methods=methods, seeds=given.seeds)
    store, also = Path(given.store), [Path(place) for place in given.also]
    _check_no_run(store, "--store")
    if missing := [place for place in given.also if not Path(place).is_dir()]:
        raise SettingError(f"--also is {missing[0]!r}, which is no directory: give one with runs below it.")
    words_of = [[f"{key.rpartition('.')[2]}-{value}" for key, value in point.values] for point in points]
    with said_when_slow("looking for runs that are there, which takes the data"):
        plan = plan_sweep([point.recipe for point in points], store, also=also, words=words_of)
    estimate = estimated(plan, [store, *also], apart=given.jobs > 1 or given.ray is not None)
    print(*filter(None, (describe_plan(plan), estimate.text(given.jobs), f"Store: {store}")), flush=True)
    about = {
        run.name: [f"{key.rpartition('.')[2]}={value}" for key, value in point.values]
        for point, run in zip(points, plan, strict=True)
    }
    shorter = [
        "a smaller --grid, fewer --methods or --seeds",
        fewer_seconds(points[0].recipe, estimate.total(given.jobs)),
    ]
    outcomes = perform_watched(plan, estimate, given, given.command, shorter=shorter, about=about)
    runs = [
        ([*dict(point.values).values(), run.recipe.method.title or point.method], read_summary(run.directory / SUMMARY))
        for point, run in zip(points, plan, strict=True)
    ]
    table = grid_table([*dict(points[0].values), "method"], runs)
    print(table.text())
    if begun := list(dict.fromkeys(run.directory for run in plan if is_run(run.directory))):
        table.write(store)
        print(f"\nReport: {write_report(store, begun)}")
    return exit_code(outcomes)


def _check_no_run(directory: Path, option: str) -> None:
    """Refuse the directory of a run, whose report would be replaced, and below which nobody looks for others."""
    if is_run(directory):
        raise SettingError(f"{option} is {str(directory)!r}, which is itself a run: give another directory.")


def _directory(points: Sequence[GridPoint], words: RecipeWords) -> Path:
    """The directory of a comparison that the user did not name: of an unfinished one with these runs, or a new one."""
    name = f"{points[0].recipe.name}-compare"
    with said_when_slow("looking for a comparison that goes on, which takes the data"):
        return unfinished_comparison(points, RUNS.glob(f"{file_name(name)}-*")) or words.directory(name)


def perform_watched(
    runs: Sequence[PlannedRun],
    estimate: Estimate,
    given: argparse.Namespace,
    again: Sequence[str],
    *,
    shorter: Sequence[str],
    about: Mapping[str, Sequence[str]] | None = None,
) -> list[Outcome]:
    """Perform planned runs with `--jobs` and `--ray` and show how they go; returns how they ended.

    Args:
        runs: the runs, in the order in which they start.
        estimate: how long they take.
        given: the command.
        again: its words for going on after an interruption.
        shorter: what makes it shorter, beside `--jobs`.
        about: words about every run beside method and seed, by name.
    """
    ray = getattr(given, "ray", None)
    if ray in (None, "local"):  # another cluster has machines of which nothing is known
        approve(estimate.total(given.jobs), [*shorter, *more_jobs(given.jobs)], given)
    pace = None if estimate.known is None else float(min(given.jobs, len(estimate.known)))
    display = Display(expected_runs(runs, estimate.known, about or {}), pace=pace)
    share = getattr(given, "gpu_share", None)
    with goes_on(lambda: repeating(again)), display:
        return perform_sweep(runs, jobs=given.jobs, ray=ray, gpu_share=share, watcher=display)
