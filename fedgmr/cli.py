"""The command line: verbs only. Parse, call, print.

Exit codes: 0 done, 2 bad input (one sentence, no traceback), 3 a client's training diverged, 130 interrupted.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from fedgmr.exchange import Diverged
from fedgmr.experiments.compare import planned_runs, run_all
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import read_recipe
from fedgmr.recipe import Recipe, load_recipe, recipe_data, recipe_path, recipe_schema
from fedgmr.reporting.progress import Progress
from fedgmr.settings_refusals import SettingError
from fedgmr.settings_text import dump, read_mapping

_DEFAULT_RECIPE = "quickstart"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    warnings.showwarning = _show_warning
    sys.path.append(os.getcwd())  # a user's own task or method lies where the command is called
    given = _parsed(arguments)
    try:
        return int(given.call(given) or 0)
    except Diverged as error:
        print(f"fedgmr: {error}", file=sys.stderr)
        return 3
    except (ValueError, OSError) as error:
        print(f"fedgmr: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedgmr: interrupted; `fedgmr resume RUN` goes on from the last checkpoint.", file=sys.stderr)
        return 130


def _run(given: argparse.Namespace) -> None:
    source, overrides, output = _source(given.recipe)
    recipe = load_recipe(source, overrides)
    directory = output or _default_output(recipe.name)
    progress = _progress(recipe)
    result = run_recipe(recipe, directory, progress)
    _finish(progress, directory, result.final_accuracy)


def _resume(given: argparse.Namespace) -> None:
    directory = Path(given.run)
    progress = _progress(read_recipe(directory))
    result = resume_run(directory, progress)
    _finish(progress, directory, result.final_accuracy)


def _compare(given: argparse.Namespace) -> None:
    from fedgmr.reporting.comparison import compare_runs, write_comparison
    from fedgmr.reporting.report import write_report

    source, overrides, output = _source(given.recipe)
    data = read_mapping(recipe_path(source))
    if given.seeds < 1:
        raise SettingError(f"--seeds is {given.seeds}: give at least 1.")
    runs = list(planned_runs(data, overrides, given.methods.split(","), given.seeds))
    directory = output or _default_output(f"{runs[0][1].name}-compare")
    directories = run_all(runs, directory, _progress)
    comparison = compare_runs(directories, target=given.target)
    print(comparison.text())
    try:
        for run in directories:
            write_report(run)
        print(f"\nReport: {write_comparison(comparison, directory)}")
    except ModuleNotFoundError as missing:
        print(f"\nRuns: {directory} ({_no_report(missing)})")


def _list(given: argparse.Namespace) -> None:
    from fedgmr.catalogue import catalogue

    print(catalogue())


def _data(given: argparse.Namespace) -> None:
    from fedgmr.tasks.survey import download, survey

    if given.download:
        print(f"Downloaded: {download(given.download, given.root)}")
    else:
        print(survey(given.root))


def _show(given: argparse.Namespace) -> None:
    from fedgmr.experiments.assembly import make_task, resolve

    source, overrides, _ = _source(given.recipe)
    recipe = load_recipe(source, overrides)
    data = recipe_data(resolve(recipe, make_task(recipe)))
    print(json.dumps(data, indent=2) if given.json else dump(data), end="\n" if given.json else "")


def _schema(given: argparse.Namespace) -> None:
    print(json.dumps(recipe_schema(), indent=2))


def _source(words: Sequence[str]) -> tuple[str, list[str], Path | None]:
    """(recipe, overrides, output directory) from `[RECIPE] [key=value ...]`."""
    plain = [word for word in words if "=" not in word]
    if len(plain) > 1:
        raise SettingError(
            f"Two recipes are given, {plain[0]!r} and {plain[1]!r}: give one; settings are written key=value."
        )
    overrides = [word for word in words if "=" in word]
    outputs = [word.partition("=")[2] for word in overrides if word.startswith("output=")]
    rest = [word for word in overrides if not word.startswith("output=")]
    if outputs and not outputs[-1]:
        raise SettingError("output is empty: give a directory.")
    return plain[0] if plain else _DEFAULT_RECIPE, rest, Path(outputs[-1]) if outputs else None


def _default_output(name: str) -> Path:
    stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = stem, 2
    while path.exists():
        path, number = stem.with_name(f"{stem.name}-{number}"), number + 1
    return path


def _progress(recipe: Recipe) -> Progress:
    label = f"{recipe.method.title or recipe.method.name} seed {recipe.seed}"
    return Progress(total_seconds=recipe.seconds, label=f"{label} (short)" if recipe.short else label)


def _finish(progress: Progress, directory: Path, accuracy: float) -> None:
    progress.close()
    try:
        from fedgmr.reporting.report import write_report

        report = f"Report: {write_report(directory)}"
    except ModuleNotFoundError as missing:  # the simulator also runs where only torch and numpy are
        report = f"Run: {directory} ({_no_report(missing)})"
    print(f"Final accuracy {100 * accuracy:.2f} %. {report}")


def _no_report(missing: ModuleNotFoundError) -> str:
    return f"no report: the package {(missing.name or '').partition('.')[0]} is not installed"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"fedgmr: warning: {message}", file=sys.stderr)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    given, rest = parser.parse_known_args(arguments)
    # argparse does not take a list up again after an option, but settings may stand on either side of one.
    if rest and (not hasattr(given, "recipe") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        given.recipe += rest
    return given


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedgmr", description="Federated learning for fleets with very different bandwidth."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    recipe_help = (
        "a recipe file or the name of one that ships with the package (default: quickstart), and settings key=value"
    )

    run = verbs.add_parser("run", help="run a recipe", description="Run a recipe; output=DIR sets the run directory.")
    run.add_argument("recipe", nargs="*", metavar="RECIPE | key=value", help=recipe_help)
    run.set_defaults(call=_run)

    compare = verbs.add_parser("compare", help="run several methods and seeds and compare them")
    compare.add_argument("recipe", nargs="*", metavar="RECIPE | key=value", help=recipe_help)
    compare.add_argument(
        "--methods", default="fedgmr,fedgmr_without_restoration,fedavg,fedasync", help="names with commas, or all"
    )
    compare.add_argument("--seeds", type=int, default=1, help="how many seeds, counted up from the recipe's")
    compare.add_argument("--target", type=float, help="accuracy (0..1) for the time and bytes to it")
    compare.set_defaults(call=_compare)

    resume = verbs.add_parser("resume", help="continue an interrupted run")
    resume.add_argument("run", metavar="RUN", help="a run directory")
    resume.set_defaults(call=_resume)

    listing = verbs.add_parser("list", help="methods, tasks, fleets and recipes")
    listing.set_defaults(call=_list)

    data = verbs.add_parser("data", help="which data sets are there, and what to put where for the others")
    data.add_argument("--root", metavar="DIR", help="directory with the data (default: FEDGMR_DATA)")
    data.add_argument("--download", metavar="TASK", help="fetch a task's public files into that directory")
    data.set_defaults(call=_data)

    show = verbs.add_parser("show", help="print the resolved recipe")
    show.add_argument("recipe", nargs="*", metavar="RECIPE | key=value", help=recipe_help)
    show.add_argument("--json", action="store_true", help="as JSON, for machines without PyYAML")
    show.set_defaults(call=_show)

    schema = verbs.add_parser("schema", help="print the JSON schema of recipes, for editors")
    schema.set_defaults(call=_schema)
    return parser


if __name__ == "__main__":
    sys.exit(main())
