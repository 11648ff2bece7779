"""The verb watch: runs in a browser, while they go on."""

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from fedgmr.cli.verbs import HELP
from fedgmr.pages.server import PageServer
from fedgmr.settings.refusals import SettingError


def add_verbs(verbs: Any) -> None:
    """Add the verb of this file to the command's."""
    watch = verbs.add_parser(
        "watch",
        help=HELP["watch"],
        description="Show runs on a page of this machine, also while they go on; Ctrl-C ends it. The page can be seen "
        "only with the address that is printed, and it changes nothing.",
    )
    watch.add_argument(
        "directories",
        metavar="DIRECTORY",
        nargs="+",
        help="a run, a comparison, a sweep, or any directory with runs below it; runs may begin later",
    )
    watch.add_argument("--port", type=int, default=0, metavar="N", help="default: a free one")
    watch.add_argument("--open", action="store_true", help="open the page in a browser")
    watch.set_defaults(call=_watch)


def _watch(given: argparse.Namespace) -> None:
    directories = [Path(directory) for directory in given.directories]
    try:
        server = PageServer(directories, given.port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "no port has this number"
        raise SettingError(f"--port is {given.port} ({reason}): give another one, or none for a free one.") from error
    with server:
        for directory in directories:
            if not directory.is_dir():
                print(f"{directory} is not there yet: its runs appear when they begin.")
        print(f"Watching at {server.address} (Ctrl-C ends it)", flush=True)
        if given.open:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nNo longer watching; the runs go on.")
