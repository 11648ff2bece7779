"""The share of a run that is neither local training nor evaluation: `python benchmarks/overhead.py [--csv PATH]`.

Runs the quickstart recipe one task after the other, with an output directory (flushed records, checkpoints), for
FedGMR and FedAsync in turn, and takes the time apart: every second belongs to the innermost part that was at work. The
share outside `SequentialExecutor` (its sample order counts as overhead) and `Evaluator` must stay under 10 %, else the
status is 1. Times are wall clock; the shares are within one run.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from environment import header, one_thread
from stopwatch import Part, Stopwatch
from tables import Row, markdown, write_csv

from fedgmr.experiments import progress, run
from fedgmr.experiments.checkpoint import Checkpoint, CheckpointWriter
from fedgmr.fleets.network import Network
from fedgmr.fleets.simulated import SimulatedFleet
from fedgmr.recipe import recipe_from
from fedgmr.reporting.recorder import Recorder
from fedgmr.server.server import Server
from fedgmr.settings.text import read_mapping
from fedgmr.submodels.rankings import FullModel, Taylor
from fedgmr.tasks.partition import SampleOrder
from fedgmr.training.evaluation.evaluator import Evaluator
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.rules import PlainSGD

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
LIMIT = 0.10
STRICT_WORK = ("SGD steps", "evaluation")
WORK = (*STRICT_WORK, "around the steps")
# The timed parts: (part, owner, name of the function), in the order of the table.
PARTS: tuple[Part, ...] = (
    ("SGD steps", PlainSGD, "step"),
    ("around the steps", SequentialExecutor, "_train"),
    ("evaluation", Evaluator, "test"),
    ("evaluation", Evaluator, "validate"),
    ("sample order", SampleOrder, "batches"),
    ("network", Network, "send"),
    ("merge", Server, "merge"),
    ("ranking", Taylor, "rank"),
    ("ranking", FullModel, "rank"),
    ("tasks", Server, "tasks"),
    ("fleet", SimulatedFleet, "collect"),
    ("fleet", SimulatedFleet, "dispatch"),
    ("fleet", SimulatedFleet, "free"),
    ("record", Recorder, "record"),
    ("record", Recorder, "sync"),
    ("checkpoint", Checkpoint, "of"),
    ("checkpoint", CheckpointWriter, "wait"),
    ("final files", progress, "save_models"),
    ("final files", progress, "write_summary"),
    ("load data", run, "make_task"),
    ("set-up", run, "resolve"),
    ("set-up", run, "assemble"),
    ("set-up", run, "create_run"),
)
REST = "loop and rest"


def take_apart(method: str, *, seconds: float | None, recipe_file: Path = RECIPE) -> Stopwatch:
    """One run of the recipe with this method; the time of each part of it."""
    # A second belongs to one part only where one thing is done at a time.
    overrides = ["execution.executor=sequential"]
    if seconds is not None:
        overrides += [f"seconds={seconds}", "short=true"]
    recipe = recipe_from(read_mapping(recipe_file), overrides, method=method)
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, watch.on(PARTS), watch.part(REST):
        run.run_recipe(recipe, Path(folder) / "run")
    return watch


def overhead(watch: Stopwatch, work: Sequence[str] = WORK) -> float:
    """The share of the run's time that is not in the parts counted as work."""
    whole = sum(watch.seconds.values())
    return 1 - sum(watch.seconds.get(part, 0.0) for part in work) / whole


def rows_of(method: str, watches: Sequence[Stopwatch]) -> list[Row]:
    """One row per part: the median over the repetitions of its seconds and of its share of the run."""
    names = [*dict.fromkeys(part for part, _, _ in PARTS), REST]
    rows: list[Row] = []
    for name in names:
        if not any(name in watch.seconds for watch in watches):
            continue
        seconds = [watch.seconds.get(name, 0.0) for watch in watches]
        shares = [s / sum(watch.seconds.values()) for s, watch in zip(seconds, watches, strict=True)]
        rows.append(
            {
                "method": method,
                "part": name,
                "counts as": "work" if name in WORK else "overhead",
                "calls": watches[0].calls.get(name, 0),
                "seconds": f"{statistics.median(seconds):.3f}",
                "share %": f"{100 * statistics.median(shares):.2f}",
            }
        )
    return rows


def raw(watches: dict[str, list[Stopwatch]]) -> list[Row]:
    """Every repetition's seconds and calls."""
    return [
        {"method": method, "repetition": number, "part": part, "calls": watch.calls[part], "seconds": seconds}
        for method, taken in watches.items()
        for number, watch in enumerate(taken)
        for part, seconds in watch.seconds.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="virtual seconds instead of the recipe's")
    parser.add_argument("--methods", nargs="+", default=["fedgmr", "fedasync"], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3, help="the methods take turns")
    parser.add_argument("--csv", type=Path, metavar="PATH", help="also write every repetition's times here")
    arguments = parser.parse_args()
    one_thread()
    print(header(), "\n")
    watches: dict[str, list[Stopwatch]] = {method: [] for method in arguments.methods}
    for _ in range(arguments.repeats):
        for method, taken in watches.items():
            taken.append(take_apart(method, seconds=arguments.seconds))
    rows = [row for method, taken in watches.items() for row in rows_of(method, taken)]
    print(markdown(rows), "\n")
    good = True
    for method, taken in watches.items():
        shares = [overhead(watch) for watch in taken]
        median = statistics.median(shares)
        strict = statistics.median(overhead(watch, STRICT_WORK) for watch in taken)
        good &= median < LIMIT
        print(
            f"{method}: overhead {100 * median:.2f} % of the run (repetitions {100 * min(shares):.2f} to "
            f"{100 * max(shares):.2f} %), {100 * strict:.2f} % with what surrounds the steps; "
            f"limit {100 * LIMIT:g} %: {'met' if median < LIMIT else 'NOT met'}"
        )
    if arguments.csv:
        write_csv(arguments.csv, raw(watches))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
