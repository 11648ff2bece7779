"""How long a command takes: said before it starts where that is long, and asked about where it is hours."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fedgmr.cli.onward import spoken
from fedgmr.experiments.estimate import Estimate, estimate_runs
from fedgmr.experiments.sweep import PlannedRun
from fedgmr.notices import said_when_slow
from fedgmr.recipe import Recipe
from fedgmr.reporting.quantities import format_duration
from fedgmr.tasks.task import Task

_LONG, _VERY_LONG = 600.0, 7200.0  # wall seconds from which it is said, and asked about
_SHORT = 300.0  # wall seconds of the shorter command that is proposed


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Let a verb start long work without a question."""
    parser.add_argument("--yes", action="store_true", help="start also what takes hours, without asking")


def estimated(
    runs: Sequence[PlannedRun], stores: Sequence[Path] = (), *, apart: bool = False, task: Task | None = None
) -> Estimate:
    """Estimate how long runs take, as `estimate_runs` does, and say so if that itself takes long."""
    with said_when_slow("timing a task and an evaluation, to tell how long this takes"):
        return estimate_runs(runs, stores, apart=apart, task=task)


def approve(seconds: float | None, shorter: Sequence[str], given: argparse.Namespace) -> None:
    """Say that a command takes more than ten minutes, and what would take less; at a terminal ask about hours.

    Raises:
        KeyboardInterrupt: the answer was no.
    """
    if seconds is None or seconds <= _LONG:
        return
    about = f"this takes about {format_duration(seconds)} on this machine"
    how = f" Shorter: {'; '.join(shorter)}." if shorter else ""
    print(f"fedgmr: {about}.{how}", file=sys.stderr, flush=True)
    if seconds <= _VERY_LONG or given.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print("Start it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise KeyboardInterrupt(f"not started; `{spoken([*given.command, '--yes'])}` starts it without asking.")


def fewer_seconds(recipe: Recipe, seconds: float | None) -> str:
    """The settings with which runs of a recipe that take so many wall seconds in all would take some minutes."""
    budget = recipe.seconds * (min(1.0, _SHORT / seconds) if seconds else 0.1)
    return f"seconds={float(f'{budget:.1g}'):.12g} short=true"


def more_jobs(jobs: int) -> list[str]:
    """The option that spreads runs over the cores of this machine, where it has more of them."""
    cores = os.cpu_count() or 1
    return [f"--jobs {cores}"] if jobs < cores else []
