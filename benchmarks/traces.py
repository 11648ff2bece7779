"""Links that vary: `python benchmarks/traces.py [--store DIR] [--csv FILE] [--seeds 3 4] [--table]`.

The quickstart on the fleets `lte` and `commute` (docs/links.md) under FedGMR, with and without restoration and retreat,
and under four other methods. The runs are a sweep: they stay in the store, and the next call makes only those that are
missing there. The first table has the accuracy of the merged model in percent at half of the time, the mean of all
evaluations since then, that at the end, and that of the view which is best on held-out samples; beside each the lead of
FedGMR in points and, in brackets, in pooled standard deviations and in seeds with which it is ahead. The second table
has what links and clients did, the third the lead of restoration over time. FedGMR must lead FedGMR without restoration
by one pooled standard deviation at the end, on every fleet; otherwise the status is 1. The number of seeds stands in
brackets behind a method.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from environment import header, one_thread
from tables import Row, markdown, write_csv

from fedgmr.experiments.sweep import find_finished, recipe_key, run_sweep
from fedgmr.recipe import Recipe, load_recipe
from fedgmr.reporting.records import Run, read_run

FULL, ABLATION = "FedGMR", "FedGMR w/o restoration"
VARIANTS = {
    FULL: ["method=fedgmr"],
    ABLATION: ["method=fedgmr_without_restoration"],
    "FedGMR, retreat at 10 periods": ["method=fedgmr", "method.restoration.retreat={periods: 10}"],
    "FedGMR, retreat at 30 periods": ["method=fedgmr", "method.restoration.retreat={}"],
    "FedAsync": ["method=fedasync"],
    "FedAvg": ["method=fedavg"],
    "HeteroFL": ["method=heterofl"],
    "FjORD": ["method=fjord"],
}
FLEETS = {
    "lte": ["fleet.name=lte"],
    "commute": ["fleet.name=commute"],
    # The same mean rates without a trace; the first night falls after the run.
    "steady": ["fleet.name=day_night", "fleet.availability={kind: day_night, spread: 0}"],
}
COLUMNS = {"half": "at half time", "later": "since then", "end": "at the end", "best": "best view"}
TARGET = 0.9  # of the test samples
LIMIT = 1.0  # pooled standard deviations
PARTS = 10  # of a run's time, for its curves


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run."""

    fleet: str
    variant: str
    seed: int

    @property
    def recipe(self) -> Recipe:
        """What runs."""
        return load_recipe("quickstart", [*VARIANTS[self.variant], *FLEETS[self.fleet], f"seed={self.seed}"])


def figures(run: Run) -> dict[str, Any]:
    """The numbers of one run: accuracies in percent, times in seconds, shares of the clients' time in percent."""
    rows, summary = run.history, run.summary
    trips = [trip for row in rows for trip in row["trips"]]
    seconds = [trip[5] - trip[2] for trip in trips if trip[7] is not None]
    levels: dict[int, list[int]] = {}
    for client, level, *_ in trips:
        levels.setdefault(client, []).append(level)
    staleness = [value for row in rows for value in row["staleness"] if value is not None]
    time = {name: sum(values) for name, values in summary["time"].items()}
    return {
        "half": 100 * run.accuracy_at(run.seconds / 2),
        "later": 100 * float(rows.accuracy[rows.seconds >= run.seconds / 2].mean()),
        "end": 100 * run.final_accuracy,
        "best": 100 * summary["views"][summary["best_view"]]["accuracy"] if summary["best_view"] else math.nan,
        "best_view": summary["best_view"],
        "to_target": run.time_to(TARGET),
        "merges": summary["ticks"],
        "updates": sum(rows[-1]["updates"]),
        "density": statistics.fmean(rows[-1]["density"]),
        "levels_back": sum(max(0, one - next_one) for of in levels.values() for one, next_one in pairwise(of)),
        "staleness": statistics.fmean(staleness),
        "task": statistics.fmean(seconds),
        "task_95": float(np.percentile(seconds, 95)),
        "task_longest": max(seconds),
        **{name: 100 * of / sum(time.values()) for name, of in time.items()},
        **curves(run),
    }


def curves(run: Run) -> dict[str, float]:
    """Means over the evaluations of each tenth of the time, by its number: accuracy, density, staleness."""
    part = np.ceil(run.history.seconds * PARTS / run.seconds)
    told = {}
    for number in range(1, PARTS + 1):
        rows = [row for row, of in zip(run.history, part, strict=True) if of == number]
        for name, scale in (("accuracy", 100), ("density", 1), ("staleness", 1)):
            values = [value for row in rows for value in np.atleast_1d(row[name]) if value is not None]
            told[f"{name} {number}"] = scale * statistics.fmean(values) if values else math.nan
    return told


def accuracy_rows(found: Mapping[Cell, Mapping[str, Any]], fleet: str) -> Iterator[Row]:
    """One per variant: accuracies, and the lead of FedGMR in points and in pooled standard deviations."""
    for variant, of in by_variant(found, fleet):
        row: dict[str, object] = {"fleet": fleet, "method": f"{variant} ({len(of)})"}
        for name, title in COLUMNS.items():
            row[title] = spread([run[name] for run in of])
            row[f"lead {title}"] = "" if variant == FULL else str(Lead.of(found, fleet, variant, name))
        reached = [run["to_target"] for run in of if run["to_target"] is not None]
        row["s to 90 %"] = f"{statistics.fmean(reached):,.0f} ({len(reached)})" if reached else "-"
        yield row


def link_rows(found: Mapping[Cell, Mapping[str, Any]], fleet: str) -> Iterator[Row]:
    """One per variant: what links and clients did, as means over the seeds."""
    for variant, of in by_variant(found, fleet):

        def mean(name: str, of: Sequence[Mapping[str, Any]] = of) -> float:
            return statistics.fmean(run[name] for run in of)

        yield {
            "fleet": fleet,
            "method": f"{variant} ({len(of)})",
            "merges": f"{mean('merges'):.0f}",
            "updates": f"{mean('updates'):.0f}",
            "density": f"{mean('density'):.2f}",
            "levels back": f"{mean('levels_back'):.1f}",
            "staleness": f"{mean('staleness'):.1f}",
            "task s": f"{mean('task'):.1f}",
            "95 %": f"{mean('task_95'):.0f}",
            "longest": f"{mean('task_longest'):.0f}",
            "receiving %": f"{mean('receiving'):.0f}",
            "training %": f"{mean('training'):.0f}",
            "sending %": f"{mean('sending'):.0f}",
            "waiting %": f"{mean('waiting'):.0f}",
            "lost %": f"{mean('lost'):.0f}",
        }


def curve_rows(found: Mapping[Cell, Mapping[str, Any]], fleets: Sequence[str]) -> Iterator[Row]:
    """One per tenth of the time: the lead of restoration, and the density and the staleness with which it has it."""
    for number in range(1, PARTS + 1):
        row: dict[str, object] = {"tenth": number}
        for fleet in fleets:
            row[f"{fleet}: lead"] = str(Lead.of(found, fleet, ABLATION, f"accuracy {number}"))
            with_it = dict(by_variant(found, fleet)).get(FULL, [])
            for name, digits in (("density", 2), ("staleness", 1)):
                values = [run[f"{name} {number}"] for run in with_it]
                row[f"{fleet}: {name}"] = f"{statistics.fmean(values):.{digits}f}" if values else "-"
        yield row


def by_variant(found: Mapping[Cell, Mapping[str, Any]], fleet: str) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """The runs of each variant that has any."""
    for variant in VARIANTS:
        if of := [run for cell, run in found.items() if (cell.fleet, cell.variant) == (fleet, variant)]:
            yield variant, of


@dataclass(frozen=True, kw_only=True)
class Lead:
    """FedGMR's lead over a variant in points, over the seeds that both have."""

    points: float
    pooled: float  # standard deviation: the root of the mean of both variances
    ahead: int  # seeds with which FedGMR is ahead
    seeds: int

    @classmethod
    def of(cls, found: Mapping[Cell, Mapping[str, Any]], fleet: str, variant: str, name: str) -> "Lead":
        """The lead by one of the numbers of runs; NaN where fewer than two seeds have both."""
        ours = {cell.seed: run[name] for cell, run in found.items() if (cell.fleet, cell.variant) == (fleet, FULL)}
        theirs = {cell.seed: run[name] for cell, run in found.items() if (cell.fleet, cell.variant) == (fleet, variant)}
        pairs = [(ours[seed], theirs[seed]) for seed in ours.keys() & theirs.keys()]
        if len(pairs) < 2:
            return cls(points=math.nan, pooled=math.nan, ahead=0, seeds=len(pairs))
        points = statistics.fmean(one - other for one, other in pairs)
        pooled = math.sqrt(statistics.fmean(map(statistics.variance, zip(*pairs, strict=True))))
        return cls(points=points, pooled=pooled, ahead=sum(one > other for one, other in pairs), seeds=len(pairs))

    def __str__(self) -> str:
        if not self.pooled > 0:
            return "-"
        return f"{self.points:+.2f} ({self.points / self.pooled:+.1f}; {self.ahead}/{self.seeds})"


def spread(values: Sequence[float]) -> str:
    """Mean and sample standard deviation."""
    return f"{statistics.fmean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", nargs="+", choices=FLEETS, default=list(FLEETS))
    parser.add_argument("--methods", nargs="+", choices=VARIANTS, metavar="METHOD", default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5, 6, 7])
    parser.add_argument("--store", type=Path, metavar="DIR", default=Path("runs/traces"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--table", action="store_true", help="make no run, print those that are in the store")
    arguments = parser.parse_args()
    print(header())
    one_thread()
    cells = [
        Cell(fleet=fleet, variant=variant, seed=seed)
        for seed in arguments.seeds
        for fleet in arguments.fleets
        for variant in arguments.methods
    ]
    recipes = [cell.recipe for cell in cells]
    if not arguments.table:
        run_sweep(recipes, arguments.store, jobs=arguments.jobs)
    finished = find_finished(recipes, [arguments.store])
    keys = {cell: recipe_key(recipe) for cell, recipe in zip(cells, recipes, strict=True)}
    found = {cell: figures(read_run(finished[key])) for cell, key in keys.items() if key in finished}
    if arguments.csv is not None and found:
        write_csv(arguments.csv, [vars(cell) | run for cell, run in found.items()])
    for table in (accuracy_rows, link_rows):
        if rows := [row for fleet in arguments.fleets for row in table(found, fleet)]:
            print(markdown(rows), end="\n\n")
    print(markdown(list(curve_rows(found, arguments.fleets))), end="\n\n")
    leads = {fleet: Lead.of(found, fleet, ABLATION, "end") for fleet in arguments.fleets}
    for fleet, told in leads.items():
        print(f"{fleet}: restoration gains {told.points:+.2f} points at the end, pooled std {told.pooled:.2f}")
    return 0 if all(told.points > LIMIT * told.pooled for told in leads.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
