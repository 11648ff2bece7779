"""Methods side by side: runs grouped by method, mean and std over seeds, as a table, a CSV file and figures.

`compare` computes, `Comparison` holds the numbers and writes them as text, files and figures; `pages` shows them beside
the curves. The std is the sample std (n - 1), absent for a single run.
"""

import csv
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from fedgmr.files import write_atomic
from fedgmr.reading import Reading
from fedgmr.reporting import plots
from fedgmr.reporting.chart import Chart
from fedgmr.reporting.method_row import OF_CLIENTS, MethodRow, mean
from fedgmr.reporting.quantities import align_table, format_seconds, markdown_table
from fedgmr.reporting.records import Curve, Run, read_run

_ENDED = ("finished", "diverged")
_SAME_LENGTH = 1.01  # runs whose lengths differ by less than this factor had the same time budget


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Methods at the same time budget, best first, with the runs behind them."""

    title: str
    reading: Reading  # of the leading metric
    budget: float
    target: float
    target_reason: str
    rows: tuple[MethodRow, ...]
    groups: Mapping[str, tuple[Run, ...]]
    notes: tuple[str, ...]
    clients: bool = False  # whether tables have the figures per client

    def heading(self) -> str:
        """Say in two sentences how to read the numbers."""
        return (
            f"{self.reading.title} after {format_seconds(self.budget)} and after half of it, mean ± std over the runs. "
            f"Target {self.reading.target_text(self.target)}, {self.target_reason}; "
            "time and data to it are means over the runs that reach it."
        )

    def table(self) -> list[list[str]]:
        """Write the table as people read it: the header, then one row per method."""
        target, name = self.reading.target_text(self.target), self.reading.label
        name = name.replace("accuracy", "acc.")
        at = [f"{name} at {format_seconds(time)}" for time in (self.budget, self.budget / 2)]
        header = ["method", "runs", *at, f"time to {target}", f"data to {target}"]
        rows = [header, *(row.cells(self.reading) for row in self.rows)]
        if self.clients:
            unit = f" ({self.reading.unit})" if self.reading.unit else ""
            rows[0] += [f"10th percentile{unit}", f"worst client{unit}", "Jain's index"]
            for row, found in zip(rows[1:], self.rows, strict=True):
                row += found.client_cells(self.reading)
        return rows

    def text(self) -> str:
        """Write an aligned table for the terminal."""
        lines = align_table(self.table(), words=1)
        prose = [self.heading(), *(f"note: {note}" for note in self.notes)]
        # Paths in notes stay whole, so that they can be copied.
        heading, *notes = (textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False) for text in prose)
        return "\n".join([self.title, heading, "", *lines, *notes])

    def markdown(self) -> str:
        """Write a Markdown table under a heading."""
        lines = markdown_table(self.table(), words=1)
        notes = [f"\nNote: {note}" for note in self.notes]
        return "\n".join([f"## {self.title}", "", self.heading(), "", *lines, *notes]) + "\n"

    def csv(self) -> str:
        """Write the numbers unrounded, one line per method; a cell is empty where there is none."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        names = [column.name for column in fields(MethodRow) if self.clients or column.name not in OF_CLIENTS]
        columns = [f"client_{name}" if name in OF_CLIENTS else name for name in names]
        columns += ["budget_seconds", "target_accuracy"]
        writer.writerow([column.replace("accuracy", self.reading.column) for column in columns])
        writer.writerows([*(getattr(row, name) for name in names), self.budget, self.target] for row in self.rows)
        return buffer.getvalue()

    def write(self, directory: str | Path) -> None:
        """Write `comparison.csv` and `comparison.md`."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "comparison.csv", self.csv())
        write_atomic(folder / "comparison.md", self.markdown())

    def charts(self) -> dict[str, Chart]:
        """The figures by name: leading metric and mean density over time, bytes; means over the runs."""
        accuracy, density, totals = {}, {}, {}
        for title, runs in self.groups.items():
            accuracy[title] = Curve.average(runs, lambda run: run.history.accuracy)
            density[title] = Curve.average(runs, lambda run: run.history.density.mean(axis=1))
            sums = [(run.history.bytes_down[-1].sum(), run.history.bytes_up[-1].sum()) for run in runs]
            totals[title] = np.mean(sums, axis=0)
        return {
            "accuracy": plots.accuracy_figure(accuracy, target=self.target, reading=self.reading),
            "density": plots.mean_density_figure(density),
            "bytes": plots.method_bytes_figure(totals),
        }


def compare_runs(dirs: Sequence[str | Path], *, target: float | None = None, clients: bool = False) -> Comparison:
    """Compare the runs in directories, as `compare` does."""
    return compare([read_run(directory) for directory in dirs], target=target, clients=clients)


def compare(runs: Sequence[Run], *, target: float | None = None, clients: bool = False) -> Comparison:
    """Compare runs, grouped by method.

    Args:
        runs: of one task and one fleet.
        target: value of the leading metric (0..1 for an accuracy) for "time to" and "data to"; unless given 95 % of
            the best method's mean, or 105 % where less is better.
        clients: whether tables have the 10th percentile, the worst client and Jain's index.

    Returns:
        The comparison. Unfinished runs are left out, with a note, unless no run has finished.
    """
    if not runs:
        raise ValueError("No runs to compare: name at least one run directory.")
    ended = [run for run in runs if run.status in _ENDED] or runs
    _check_comparable(ended)
    reading = ended[0].reading
    if target is not None:
        reading.check_target(target)
    budget = _budget(ended)
    groups: dict[str, list[Run]] = {}
    for run in ended:
        groups.setdefault(run.title, []).append(run)
    means = {title: mean([run.accuracy_at(budget) for run in members]) for title, members in groups.items()}
    ranked = sorted(groups, key=lambda title: math.inf if math.isnan(means[title]) else -reading.score(means[title]))
    reason = "as asked"
    if target is None:
        target, reason = reading.near(means[ranked[0]]), reading.near_words
    first = ended[0].summary
    task = str(first.get("task_title") or first.get("task") or "Comparison")
    return Comparison(
        title=f"{task}, fleet {first['fleet']}" if "fleet" in first else task,
        reading=reading,
        budget=budget,
        target=target,
        target_reason=reason,
        rows=tuple(MethodRow.of(title, groups[title], budget, target) for title in ranked),
        groups={title: tuple(groups[title]) for title in ranked},
        notes=tuple(_notes(runs, ended, groups)),
        clients=clients,
    )


def _budget(runs: Sequence[Run]) -> float:
    """Find the time that all runs cover. A diverged run stops early but its last value stands, so it sets no limit."""
    lengths = [run.seconds for run in runs if run.status != "diverged"] or [max(run.seconds for run in runs)]
    # The last tick overshoots the budget by a little, differently in each run.
    return max(length for length in lengths if length <= _SAME_LENGTH * min(lengths))


def _check_comparable(runs: Sequence[Run]) -> None:
    for key in ("task", "fleet"):
        seen = {str(run.summary[key]): run.path for run in runs if key in run.summary}
        if len(seen) > 1:
            listing = ", ".join(f"{value} ({path})" for value, path in seen.items())
            raise ValueError(f"The runs differ in {key}: {listing}; compare one {key} at a time.")
    led = {run.reading.label: run.path for run in runs}
    if len(led) > 1:
        listing = ", ".join(f"{name} ({path})" for name, path in led.items())
        raise ValueError(f"The runs differ in their leading metric: {listing}; compare one at a time.")


def _notes(runs: Sequence[Run], ended: Sequence[Run], groups: Mapping[str, Sequence[Run]]) -> list[str]:
    notes = [f"left out, not finished: {run.path}" for run in runs if run not in ended]
    notes += [f"not finished: {run.path}" for run in ended if run.status not in _ENDED]
    diverged = [run for run in ended if run.status == "diverged"]
    notes += [
        f"{run.title}, seed {run.summary.get('seed')}, diverged; its last {run.reading.name} counts" for run in diverged
    ]
    for title, members in groups.items():
        seeds = [run.summary.get("seed") for run in members]
        if len(set(seeds)) < len(seeds):
            notes.append(f"{title} has several runs with the same seed; the std is not one over seeds")
    general = [text for run in ended if run.status == "finished" for text in run.notices]
    return notes + list(dict.fromkeys(general))
