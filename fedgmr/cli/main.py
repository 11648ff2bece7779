"""The command line: assembles the verbs, runs one of them, and turns errors into sentences and exit codes.

Exit codes: 0 done, 1 a run of several was lost, 2 bad input (one sentence, no traceback), 3 a client's training
diverged, 4 a deployed run accepted no update, 130 interrupted. Each file beside this one holds a group of verbs with
their arguments.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from fedgmr.cli import catalogue, deploy, paper, runs, sweeps
from fedgmr.exchange import Diverged
from fedgmr.settings.trust import trust_packages


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    warnings.showwarning = _show_warning
    sys.path.append(os.getcwd())  # a user's own task or method lies where the command is called
    given = _parsed(arguments)
    trust_packages(given.trust or ())
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


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"fedgmr: warning: {message}", file=sys.stderr)  # a live display lets it appear above itself


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command; every verb sets `call`, the function that performs it."""
    parser = argparse.ArgumentParser(
        prog="fedgmr", description="Federated learning for fleets with very different bandwidth."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for group in (runs, sweeps, paper, deploy, catalogue):
        group.add_verbs(verbs)
    for verb in verbs.choices.values():
        verb.add_argument(
            "--trust",
            action="append",
            metavar="PACKAGE",
            help="a package that recipes in run directories may import; may be repeated",
        )
    return parser


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    given, rest = parser.parse_known_args(arguments)
    # argparse does not take a list up again after an option, but settings may stand on either side of one.
    if rest and (not hasattr(given, "recipe") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        given.recipe += rest
    return given


if __name__ == "__main__":
    sys.exit(main())
