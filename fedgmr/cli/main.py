"""The command line: verbs only. Parse, call, print.

Exit codes: 0 done, 1 a run of several was lost, 2 bad input (one sentence, no traceback), 3 a client's training
diverged, 130 interrupted.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from fedgmr.exchange import Diverged
from fedgmr.experiments.compare import plan_comparison, planned_runs
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import read_recipe
from fedgmr.experiments.sweep import check_jobs, exit_code, perform_sweep
from fedgmr.recipe import Recipe, load_recipe, recipe_data, recipe_path, recipe_schema
from fedgmr.reporting.progress import Progress
from fedgmr.reporting.sweep_progress import RunByRun, SweepProgress
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.text import dump, read_mapping

_DEFAULT_RECIPE = "quickstart"
_BY_NODE = "deployment.identity=node"  # authenticated nodes keep their ids, so nobody has to be believed


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


def _compare(given: argparse.Namespace) -> int:
    from fedgmr.reporting.comparison import compare_runs, write_comparison
    from fedgmr.reporting.report import write_report

    source, overrides, output = _source(given.recipe)
    data = read_mapping(recipe_path(source))
    check_jobs(given.jobs)
    runs = list(planned_runs(data, overrides, given.methods.split(","), given.seeds))
    directory = output or _default_output(f"{runs[0][1].name}-compare")
    plan = plan_comparison(runs, directory)
    work = {run.name: run.recipe.seconds for run in plan if run.to_do}
    watcher = RunByRun() if given.jobs == 1 else SweepProgress(work=work, finished=len(plan) - len(work))
    outcomes = perform_sweep(plan, jobs=given.jobs, watcher=watcher)
    watcher.clear()
    ended = [run.directory for run, end in zip(plan, outcomes, strict=True) if end.status in ("finished", "diverged")]
    if not ended:
        return exit_code(outcomes)
    comparison = compare_runs(ended, target=given.target)
    print(comparison.text())
    try:
        for run in ended:
            write_report(run)
        print(f"\nReport: {write_comparison(comparison, directory)}")
    except ModuleNotFoundError as missing:
        print(f"\nRuns: {directory} ({_no_report(missing)})")
    return exit_code(outcomes)


def _sweep(given: argparse.Namespace) -> int:
    from fedgmr.experiments.sweep import describe_plan, estimate_sweep, grid_points, plan_sweep
    from fedgmr.reporting.grid_table import GridRun, grid_table

    source, overrides, output = _source(given.recipe)
    if output is not None:
        raise SettingError("output is not a setting of a sweep: give --store DIR.")
    if given.gpu_share is not None and given.ray is None:
        raise SettingError(f"--gpu-share is {given.gpu_share}: it is for --ray; without it runs share a GPU freely.")
    check_jobs(given.jobs)
    methods = given.methods.split(",") if given.methods else []
    points = grid_points(
        read_mapping(recipe_path(source)), overrides, axes=given.grid, methods=methods, seeds=given.seeds
    )
    store, also = Path(given.store), [Path(place) for place in given.also]
    plan = plan_sweep([point.recipe for point in points], store, also=also)
    estimate = estimate_sweep(plan, [store, *also])
    print(f"{describe_plan(plan, estimate, given.jobs)} Store: {store}", flush=True)
    guessed = {name: seconds for name, seconds in estimate.runs.items() if seconds is not None}
    work = guessed if len(guessed) == len(estimate.runs) else {r.name: r.recipe.seconds for r in plan if r.to_do}
    progress = SweepProgress(work=work, finished=len({run.key for run in plan if not run.to_do}))
    warnings.showwarning = _showing_above(progress)
    try:
        outcomes = perform_sweep(plan, jobs=given.jobs, ray=given.ray, gpu_share=given.gpu_share, watcher=progress)
    except KeyboardInterrupt:
        progress.clear()
        print("fedgmr: interrupted; the same command goes on from the last checkpoints.", file=sys.stderr)
        return 130
    progress.clear()
    rows = [
        GridRun(values=point.values, method=run.recipe.method.title or point.method, directory=run.directory)
        for point, run in zip(points, plan, strict=True)
    ]
    print(grid_table(rows))
    return exit_code(outcomes)


def _table(given: argparse.Namespace) -> int:
    from fedgmr.paper.making import make_table, write_made
    from fedgmr.paper.planning import Request, estimate_table, estimate_text, plan_table
    from fedgmr.paper.studies import COMPUTED
    from fedgmr.paper.tables import table_text

    strange = [word for word in given.recipe if "=" not in word or word.startswith("output=")]
    if strange:
        raise SettingError(f"{strange[0]!r} is not a setting of a table: settings are written key=value.")
    check_jobs(given.jobs)
    request = Request(
        name=given.table,
        task=given.task,
        heterogeneity=given.heterogeneity,
        split=given.split,
        seeds=given.seeds,
        short=given.short,
        overrides=tuple(given.recipe),
    )
    store = Path(given.store)
    output = Path(given.output) if given.output else store / request.slug
    if request.name in COMPUTED:
        return _computed_table(given, request, output)
    plan = plan_table(request, store, also=[Path(place) for place in (given.results or ["results"])])
    print(f"{plan.summary()} Store: {store}", flush=True)
    code = 0
    if not given.no_run:
        if plan.to_do:
            print("Timing a task and an evaluation of every kind on this device.", flush=True)
        seconds = estimate_table(plan)
        print(estimate_text(seconds, given.jobs), flush=True)
        if given.dry_run:
            print("\n".join(f"{run.status:<12} {run.name}" for run in plan.runs))
            return 0
        progress = SweepProgress(work=seconds, finished=len(plan.runs) - len(plan.to_do))
        warnings.showwarning = _showing_above(progress)
        try:
            outcomes = perform_sweep(plan.runs, jobs=given.jobs, ray=given.ray, watcher=progress)
        except KeyboardInterrupt:
            progress.clear()
            print("fedgmr: interrupted; the same command goes on from the last checkpoints.", file=sys.stderr)
            return 130
        progress.clear()
        code = exit_code(outcomes)
    table = make_table(plan)
    print(f"\n{table_text(table)}\n\nTable: {write_made(plan, table, output)}")
    return code


def _computed_table(given: argparse.Namespace, request: Any, output: Path) -> int:
    from fedgmr.paper.heatmap import write_table
    from fedgmr.paper.making import computed_table
    from fedgmr.paper.tables import table_text

    print("0 runs: this table is computed by the network model; about 10 s.", flush=True)
    if not given.dry_run:
        table = computed_table(request)
        print(f"\n{table_text(table)}\n\nTable: {write_table(table, output)}")
    return 0


def _results(given: argparse.Namespace) -> None:
    from fedgmr.files import write_atomic
    from fedgmr.paper.results import results_document

    text, output = results_document(Path(given.directory)), Path(given.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(output, text)
    print(f"Results: {output}")


def _deploy_local(given: argparse.Namespace) -> int:
    from fedgmr.deploy.local import deploy_local
    from fedgmr.deploy.pace import measured_start, paced_for_trying
    from fedgmr.deploy.site import check_flower

    source, overrides, output = _source(given.recipe)
    if given.clients < 1:
        raise SettingError(f"--clients is {given.clients}: give at least 1.")
    keys = [word.partition("=")[0] for word in overrides]
    recipe = load_recipe(source, [*([_BY_NODE] if given.tls else []), *overrides])
    check_flower()
    recipe = paced_for_trying(recipe, keys, clients=given.clients, start=measured_start(given.clients))
    directory = Path(given.output) if given.output else output or _default_output(f"{recipe.name}-deployed")
    progress = _progress(recipe)
    return _deployed(
        directory, progress, lambda: deploy_local(recipe, directory, tls=given.tls, watcher=progress, notify=_notify)
    )


def _deploy_resume(given: argparse.Namespace) -> int:
    from fedgmr.deploy.local import resume_local

    if given.resume is None:
        raise SettingError("deploy needs to know where: give local, init, or --resume RUN.")
    directory = Path(given.resume)
    progress = _progress(read_recipe(directory))
    return _deployed(directory, progress, lambda: resume_local(directory, watcher=progress, notify=_notify))


def _deploy_init(given: argparse.Namespace) -> None:
    from fedgmr.deploy.app import write_project
    from fedgmr.deploy.pace import paced_for_machines

    source, overrides, output = _source(given.recipe)
    if output is not None:
        raise SettingError("output is not a setting of deploy init: it stands in the pyproject.toml of DIR.")
    keys = [word.partition("=")[0] for word in overrides]
    recipe = load_recipe(source, [_BY_NODE, *overrides])
    write_project(Path(given.folder), paced_for_machines(recipe, keys))
    print(f"Flower app: {given.folder}. Its README.md has the commands for server and nodes.")


def _deployed(directory: Path, progress: Progress, work: Callable[[], dict[str, Any]]) -> int:
    """Run a fleet to its end, and say how it ended."""
    try:
        summary = work()
    except KeyboardInterrupt:
        progress.close()
        again = f"`fedgmr deploy --resume {directory}` goes on from the last checkpoint"
        print(f"fedgmr: interrupted; the fleet was stopped; {again}.", file=sys.stderr)
        return 130
    if summary["status"] == "diverged":
        progress.close()
        print(f"fedgmr: {summary['problem']}", file=sys.stderr)
        return 3
    _finish(progress, directory, summary["final_accuracy"])
    return 0


def _notify(event: str) -> None:
    print(f"fedgmr: {event}", file=sys.stderr)


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


def _showing_above(progress: SweepProgress) -> Callable[..., None]:
    def show(*told: Any) -> None:
        progress.clear()
        _show_warning(*told)

    return show


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
    compare.add_argument("--jobs", type=int, default=1, help="how many runs at once, in processes of their own")
    compare.add_argument("--target", type=float, help="accuracy (0..1) for the time and bytes to it")
    compare.set_defaults(call=_compare)

    sweep = verbs.add_parser(
        "sweep",
        help="run a grid of settings, methods and seeds; what is done already is not repeated",
        description="Run every combination of a grid. Give the same command again after an interruption.",
    )
    sweep.add_argument("recipe", nargs="*", metavar="RECIPE | key=value", help=recipe_help)
    sweep.add_argument(
        "--grid", action="append", default=[], metavar="KEY=V1,V2", help="values to try for a key; may be repeated"
    )
    sweep.add_argument("--methods", help="names with commas, or all (default: the recipe's)")
    sweep.add_argument("--seeds", type=int, default=1, help="how many seeds, counted up from the recipe's")
    sweep.add_argument("--jobs", type=int, default=1, help="how many runs at once, in processes of their own")
    sweep.add_argument("--store", metavar="DIR", default="runs/sweep", help="where the runs are (default: runs/sweep)")
    sweep.add_argument(
        "--also", action="append", default=[], metavar="DIR", help="a directory whose finished runs count too"
    )
    sweep.add_argument("--ray", metavar="ADDRESS", help="run on a Ray cluster: its address, or local")
    sweep.add_argument("--gpu-share", type=float, metavar="SHARE", help="with --ray: share of a GPU for each run")
    sweep.set_defaults(call=_sweep)

    resume = verbs.add_parser("resume", help="continue an interrupted run")
    resume.add_argument("run", metavar="RUN", help="a run directory")
    resume.set_defaults(call=_resume)

    table = verbs.add_parser(
        "table",
        help="a table of the paper: runs what is missing, prints ours, the paper's and the difference",
        description="Make a table of the paper. Give the same command again after an interruption.",
    )
    table.add_argument("table", metavar="NAME", help="baselines, aggregation, ablation, ims-cost, plugin, ...")
    table.add_argument("recipe", nargs="*", metavar="key=value", help="settings changed in every run")
    table.add_argument("--task", help="names with commas (default: all of the table)")
    table.add_argument("--heterogeneity", help="high, medium, low, with commas")
    table.add_argument("--split", help="iid, noniid")
    table.add_argument("--seeds", type=int, default=1, help="how many seeds, counted up from the recipe's")
    table.add_argument("--short", action="store_true", help="shortened recipes, for a CPU; marked in every output")
    table.add_argument("--jobs", type=int, default=1, help="how many runs at once, in processes of their own")
    table.add_argument("--ray", metavar="ADDRESS", help="run on a Ray cluster: its address, or local")
    table.add_argument("--store", metavar="DIR", default="runs/tables", help="of the runs (default: runs/tables)")
    table.add_argument(
        "--results", action="append", metavar="DIR", help="a directory whose finished runs count (default: results)"
    )
    table.add_argument("--output", metavar="DIR", help="where the table is written (default: below the store)")
    table.add_argument("--dry-run", action="store_true", help="only say what would run")
    table.add_argument("--no-run", action="store_true", help="only tabulate what there is")
    table.set_defaults(call=_table)

    results = verbs.add_parser("results", help="write the document of results from the runs in a directory")
    results.add_argument("directory", nargs="?", default="results", metavar="DIR", help="default: results")
    results.add_argument("--output", metavar="FILE", default="docs/results.md", help="default: docs/results.md")
    results.set_defaults(call=_results)

    deploy = verbs.add_parser("deploy", help="run a recipe on a fleet of Flower nodes")
    deploy.add_argument("--resume", metavar="RUN", help="go on with an interrupted run of deploy local")
    deploy.set_defaults(call=_deploy_resume)
    places = deploy.add_subparsers(metavar="WHERE")
    local = places.add_parser(
        "local",
        help="SuperLink, SuperNodes and the run on this machine, for trying out",
        description="Run a recipe on a fleet on this machine; 30 ticks, some minutes, unless seconds= is given.",
    )
    local.add_argument("recipe", nargs="*", metavar="RECIPE | key=value", help=recipe_help)
    local.add_argument("--clients", type=int, default=4, metavar="N", help="how many SuperNodes (default: 4)")
    local.add_argument("--output", metavar="DIR", help="the run directory; the same as output=DIR")
    local.add_argument("--tls", action="store_true", help="certificates, and nodes that authenticate themselves")
    local.set_defaults(call=_deploy_local)
    init = places.add_parser("init", help="write a Flower app for machines of your own")
    init.add_argument("folder", metavar="DIR", help="a new folder")
    init.add_argument("recipe", nargs="*", metavar="RECIPE | key=value", help=recipe_help)
    init.set_defaults(call=_deploy_init)

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
