"""The verbs for a beginning: list, doctor, completion. None of them loads torch before it must."""

import argparse
from typing import Any

from fedgmr.cli.completion import BASH, complete, read_words
from fedgmr.cli.verbs import HELP


def add_verbs(verbs: Any) -> None:
    """Add the verbs of this file to the command's."""
    listing = verbs.add_parser("list", help=HELP["list"])
    listing.set_defaults(call=_list)

    doctor = verbs.add_parser("doctor", help=HELP["doctor"], description="Exit code 1 where something is broken.")
    doctor.add_argument("--root", metavar="DIR", help="directory with the data (default: FEDGMR_DATA)")
    doctor.set_defaults(call=_doctor)

    completion = verbs.add_parser(
        "completion", help=HELP["completion"], description='For bash: eval "$(fedgmr completion bash)" in ~/.bashrc.'
    )
    completion.add_argument("shell", nargs="?", choices=["bash"], default="bash", help="the shell (default: bash)")
    completion.add_argument("--line", metavar="TEXT", help="print the words that may stand where this line ends")
    completion.set_defaults(call=_completion)


def _list(given: argparse.Namespace) -> None:
    lines = []
    for title, entries in read_words()["list"].items():
        width = max((len(name) for name in entries), default=0)
        lines += [title, *(f"  {name:<{width}}  {about}" for name, about in entries.items()), ""]
    print("\n".join(lines).rstrip())


def _doctor(given: argparse.Namespace) -> int:
    from fedgmr.experiments.diagnosis import diagnose

    findings = diagnose(given.root)
    width = max(len(finding.name) for finding in findings)
    print("\n".join(f"{finding.name:<{width}}  {finding.text}" for finding in findings))
    broken = [finding for finding in findings if finding.broken]
    print(f"\nBroken: {', '.join(finding.name for finding in broken)}." if broken else "\nNothing is broken.")
    return 1 if broken else 0


def _completion(given: argparse.Namespace) -> None:
    print(BASH if given.line is None else "\n".join(complete(given.line)), end="" if given.line is None else "\n")
