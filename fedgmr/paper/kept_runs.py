"""Kept runs in their places: the protocol and the cell of the paper that a run belongs to, and how it differs.

All are read off the run's recipe: it belongs where it differs least. Settings that are derived (null in the shipped
recipe), that name a run or that say how it is computed do not count. Read next: `results.py`, the document of these
runs.
"""

import json
import statistics
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedgmr.experiments.rundir import read_recipe
from fedgmr.experiments.seal import read_sealed_run
from fedgmr.experiments.sweep.keys import changes_results
from fedgmr.paper.accuracy import Kind, accuracy_at_t_star, best_views
from fedgmr.paper.grid import HETEROGENEITIES, TASKS, Setting, own_partition, recipe_for
from fedgmr.paper.numbers import ACCURACY_TABLES, Paper
from fedgmr.paper.protocols import PROTOCOLS
from fedgmr.paper.tables import Cell, Measure
from fedgmr.recipe import Recipe
from fedgmr.reporting.records import Run, validated
from fedgmr.settings.schema import plain
from fedgmr.settings.text import by_dotted_key
from fedgmr.tasks.partition import Dirichlet, Partition

PATIENCE = "method.restoration.patience"  # the paper tunes it
_SKIPPED = ("seed", "short", "partition", "method.title")


@dataclass(frozen=True, kw_only=True)
class KeptRun:
    """A run, its protocol and its cell of the paper's tables."""

    run: Run
    protocol: str
    setting: Setting
    variant: str
    differences: Mapping[str, Any]  # settings that are not the cell's own, by dotted key
    split: str  # how the data was dealt
    seed: int
    short: bool
    stand_in: str  # the sentence about data that stands in for other data; empty where it does not
    wall_seconds: float

    @classmethod
    def read(cls, directory: Path, paper: Paper) -> "KeptRun | None":
        """Read a run directory; None where the run belongs to no cell."""
        recipe = read_recipe(directory)
        if recipe.task.name not in TASKS or recipe.fleet.name not in HETEROGENEITIES:
            return None
        split = "iid" if recipe.partition.kind == "iid" else "noniid"
        setting = Setting(task=recipe.task.name, heterogeneity=recipe.fleet.name, split=split)
        candidates = dict.fromkeys(v for table in ACCURACY_TABLES for v in paper.variants(table))
        matches = [
            (protocol, variant, dict(_differences(setting, variant, protocol, recipe)))
            for protocol in PROTOCOLS
            for variant in candidates
            if variant.partition("/")[0] == recipe.method.name
        ]
        if not matches:
            return None
        protocol, variant, differences = min(matches, key=lambda match: len(match[2]))
        run = read_sealed_run(directory)
        return cls(
            run=run,
            protocol=protocol,
            setting=setting,
            variant=variant,
            differences=differences,
            split=_dealt(recipe.partition),
            seed=recipe.seed,
            short=recipe.short,
            stand_in=str(run.summary.get("stand_in") or ""),
            wall_seconds=float(run.summary.get("wall_seconds") or 0.0),
        )

    @property
    def faithful(self) -> bool:
        """Whether the run has the paper's settings, apart from the patience."""
        return not set(self.differences) - {PATIENCE}

    @property
    def changes(self) -> str:
        """The differences for people."""
        return ", ".join(f"{key}={json.dumps(value)}" for key, value in self.differences.items())


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """The runs of one variant with the same settings, one per seed, and their accuracy beside the paper's."""

    runs: tuple[KeptRun, ...]
    cell: Cell

    @classmethod
    def group(cls, kept: Iterable[KeptRun], setting: Setting, paper: Paper) -> "list[ResultRow]":
        """One row per variant and settings, the best first."""
        groups: dict[tuple[str, str, str, str], dict[int, KeptRun]] = {}
        for entry in kept:
            key = (entry.variant, entry.changes, entry.split, entry.stand_in)
            groups.setdefault(key, {}).setdefault(entry.seed, entry)
        rows = []
        for by_seed in groups.values():
            runs = tuple(by_seed[seed] for seed in sorted(by_seed))
            found = [entry.run for entry in runs]
            cell = Cell(
                ours=accuracy_at_t_star(found, paper, setting.task),
                best=accuracy_at_t_star(found, paper, setting.task, "best"),
                best_view=best_views(found),
                larger=accuracy_at_t_star(found, paper, setting.task, "larger"),
                paper=paper.first_accuracy(setting, runs[0].variant),
                stand_in=bool(runs[0].stand_in),
            )
            rows.append(cls(runs=runs, cell=cell))
        return sorted(rows, key=lambda row: -row.ordered_by.mean)

    @property
    def order_kind(self) -> Kind:
        """What rows are ordered by: the best view by validation, else the merged model.

        Where a run decides on the test set, it is what is compared with the paper's.
        """
        if any(entry.run.summary.get("decides_on_test") for entry in self.runs):
            return "larger" if self.cell.larger else "merged"
        return "best" if self.cell.best else "merged"

    @property
    def ordered_by(self) -> Measure:
        """The number that rows are ordered by."""
        return {"larger": self.cell.larger, "best": self.cell.best}.get(self.order_kind) or self._merged

    @property
    def compared(self) -> Measure:
        """The number that is compared with the paper's."""
        return self.cell.larger or self._merged

    @property
    def _merged(self) -> Measure:
        assert self.cell.ours is not None, "the merged model is always tested"
        return self.cell.ours

    @property
    def variant(self) -> str:
        """The variant as it is written in `paper.yaml`."""
        return self.runs[0].variant

    @property
    def title(self) -> str:
        """The variant for people."""
        method, *changes = self.variant.split("/")
        title = self.runs[0].run.title
        return f"{title}, {', '.join(change.upper() for change in changes)}" if changes else title or method

    @property
    def settings(self) -> str:
        """The settings that differ from the recipe's, for people."""
        return self.runs[0].changes or "the recipe's settings"

    @property
    def seeds(self) -> set[int]:
        """The seeds of the runs."""
        return {entry.seed for entry in self.runs}

    def validation(self, seeds: Container[int]) -> float | None:
        """Mean accuracy of these seeds' models on held-out samples, in percent; None where a run has none."""
        found = [validated(entry.run.summary) for entry in self.runs if entry.seed in seeds]
        known = [100 * float(value) for value in found if value is not None]
        return statistics.fmean(known) if known and len(known) == len(found) else None


def _dealt(partition: Partition) -> str:
    """How the data was dealt, for people."""
    if not isinstance(partition, Dirichlet):
        return partition.kind
    return " ".join(
        [partition.kind, f"{partition.alpha:g}", *(["ascending"] if partition.order == "ascending" else [])]
    )


def _differences(setting: Setting, variant: str, protocol: str, recipe: Recipe) -> Iterator[tuple[str, Any]]:
    wanted = by_dotted_key(plain(recipe_for(setting, variant, protocol=protocol, short=recipe.short)))
    found = by_dotted_key(plain(recipe))
    found.pop("task.options.root", None)
    for key in dict.fromkeys([*wanted, *found]):
        if not changes_results(key) or key.startswith(_SKIPPED) or (key in wanted and wanted[key] is None):
            continue
        if wanted.get(key) != found.get(key):
            yield key, found.get(key)
    own = own_partition(setting.task, protocol, recipe.method.name)
    if isinstance(recipe.partition, Dirichlet) and isinstance(own, Dirichlet):
        for entry in fields(recipe.partition):
            value = getattr(recipe.partition, entry.name)
            if value != getattr(own, entry.name):
                yield f"partition.{entry.name}", value
