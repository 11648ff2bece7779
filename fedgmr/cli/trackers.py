"""The verb export: runs to trackers and tables. Their packages are imported where they are used."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fedgmr.cli.verbs import HELP
from fedgmr.reporting.run_files import find_runs
from fedgmr.settings.refusals import SettingError
from fedgmr.trackers.exporting import PATIENCE, export
from fedgmr.trackers.tracker import TARGETS, make_tracker


def add_verbs(verbs: Any) -> None:
    """Add the verb of this file to the command's."""
    words = verbs.add_parser(
        "export",
        help=HELP["export"],
        description="Export a run, or all runs below a directory: a comparison, a sweep.",
    )
    words.add_argument("directory", metavar="RUN | DIR", help="a run directory, or one with runs below it")
    words.add_argument("--to", required=True, metavar="TARGET", choices=TARGETS, help=", ".join(TARGETS))
    words.add_argument("--output", metavar="DIR", help="where it goes (default: a folder in the exported directory)")
    words.add_argument("--clients", action="store_true", help="the values of every client too; tables always have them")
    words.add_argument("--follow", action="store_true", help="go on until the runs have ended")
    words.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        metavar="SECONDS",
        help="with --follow: how long an interrupted run may rest, or DIR be without a new run (default: %(default)g)",
    )
    words.set_defaults(call=_export)


def _export(given: argparse.Namespace) -> int:
    directory = Path(given.directory)
    if not given.follow and not find_runs(directory):
        raise SettingError(f"There are no runs below {directory}: give a run directory, or one with runs below it.")
    tracker = make_tracker(given.to, directory, Path(given.output) if given.output else None)
    try:
        unended = export(directory, tracker, follow=given.follow, clients=given.clients, patience=given.patience)
    except KeyboardInterrupt:
        print(f"fedgmr: interrupted; the rows so far are in {tracker.close()}.", file=sys.stderr)
        return 130
    except BaseException:
        tracker.close()
        raise
    print(f"Exported: {tracker.close()}")
    for run in unended if given.follow else ():
        print(f"fedgmr: {run.path} was interrupted: resume it, and export it again.", file=sys.stderr)
    return 1 if given.follow and unended else 0
