"""The verb trace: rates over time, made, described and drawn."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgmr.cli.verbs import HELP
from fedgmr.experiments.traces import IN_ASCII, KINDS, UNITS, description_table, draw_traces, make_trace, read_traces
from fedgmr.files import write_atomic
from fedgmr.reporting.strips import draw_strips
from fedgmr.settings.refusals import SettingError


def add_verbs(verbs: Any) -> None:
    """Add the verb of this file to the command's."""
    trace = verbs.add_parser(
        "trace",
        help=HELP["trace"],
        description="`trace make drive` writes a generated trace, `trace show FILE ...` describes trace files, and "
        "`trace RUN` draws the rate, the transfers and the idle time of every client of a run.",
    )
    trace.add_argument("words", nargs="+", metavar="make KIND | show FILE ... | RUN", help=f"kinds: {', '.join(KINDS)}")
    trace.add_argument(
        "--seconds", type=int, default=1020, metavar="S", help="make: length of the drive (default: %(default)s)"
    )
    trace.add_argument("--seed", type=int, default=0, metavar="N", help="make: which draw (default: %(default)s)")
    trace.add_argument("--output", metavar="FILE", help="make: the CSV file (default: standard output)")
    trace.add_argument("--unit", choices=UNITS, metavar="UNIT", help=f"show: of rates without one; {', '.join(UNITS)}")
    trace.add_argument("--figure", metavar="FILE", help="show, RUN: draw into this file, .png or .pdf")
    trace.set_defaults(call=_trace)


def _trace(given: argparse.Namespace) -> None:
    first, *rest = given.words
    if first == "make":
        _make(given, rest)
    elif first == "show":
        _show(given, rest)
    else:
        _draw_run(given, first, rest)


def _make(given: argparse.Namespace, rest: list[str]) -> None:
    if len(rest) != 1:
        raise SettingError(f"trace make needs one kind of trace: give {' or '.join(KINDS)}.")
    text = make_trace(rest[0], seconds=given.seconds, seed=given.seed)
    if given.output is None:
        print(text, end="")
        return
    write_atomic(Path(given.output), text)
    print(f"Trace: {given.output}")


def _show(given: argparse.Namespace, rest: list[str]) -> None:
    if not rest:
        raise SettingError("trace show needs trace files: give one or more.")
    traces = read_traces(rest, unit=given.unit)
    table = "\n".join(description_table(traces))
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(table if unicode else table.translate(IN_ASCII))
    if given.figure is not None:
        _draw(given.figure, lambda path: draw_traces(traces, path))


def _draw_run(given: argparse.Namespace, run: str, rest: list[str]) -> None:
    if rest or given.figure is None:
        raise SettingError(
            f"trace {run} draws a run: give one directory and --figure FILE; or give make KIND, or show FILE."
        )
    _draw(given.figure, lambda path: draw_strips(run, path))


def _draw(figure: str, draw: Callable[[Path], None]) -> None:
    try:
        draw(Path(figure))
    except ModuleNotFoundError as missing:  # the simulator also runs without matplotlib
        package = (missing.name or "").partition(".")[0]
        raise SettingError(f"--figure needs the package {package}, which is not installed: install it.") from missing
    print(f"Figure: {figure}")
