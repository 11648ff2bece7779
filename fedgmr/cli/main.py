"""The command line: assembles the verbs, runs one of them, and turns errors into sentences and exit codes.

Exit codes: 0 done, 1 a run of several was lost, 2 bad input (one sentence, no traceback), 3 a client's training
diverged, 4 a deployed run accepted no update, 130 interrupted (Ctrl-C, SIGTERM, SIGHUP), 141 nobody reads the output.
Each file beside this one holds a group of verbs with their arguments.
"""

import argparse
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fedgmr.cli.verbs import GROUPS
from fedgmr.notices import said_when_slow
from fedgmr.version import __version__

_LISTS = ("recipe", "changes", "runs", "directories", "words")  # arguments of several words; no verb has two of them


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    warnings.showwarning = _show_warning
    _prepare_output()
    try:
        sys.path.append(os.getcwd())  # a user's own task or method lies where the command is called
    except FileNotFoundError:  # where torch cannot be loaded
        print("fedgmr: The working directory is no longer there: change to one that is.", file=sys.stderr)
        return 2
    with _polite_ends():
        try:
            with said_when_slow("loading torch"):
                given = _parsed(sys.argv[1:] if arguments is None else arguments)
                from fedgmr.settings.trust import trust_packages  # with what loads torch, and not for the overview
            trust_packages(given.trust or ())
            done = int(given.call(given) or 0)
            sys.stdout.flush()
            return done
        except (Exception, KeyboardInterrupt) as error:
            sentence, code = _explained(error)
            if code is None:  # a defect of the program
                raise
            if sentence:
                print(f"fedgmr: {' '.join(sentence.split())}", file=sys.stderr)
            return code


def _explained(error: BaseException) -> tuple[str, int | None]:
    """A sentence for people, and the exit code; None where the error is nobody's fault but the program's."""
    onward = " ".join(getattr(error, "__notes__", ()))
    if isinstance(error, KeyboardInterrupt):  # torch may be loaded by half
        return str(error) or (f"interrupted; {onward}" if onward else "interrupted."), 130
    if isinstance(error, BrokenPipeError):  # `fedgmr list | head`: without a word, as other commands end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it ends
        return "", 141
    from fedgmr.exchange import Diverged  # these load torch
    from fedgmr.experiments.allocation import memory_shortage

    if isinstance(error, Diverged):
        return str(error), 3
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}.", 2
    if isinstance(error, ValueError | OSError):
        return str(error), 2
    if (shortage := memory_shortage(error)) is not None:
        return f"out of memory ({shortage}); {onward}" if onward else f"out of memory ({shortage}).", 2
    return "", None


def _prepare_output() -> None:
    """Have output that was closed (`>&-`) go nowhere, and letters that a terminal lacks escaped, as in errors."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - while the process lives
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def _polite_ends() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does; where they are ignored (nohup) they stay so."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        polite = (signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in polite}
        before = {number: handler for number, handler in before.items() if handler is signal.SIG_DFL}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"fedgmr: warning: {message}", file=sys.stderr)  # a live display lets it appear above itself


def make_parser(groups: Collection[str] = tuple(GROUPS)) -> argparse.ArgumentParser:
    """Make the parser of the command; every verb of these groups sets `call`, others are known by name alone."""
    parser = argparse.ArgumentParser(
        prog="fedgmr", description="Federated learning for fleets with very different bandwidth."
    )
    parser.add_argument("--version", action="version", version=f"fedgmr {__version__}")
    parser.set_defaults(command=())  # of the command, for one that goes on
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for group, names in GROUPS.items():
        if group in groups:
            import_module(f"fedgmr.cli.{group}").add_verbs(verbs)
        else:
            for name, words in names.items():
                verbs.add_parser(name, help=words)
    for verb in verbs.choices.values():
        verb.add_argument(
            "--trust",
            action="append",
            metavar="PACKAGE",
            help="a package that recipes in run directories may import; may be repeated",
        )
    return parser


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser([group for group, verbs in GROUPS.items() if arguments and arguments[0] in verbs])
    given, rest = parser.parse_known_args(arguments)
    # argparse does not take a list up again after an option, but its words may stand on either side of one.
    several = next((name for name in _LISTS if hasattr(given, name)), None)
    if rest and (several is None or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if several:
        setattr(given, several, [*getattr(given, several), *rest])
    given.command = tuple(arguments)
    return given


if __name__ == "__main__":
    sys.exit(main())
