"""The verbs of the paper's study: table, results."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgmr.cli.duration import add_yes, estimated
from fedgmr.cli.sweeps import perform_watched
from fedgmr.cli.verbs import HELP
from fedgmr.experiments.sweep import check_jobs, exit_code
from fedgmr.files import write_atomic
from fedgmr.notices import said_when_slow
from fedgmr.paper.computed import computed_table
from fedgmr.paper.making import make_table
from fedgmr.paper.planning import COMPUTED, Request, TablePlan, plan_table
from fedgmr.paper.protocols import DEFAULT, PROTOCOLS
from fedgmr.paper.rendering import table_text, write_table
from fedgmr.paper.results import results_document
from fedgmr.settings.refusals import SettingError


def add_verbs(verbs: Any) -> None:
    """Add the verbs of this file to the command's."""
    table = verbs.add_parser(
        "table",
        help=HELP["table"],
        description="Make a table of the paper. Give the same command again after an interruption.",
    )
    table.add_argument("table", metavar="NAME", help="baselines, aggregation, ablation, ims-cost, plugin, ...")
    table.add_argument("recipe", nargs="*", default=[], metavar="key=value", help="settings changed in every run")
    table.add_argument("--task", help="names with commas (default: all of the table)")
    table.add_argument("--heterogeneity", help="high, medium, low, with commas")
    table.add_argument("--split", help="iid, noniid")
    table.add_argument(
        "--protocol",
        default="",
        metavar="NAME",
        help=f"settings of the runs: {', '.join(PROTOCOLS)} (default: {DEFAULT})",
    )
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
    add_yes(table)
    table.set_defaults(call=_table)

    results = verbs.add_parser("results", help=HELP["results"])
    results.add_argument("directory", nargs="?", default="results", metavar="DIR", help="default: results")
    results.add_argument("--output", metavar="FILE", default="docs/results.md", help="default: docs/results.md")
    results.set_defaults(call=_results)


def _table(given: argparse.Namespace) -> int:
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
        protocol=given.protocol,
        overrides=tuple(given.recipe),
    )
    store = Path(given.store)
    output = Path(given.output) if given.output else store / request.slug
    if request.name in COMPUTED:
        print("0 runs: this table is computed by the network model; about 10 s.", flush=True)
        if not given.dry_run:
            table = computed_table(request)
            print(f"\n{table_text(table)}\n\nTable: {write_table(table, output)}")
        return 0
    also = [Path(place) for place in (given.results or ["results"])]
    with said_when_slow("looking for runs that are there"):
        plan = plan_table(request, store, also=also)
    place = "" if given.dry_run else f", table: {output}"
    print(f"{plan.summary()} Store: {store}{place}", flush=True)
    code = 0 if given.no_run else _perform(plan, [store, *also], given)
    if given.dry_run and not given.no_run:
        return code
    table = make_table(plan)
    print(f"\n{table_text(table)}\n\nTable: {write_table(table, output)}")
    return code


def _perform(plan: TablePlan, stores: Sequence[Path], given: argparse.Namespace) -> int:
    """Say how long the runs of a table will take, and perform them unless `--dry-run` is given."""
    estimate = estimated(plan.to_do, stores, apart=given.jobs > 1 or given.ray is not None)
    print(plan.estimate_text(estimate, given.jobs), flush=True)
    if given.dry_run:
        print("\n".join(f"{run.status:<12} {run.name}" for run in plan.runs))
        return 0
    shorter = [*([] if given.short else ["--short"]), "a part of it by --task, --heterogeneity, --split"]
    return exit_code(perform_watched(plan.runs, estimate, given, given.command, shorter=shorter, about=_about(plan)))


def _about(plan: TablePlan) -> dict[str, list[str]]:
    """Setting and variant of every run by name; of one that several cells share, those of the first."""
    titles, about = plan.study.variants(short=plan.request.short), dict[str, list[str]]()
    for (setting, variant), runs in plan.cells.items():
        for run in runs:
            about.setdefault(run.name, [setting.task, setting.heterogeneity, setting.split, titles[variant]])
    return about


def _results(given: argparse.Namespace) -> None:
    output = Path(given.output)
    folder = output.with_suffix("")
    document = results_document(Path(given.directory), folder.name)
    (folder if document.figures else output.parent).mkdir(parents=True, exist_ok=True)
    for name, draw in document.figures.items():
        write_atomic(folder / name, draw().image())
    write_atomic(output, document.text)
    drawn = f", {len(document.figures)} figures in {folder}" if document.figures else ""
    print(f"Results: {output}{drawn}")
