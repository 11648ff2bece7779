"""One hostile client among ten: `python benchmarks/attacks.py [--ticks N] [--seeds 3 4] [--brief] [--csv FILE]`.

The quickstart, cut to a number of ticks. Client 0, the fastest, or client 9, one of the slowest, sends something else
than it has trained, from its first update on. Columns: the default (out of bounds: refused), `clip`, and trimmed mean
and coordinate median without a bound on the change (`admission.beyond: accept`), so that they show what the merge holds
alone. Figures are the accuracy of the merged model after the last tick, in percent. With the default, what is out of
bounds may cost at most 1 point against leaving that client out; otherwise the status is 1.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
from environment import header, one_thread
from tables import Row, markdown, write_csv
from torch import Tensor

from fedgmr.exchange import ClientTask, Diverged, News, Report, Update
from fedgmr.experiments.assembly import assemble, make_task, resolve
from fedgmr.federation import federate
from fedgmr.fleets.simulated import Absence
from fedgmr.recipe import load_recipe
from fedgmr.training.executor import Executor

LIMIT = 1.0
FAST, SLOW = 0, 9
COLUMNS = {
    "default": [],
    "clip": ["method.admission.beyond=clip"],
    "trimmed mean": ["method.admission.beyond=accept", "method.aggregation=trimmed_mean"],
    "median": ["method.admission.beyond=accept", "method.aggregation=coordinate_median"],
}
OUT_OF_BOUNDS = ("1e38", "values x 100", "NaN", "forged reports", "huge sample count")
NOISE = 5  # times the length of what the client has trained
WITHIN = ("old update again", "sign of the change flipped", f"noise, {NOISE} x its change")
SETTINGS = {"huge sample count": ["method.weighting=samples"], "forged reports": ["evaluation.validation=clients"]}
LEFT_OUT = "left out"
# What `--brief` leaves in the columns beside the default, and of the slow client.
BRIEF = {
    "clip": ("", LEFT_OUT, "1e38", "values x 100"),
    "trimmed mean": ("", LEFT_OUT, "values x 100", *WITHIN),
    "median": ("", LEFT_OUT, "values x 100", *WITHIN),
    "slow client": (LEFT_OUT, "values x 100", WITHIN[2]),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run."""

    client: int
    attack: str  # "": honest
    column: str
    setting: str  # the attack whose settings the run has
    seed: int
    ticks: int

    @property
    def brief(self) -> bool:
        """Whether it is among the fewer runs of a short table."""
        if self.client == SLOW:
            return self.attack in BRIEF["slow client"] and not self.setting
        return self.column == "default" or self.attack in BRIEF[self.column]


class Hostile:
    """An executor in which one client sends something else than it has trained."""

    def __init__(self, inner: Executor, cell: Cell) -> None:
        self.inner, self.cell, self.ahead = inner, cell, inner.ahead
        self.first: Tensor | None = None  # its first update, where that is sent again

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """The updates of all, one of them replaced."""
        updates = self.inner.train(tasks)
        return [
            self._replaced(update, task) if update.client == self.cell.client else update
            for update, task in zip(updates, tasks, strict=True)
        ]

    def _replaced(self, update: Update, task: ClientTask) -> Update:
        if self.cell.attack == "forged reports":
            return replace(update, report=Report(metric=-1e308, samples=2**63))
        values = update.values
        natural = update.natural or task.levels.order is None
        start = task.model if natural else task.levels.pack(task.model, task.level)
        if self.cell.attack == "old update again":
            whole = task.levels.spread(values, task.model) if not update.natural else values
            self.first = whole.clone() if self.first is None else self.first
            return replace(update, values=self.first if natural else task.levels.pack(self.first, task.level))
        noise = torch.randn(len(values), generator=torch.Generator().manual_seed(task.first_batch))
        made: dict[str, Callable[[], Tensor]] = {
            "1e38": lambda: torch.full_like(values, 1e38),
            "values x 100": lambda: 100 * values,
            "NaN": lambda: torch.full_like(values, torch.nan),
            "sign of the change flipped": lambda: 2 * start - values,
            WITHIN[2]: lambda: start + noise * (NOISE * (values - start).norm() / noise.norm()),
        }
        return replace(update, values=made[self.cell.attack]() if self.cell.attack in made else values)


def accuracy(cell: Cell) -> tuple[float, dict[str, int]]:
    """Percent after the last tick, not a number where the run diverged, and what was refused."""
    one_thread()
    changes = [*COLUMNS[cell.column], *SETTINGS.get(cell.setting, []), f"seed={cell.seed}", "seconds=1000000"]
    recipe = load_recipe("quickstart", [*changes, "execution.executor=sequential", "device=cpu"])
    task = make_task(recipe)
    run = assemble(resolve(recipe, task), task)
    if cell.attack == LEFT_OUT:
        run.fleet.absences = [Absence(clients=(cell.client,), start=0.0, end=1e9)]
    elif cell.attack:
        run.fleet.executor = Hostile(run.fleet.executor, cell)
    if cell.setting == "huge sample count":  # nodes say themselves how many they have
        declared = [profile.samples for profile in run.server.profiles]
        if cell.attack == cell.setting:
            declared[cell.client] = 10**9
        run.server.learn([News(client=client, samples=n) for client, n in enumerate(declared)])
    try:
        federate(run.server, run.fleet, seconds=recipe.seconds, stop=lambda: run.server.tick >= cell.ticks)
    except Diverged:
        return math.nan, dict(run.fleet.refused)
    measured = run.evaluator.test(run.server.model, run.server.buffers)
    return 100 * measured.accuracy, dict(run.fleet.refused)


def cells(seeds: Sequence[int], ticks: int) -> Iterator[Cell]:
    """All runs: every attack of the fast client in every column, of the slow one and with other settings by default."""
    for seed in seeds:
        for client, columns in ((FAST, list(COLUMNS)), (SLOW, ["default"])):
            for attack in ("", LEFT_OUT, *OUT_OF_BOUNDS, *WITHIN):
                for column in ["default"] if attack in SETTINGS else columns:
                    if attack or client == FAST:
                        setting = attack if attack in SETTINGS else ""
                        yield Cell(client=client, attack=attack, column=column, setting=setting, seed=seed, ticks=ticks)
            for setting in SETTINGS:
                yield Cell(client=client, attack=LEFT_OUT, column="default", setting=setting, seed=seed, ticks=ticks)


def rows(found: dict[Cell, tuple[float, dict[str, int]]]) -> Iterator[Row]:
    """One per client, attack and setting: the mean over the seeds in every column."""
    kinds = dict.fromkeys((cell.client, cell.setting, cell.attack) for cell in found)
    for client, setting, attack in kinds:
        row: dict[str, object] = {"hostile client": client, "sends": attack or "what it has trained"}
        if setting and attack == LEFT_OUT:
            row["sends"] = f"{LEFT_OUT} ({SETTINGS[setting][0]})"
        for column in COLUMNS:
            kind = client, setting, attack, column
            of = [value for c, (value, _) in found.items() if (c.client, c.setting, c.attack, c.column) == kind]
            row[column] = f"{sum(of) / len(of):.2f}" if of else ""
        yield row


def cost(found: dict[Cell, tuple[float, dict[str, int]]], cell: Cell) -> float:
    """Points that an attack costs against leaving the client out; all of them where the run diverged."""
    points = found[replace(cell, attack=LEFT_OUT)][0] - found[cell][0]
    return 100.0 if math.isnan(points) else points


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=150)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--brief", action="store_true", help="fewer cells")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    print(header())
    planned = [cell for cell in cells(arguments.seeds, arguments.ticks) if cell.brief or not arguments.brief]
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        found = {}
        for cell, result in zip(planned, pool.map(accuracy, planned), strict=True):
            found[cell] = result
            print(cell, result, file=sys.stderr, flush=True)
    print(markdown(list(rows(found))))
    if arguments.csv is not None:
        write_csv(arguments.csv, [vars(c) | {"accuracy": v, "refused": r} for c, (v, r) in found.items()])
    worst = max(cost(found, cell) for cell in found if cell.column == "default" and cell.attack in OUT_OF_BOUNDS)
    print(f"the worst of what is out of bounds costs {worst:.2f} points (limit {LIMIT})")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
