"""The runs of a grid as a table: one row per combination of values and method, mean and std over its seeds.

Reads the summaries alone, so it also shows a grid that is only partly done.
"""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgmr.files import write_atomic
from fedgmr.reading import Reading
from fedgmr.reporting.method_row import std
from fedgmr.reporting.quantities import align_table, format_seconds, markdown_table
from fedgmr.reporting.records import validated

Run = tuple[Sequence[str], Mapping[str, Any]]  # its words in the columns, and its summary, empty where it has none
_RECORDED = ("seed", "status", "metric", "final_accuracy", "seconds", "ticks", "wall_seconds")


@dataclass(frozen=True, kw_only=True)
class GridTable:
    """The final values of the leading metric, with notes that a reader must know."""

    names: tuple[str, ...]
    runs: tuple[Run, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def text(self) -> str:
        """Write an aligned table for the terminal."""
        lines = align_table([self.header, *self.rows], words=len(self.names))
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def markdown(self) -> str:
        """Write a Markdown table."""
        lines = markdown_table([self.header, *self.rows], words=len(self.names))
        return "\n".join([*lines, *(f"\nNote: {note}" for note in self.notes)]) + "\n"

    def csv(self) -> str:
        """Write the numbers unrounded, one line per run; a cell is empty where there is none."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([*self.names, *_RECORDED, "validation"])
        for words, summary in self.runs:
            writer.writerow([*words, *(summary.get(name) for name in _RECORDED), validated(summary)])
        return buffer.getvalue()

    def write(self, directory: Path) -> None:
        """Write `sweep.csv` and `sweep.md`."""
        write_atomic(directory / "sweep.csv", self.csv())
        write_atomic(directory / "sweep.md", self.markdown())


def grid_table(names: Sequence[str], runs: Sequence[Run]) -> GridTable:
    """Make the table.

    The combination with the best validation of its method is marked: settings are chosen by it, not by the test set.

    Args:
        names: the columns that tell the runs apart: the keys of the grid, and last the method.
        runs: each run by its words in these columns, with its summary; seeds have the same words.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for words, summary in runs:
        groups.setdefault(tuple(words), []).append(summary)
    entries = [entry for group in groups.values() for entry in group]
    leading, *others = _readings(entries)
    read = {words: _readings(group)[0] for words, group in groups.items()} if others else dict.fromkeys(groups, leading)
    scores = {words: _validation(group) for words, group in groups.items()}
    best: dict[tuple[str, Reading], float] = {}  # by method and metric
    for words, score in scores.items():
        if score is not None:
            rival = words[-1], read[words]
            best[rival] = max(score, best.get(rival, score), key=read[words].score)
    rows = []
    for words, group in groups.items():
        score, reading = scores[words], read[words]
        count, value, time = _cells(group, reading)
        mark = " best" if len(names) > 1 and score is not None and score == best[words[-1], reading] else ""
        value = f"{value} {reading.label}" if others else value
        rows.append((*words, count, value, time, reading.number(score) + mark))
    unit = f" ({leading.unit})" if leading.unit and not others else ""
    return GridTable(
        names=tuple(names),
        runs=tuple(runs),
        header=(*names, "runs", "leading metric" if others else leading.label, "at", f"validation{unit}"),
        rows=tuple(rows),
        notes=tuple(_notes(entries)),
    )


def _readings(entries: Iterable[Mapping[str, Any]]) -> list[Reading]:
    """How the leading metrics of these runs are read; more than one where a key of the grid chooses it."""
    return list(dict.fromkeys(Reading.recorded(entry)[0] for entry in entries if entry)) or [Reading()]


def _validation(group: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean on held-out samples of the models that the runs hand out; None where one has none."""
    found = [validated(entry) for entry in group if entry.get("status") == "finished"]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known and len(known) == len(group) else None


def _cells(group: Sequence[Mapping[str, Any]], reading: Reading) -> list[str]:
    """Runs, leading metric and time of those that finished."""
    done = [entry for entry in group if entry.get("status") == "finished"]
    others = [str(entry.get("status", "unfinished")) for entry in group if entry not in done]
    counts = [f"{others.count(status)} {status}" for status in dict.fromkeys(others)]
    runs = ", ".join([*([str(len(done))] if done or not counts else []), *counts])
    if not done:
        return [runs, "-", "-"]
    finals = [entry["final_accuracy"] for entry in done]
    values = [math.nan if value is None else float(value) for value in finals]
    times = sorted({float(entry["seconds"]) for entry in done})
    value = f"{reading.number(statistics.fmean(values))} ± {reading.number(std(values))}"
    return [runs, value, ", ".join(map(format_seconds, times))]


def _notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    short = [entry for entry in entries if entry.get("short")]
    notes = [f"short runs ({len(short)} of {len(entries)}), not for conclusions"] if short else []
    stand_ins = dict.fromkeys(str(entry["stand_in"]) for entry in entries if entry.get("stand_in"))
    return [*notes, *(f"stand-in data: {sentence}" for sentence in stand_ins)]
