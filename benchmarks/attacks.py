"""Hostile clients among ten: `python benchmarks/attacks.py [--several] [--seeds 3 4] [--columns ...] [--csv FILE]`.

The quickstart, cut to a number of ticks. Some clients send something else than they have trained, from their first
update on. Columns: the default, `clip`, and the robust merges, all with the default admission and recovery but for what
they name. Figures are the accuracy of the merged model after the last tick, in percent, as the mean over the seeds.
The first table has the fastest client, the second (`--several`, fewer ticks) up to three. With the default, what the
fastest sends may cost at most 1 point against leaving it out, for every attack of `HELD`; otherwise the status is 1.
With `--csv` a run is written down as soon as it has ended, and the next call makes only the runs that are missing.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from environment import header, one_thread
from tables import Row, markdown
from torch import Tensor

from fedgmr.exchange import ClientTask, Diverged, News, Report, Update
from fedgmr.experiments.assembly import assemble, make_task, resolve
from fedgmr.federation import federate
from fedgmr.recipe import load_recipe
from fedgmr.tasks.partition import Indices
from fedgmr.training.executor import Executor

LIMIT = 1.0
FAST = (0,)
SEVERAL = ((9,), (8, 9), (7, 8, 9), (0, 8, 9))  # 7, 8, 9 start with the smallest sub-model, which all ten hold
TICKS, FEWER = 300, 100
COLUMNS = {
    "default": [],
    "clip": ["method.admission.beyond=clip"],
    "trimmed mean": ["method.aggregation=trimmed_mean"],
    "median": ["method.aggregation=coordinate_median"],
    "clipped mean": ["method.aggregation=clipped_mean"],
}
NOISE = 5  # times the length of what the client has trained
SCALE = 10
OLD, FLIPPED, NOISY = "old update again", "sign of the change flipped", f"noise, {NOISE} x its change"
SCALED, RELABELLED = f"its change x {SCALE}", "trained with labels flipped"
BEGIN = 100
LATER = f"the sign flipped from tick {BEGIN} on"
ALWAYS_REFUSED = ("1e38", "values x 100", "NaN", OLD)
HELD = (*ALWAYS_REFUSED, "forged reports", "huge sample count")
HARD = (FLIPPED, LATER, NOISY, RELABELLED)  # honest in length at first
BY_SEVERAL = (FLIPPED, SCALED, NOISY, RELABELLED)
SETTINGS = {"huge sample count": ["method.weighting=samples"], "forged reports": ["evaluation.validation=clients"]}
LEFT_OUT = "left out"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run."""

    hostile: tuple[int, ...]
    attack: str  # "": honest
    column: str
    setting: str  # the attack whose settings the run has
    seed: int
    ticks: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it."""

    accuracy: float  # percent after the last tick; not a number where the run diverged
    refused: Mapping[str, int]


class Hostile:
    """An executor in which some clients send something else than they have trained."""

    def __init__(self, inner: Executor, cell: Cell) -> None:
        self.inner, self.cell, self.ahead = inner, cell, inner.ahead
        self.first: dict[int, Tensor] = {}  # by client: its first update, where that is sent again

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """The updates of all, some of them replaced."""
        updates = self.inner.train(tasks)
        by_client = {task.client: task for task in tasks}
        return [self._replaced(u, by_client[u.client]) if u.client in self.cell.hostile else u for u in updates]

    def _replaced(self, update: Update, task: ClientTask) -> Update:
        if self.cell.attack == LATER and task.version < BEGIN:
            return update
        if self.cell.attack == "forged reports":
            return replace(update, report=Report(metric=-1e308, samples=2**63))
        values = update.values
        natural = update.natural or task.levels.order is None
        start = task.model if natural else task.levels.pack(task.model, task.level)
        if self.cell.attack == OLD:
            whole = task.levels.spread(values, task.model) if not update.natural else values.clone()
            first = self.first.setdefault(task.client, whole)
            return replace(update, values=first if natural else task.levels.pack(first, task.level))
        noise = torch.randn(len(values), generator=torch.Generator().manual_seed(task.first_batch))
        made: dict[str, Callable[[], Tensor]] = {
            "1e38": lambda: torch.full_like(values, 1e38),
            "values x 100": lambda: 100 * values,
            "NaN": lambda: torch.full_like(values, torch.nan),
            FLIPPED: lambda: 2 * start - values,
            LATER: lambda: 2 * start - values,
            SCALED: lambda: start + SCALE * (values - start),
            NOISY: lambda: start + noise * (NOISE * (values - start).norm() / noise.norm()),
        }
        return replace(update, values=made[self.cell.attack]() if self.cell.attack in made else values)


def flip_labels(labels: Tensor, parts: Sequence[Indices]) -> None:
    """Call every digit d among these samples 9 - d."""
    for part in parts:
        labels[part] = 9 - labels[part]


def outcome(cell: Cell) -> Outcome:
    """Make the run."""
    changes = [*COLUMNS[cell.column], *SETTINGS.get(cell.setting, []), f"seed={cell.seed}", "seconds=1000000"]
    if cell.attack == LEFT_OUT:
        changes.append(f"fleet.absences=[{{clients: {list(cell.hostile)}, start: 0, end: 1.0e9}}]")
    recipe = load_recipe("quickstart", [*changes, "execution.executor=sequential", "device=cpu"])
    task = make_task(recipe)
    run = assemble(resolve(recipe, task), task)
    if cell.attack and cell.attack != LEFT_OUT:
        run.fleet.executor = Hostile(run.fleet.executor, cell)
    if cell.setting == "huge sample count":  # nodes say themselves how many they have
        declared = [profile.samples for profile in run.server.profiles]
        for client in cell.hostile if cell.attack == cell.setting else ():
            declared[client] = 10**9
        run.server.learn([News(client=client, samples=n) for client, n in enumerate(declared)])
    if cell.attack == RELABELLED and run.parts is not None:
        flip_labels(run.task.train.targets, [run.parts[client] for client in cell.hostile])
    try:
        federate(run.server, run.fleet, seconds=recipe.seconds, stop=lambda: run.server.tick >= cell.ticks)
    except Diverged:
        return Outcome(accuracy=math.nan, refused=dict(run.fleet.refused))
    measured = run.evaluator.test(run.server.model, run.server.buffers)
    return Outcome(accuracy=100 * measured.accuracy, refused=dict(run.fleet.refused))


def cells(seeds: Sequence[int], ticks: int) -> Iterator[Cell]:
    """The runs in which the fastest client is hostile."""
    for column in COLUMNS:
        for seed in seeds:
            cell = Cell(hostile=FAST, attack="", column=column, setting="", seed=seed, ticks=ticks)
            # Of runs in bounds there is nothing to clip, and reports and samples have nothing to do with the merge.
            runs = {"default": ("", LEFT_OUT, *HELD, *HARD), "clip": (*ALWAYS_REFUSED, *HARD)}
            for attack in runs.get(column, ("", LEFT_OUT, *ALWAYS_REFUSED, *HARD)):
                yield replace(cell, attack=attack, setting=attack if attack in SETTINGS else "")
            for setting in SETTINGS if column == "default" else ():
                yield replace(cell, attack=LEFT_OUT, setting=setting)


def cells_of_several(seeds: Sequence[int], ticks: int) -> Iterator[Cell]:
    """The runs in which others are, up to three; one seed after the other."""
    merges = [column for column in COLUMNS if column != "clip"]
    for seed in seeds:
        cell = Cell(hostile=(), attack="", column="default", setting="", seed=seed, ticks=ticks)
        yield from (replace(cell, column=column) for column in merges)
        for hostile in SEVERAL:
            yield replace(cell, hostile=hostile, attack=LEFT_OUT)
            for attack in BY_SEVERAL:
                yield from (replace(cell, hostile=hostile, attack=attack, column=column) for column in merges)


def rows(found: Mapping[Cell, Outcome]) -> Iterator[Row]:
    """One per hostile clients, attack and setting: the mean over the seeds in every column."""
    kinds = dict.fromkeys((cell.hostile, cell.setting, cell.attack) for cell in found)
    columns = [column for column in COLUMNS if any(cell.column == column for cell in found)]
    for hostile, setting, attack in kinds:
        sends = f"{LEFT_OUT} ({SETTINGS[setting][0]})" if setting and attack == LEFT_OUT else attack
        who = ", ".join(map(str, hostile)) or "none"
        row: dict[str, object] = {"hostile": who, "sends": sends or "what it has trained"}
        for column in columns:
            kind = hostile, setting, attack, column
            of = [o.accuracy for c, o in found.items() if (c.hostile, c.setting, c.attack, c.column) == kind]
            row[column] = f"{sum(of) / len(of):.2f} ({len(of)})" if of else "-"
        yield row


def cost(found: Mapping[Cell, Outcome], attack: str) -> float:
    """Points that an attack by default costs against leaving the client out; all of them where a run diverged."""
    costs = []
    for cell, ended in found.items():
        without = found.get(replace(cell, attack=LEFT_OUT))
        if (cell.hostile, cell.column, cell.attack) == (FAST, "default", attack) and without is not None:
            costs.append(without.accuracy - ended.accuracy)
    mean = sum(costs) / len(costs) if costs else 0.0
    return 100.0 if math.isnan(mean) else mean


def read_found(path: Path) -> dict[Cell, Outcome]:
    """The runs that were made before."""
    found = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            hostile = tuple(int(client) for client in row["hostile"].split())
            words = {name: row[name] for name in ("attack", "column", "setting")}
            cell = Cell(hostile=hostile, **words, seed=int(row["seed"]), ticks=int(row["ticks"]))
            found[cell] = Outcome(accuracy=float(row["accuracy"]), refused=json.loads(row["refused"]))
    return found


def append(path: Path, cell: Cell, ended: Outcome) -> None:
    """Write one run down."""
    names = [field.name for field in (*fields(Cell), *fields(Outcome))]
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        if new:
            writer.writeheader()
        text = {"hostile": " ".join(map(str, cell.hostile)), "refused": json.dumps(ended.refused)}
        writer.writerow(vars(cell) | vars(ended) | text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--several", action="store_true", help=f"other clients than the fastest, {FEWER} ticks")
    parser.add_argument("--ticks", type=int, help=f"by default {TICKS} or {FEWER}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5, 6, 7])
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--attacks", nargs="+", choices=["", LEFT_OUT, *HELD, *HARD, SCALED], metavar="ATTACK")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--table", action="store_true", help="make no run, print what is in the file")
    arguments = parser.parse_args()
    print(header())
    one_thread()
    found = read_found(arguments.csv) if arguments.csv is not None and arguments.csv.exists() else {}
    planned, ticks = (cells_of_several, FEWER) if arguments.several else (cells, TICKS)
    plan = list(planned(arguments.seeds, arguments.ticks or ticks))
    for cell in plan:
        wanted = not arguments.table and (arguments.attacks is None or cell.attack in arguments.attacks)
        if cell not in found and cell.column in arguments.columns and wanted:
            found[cell] = outcome(cell)
            print(cell, found[cell], file=sys.stderr, flush=True)
            if arguments.csv is not None:
                append(arguments.csv, cell, found[cell])
    ordered = {cell: found[cell] for cell in plan if cell in found}
    print(markdown(list(rows(ordered))))
    if arguments.several:
        return 0
    worst = max(HELD, key=lambda attack: cost(ordered, attack))
    print(f"the worst of what is held is {worst!r}: {cost(ordered, worst):.2f} points (limit {LIMIT})")
    return 0 if cost(ordered, worst) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
