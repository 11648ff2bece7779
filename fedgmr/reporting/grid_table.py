"""The runs of a grid as a table: one row per combination of values and method, mean and std over its seeds.

Reads the summaries alone, so it also shows a grid that is only partly done.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgmr.files import SUMMARY, read_json
from fedgmr.reporting.quantities import align_table, format_seconds


@dataclass(frozen=True, kw_only=True)
class GridRun:
    """A run of a grid: what the grid set for it, its method, and its directory."""

    values: tuple[tuple[str, str], ...]  # (key, value)
    method: str
    directory: Path


def grid_table(runs: Sequence[GridRun]) -> str:
    """Write the final accuracies as an aligned table, with notes that a reader must know."""
    groups: dict[tuple[tuple[str, ...], str], list[Mapping[str, Any]]] = {}
    for run in runs:
        row = tuple(value for _, value in run.values), run.method
        groups.setdefault(row, []).append(read_json(run.directory / SUMMARY))
    keys = [key for key, _ in runs[0].values]
    header = [*keys, "method", "runs", "accuracy (%)", "at"]
    rows = [[*values, method, *_cells(group)] for (values, method), group in groups.items()]
    notes = _notes([entry for group in groups.values() for entry in group])
    return "\n".join([*align_table([header, *rows], words=len(keys) + 1), *notes])


def _cells(group: Sequence[Mapping[str, Any]]) -> list[str]:
    """Runs, accuracy and time of those that finished."""
    done = [entry for entry in group if entry.get("status") == "finished"]
    others = [str(entry.get("status", "unfinished")) for entry in group if entry not in done]
    counts = [f"{others.count(status)} {status}" for status in dict.fromkeys(others)]
    runs = ", ".join([*([str(len(done))] if done or not counts else []), *counts])
    if not done:
        return [runs, "-", "-"]
    values = [100 * float(entry["final_accuracy"]) for entry in done]
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    times = sorted({float(entry["seconds"]) for entry in done})
    accuracy = f"{statistics.fmean(values):.2f} ± " + ("-" if math.isnan(spread) else f"{spread:.2f}")
    return [runs, accuracy, ", ".join(map(format_seconds, times))]


def _notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    short = [entry for entry in entries if entry.get("short")]
    notes = [f"note: short runs ({len(short)} of {len(entries)}), not for conclusions"] if short else []
    stand_ins = dict.fromkeys(str(entry["stand_in"]) for entry in entries if entry.get("stand_in"))
    return [*notes, *(f"note: stand-in data: {sentence}" for sentence in stand_ins)]
