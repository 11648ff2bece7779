"""The runs of a grid as a table: one row per combination of values and method, mean and std over its seeds.

Reads the summaries alone, so it also shows a grid that is only partly done.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.files import SUMMARY
from fedgmr.reporting.quantities import align_table, format_seconds
from fedgmr.reporting.records import read_summary, validated


def grid_table(names: Sequence[str], runs: Iterable[tuple[Sequence[str], Path]]) -> str:
    """Write the final accuracies as an aligned table, with notes that a reader must know.

    The combination with the best validation of its method is marked: settings are chosen by it, not by the test set.

    Args:
        names: the columns that tell the runs apart: the keys of the grid, and last the method.
        runs: each run by its words in these columns, with its directory; seeds have the same words.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for words, directory in runs:
        groups.setdefault(tuple(words), []).append(read_summary(directory / SUMMARY))
    scores = {words: _validation(group) for words, group in groups.items()}
    best: dict[str, float] = {}  # by method
    for words, score in scores.items():
        if score is not None:
            best[words[-1]] = max(score, best.get(words[-1], score))
    rows = []
    for words, group in groups.items():
        score = scores[words]
        mark = " best" if len(names) > 1 and score is not None and score == best[words[-1]] else ""
        rows.append([*words, *_cells(group), "-" if score is None else f"{score:.2f}{mark}"])
    lines = align_table([[*names, "runs", "accuracy (%)", "at", "validation (%)"], *rows], words=len(names))
    return "\n".join([*lines, *_notes([entry for group in groups.values() for entry in group])])


def _validation(group: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean accuracy on held-out samples, in percent, of the models that the runs hand out; None where one has none."""
    found = [validated(entry) for entry in group if entry.get("status") == "finished"]
    known = [100 * value for value in found if value is not None]
    return statistics.fmean(known) if known and len(known) == len(group) else None


def _cells(group: Sequence[Mapping[str, Any]]) -> list[str]:
    """Runs, accuracy and time of those that finished."""
    done = [entry for entry in group if entry.get("status") == "finished"]
    others = [str(entry.get("status", "unfinished")) for entry in group if entry not in done]
    counts = [f"{others.count(status)} {status}" for status in dict.fromkeys(others)]
    runs = ", ".join([*([str(len(done))] if done or not counts else []), *counts])
    if not done:
        return [runs, "-", "-"]
    values = [100 * float(entry["final_accuracy"]) for entry in done]
    spread = f"{statistics.stdev(values):.2f}" if len(values) > 1 else "-"
    times = sorted({float(entry["seconds"]) for entry in done})
    return [runs, f"{statistics.fmean(values):.2f} ± {spread}", ", ".join(map(format_seconds, times))]


def _notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    short = [entry for entry in entries if entry.get("short")]
    notes = [f"note: short runs ({len(short)} of {len(entries)}), not for conclusions"] if short else []
    stand_ins = dict.fromkeys(str(entry["stand_in"]) for entry in entries if entry.get("stand_in"))
    return [*notes, *(f"note: stand-in data: {sentence}" for sentence in stand_ins)]
