"""The cost of the recorded shares: `python benchmarks/theory_cost.py [--recipe NAME] [--seconds S] [--csv PATH]`.

Runs a recipe with FedGMR, one task after the other, and takes its processor time apart: what `experiments/shares.py`
does at evaluations, and the rest. Both are of one run, so a busy machine changes neither. The share may be at most 2 %,
else the status is 1. docs/theory.md has the figures.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from environment import header, one_thread
from stopwatch import Part, Stopwatch
from tables import Row, markdown, write_csv

from fedgmr.experiments.run import run_recipe
from fedgmr.experiments.shares import Shares
from fedgmr.recipe import load_recipe

LIMIT = 0.02
RECORDING, REST = "recording", "rest of the run"
PARTS: tuple[Part, ...] = tuple((RECORDING, Shares, name) for name in ("__init__", "compare", "_inside"))


def take_apart(recipe: str, seconds: float | None) -> Stopwatch:
    """One run; the processor time of the recording and of the rest."""
    overrides = ["execution.executor=sequential"] + ([f"seconds={seconds}", "short=true"] if seconds else [])
    settings = load_recipe(recipe, overrides)
    watch = Stopwatch(clock=time.process_time)
    with tempfile.TemporaryDirectory() as folder, watch.on(PARTS), watch.part(REST):
        run_recipe(settings, Path(folder) / "run")
    return watch


def share(watch: Stopwatch) -> float:
    """The share of the recording in the processor time of the run."""
    return watch.seconds[RECORDING] / sum(watch.seconds.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=["quickstart"], metavar="NAME")
    parser.add_argument("--seconds", type=float, help="virtual seconds instead of the recipe's")
    parser.add_argument("--repeats", type=int, default=3, help="the recipes take turns")
    parser.add_argument("--csv", type=Path, metavar="PATH", help="also write every repetition's times here")
    arguments = parser.parse_args()
    one_thread()
    print(header(), "\n")
    rows: list[Row] = []
    shares: list[float] = []
    for repetition in range(arguments.repeats):
        for recipe in arguments.recipe:
            watch = take_apart(recipe, arguments.seconds)
            shares.append(share(watch))
            rows.append(
                {
                    "recipe": recipe,
                    "repetition": repetition,
                    "recording, s": f"{watch.seconds[RECORDING]:.3f}",
                    "whole run, s": f"{sum(watch.seconds.values()):.1f}",
                    "share %": f"{100 * shares[-1]:.3f}",
                }
            )
    print(markdown(rows), "\n")
    if arguments.csv:
        write_csv(arguments.csv, rows)
    print(f"largest share, limit {LIMIT:.0%}: {max(shares):.3%}, {'met' if max(shares) <= LIMIT else 'NOT met'}")
    return 0 if max(shares) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
