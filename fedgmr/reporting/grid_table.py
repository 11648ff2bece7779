"""The runs of a grid as a table: one row per combination of values and method, mean and std over its seeds.

Reads the summaries alone, so it also shows a grid that is only partly done.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.files import SUMMARY
from fedgmr.reading import Reading
from fedgmr.reporting.quantities import align_table, format_seconds
from fedgmr.reporting.records import read_summary, validated


def grid_table(names: Sequence[str], runs: Iterable[tuple[Sequence[str], Path]]) -> str:
    """Write the final values of the leading metric as an aligned table, with notes that a reader must know.

    The combination with the best validation of its method is marked: settings are chosen by it, not by the test set.

    Args:
        names: the columns that tell the runs apart: the keys of the grid, and last the method.
        runs: each run by its words in these columns, with its directory; seeds have the same words.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for words, directory in runs:
        groups.setdefault(tuple(words), []).append(read_summary(directory / SUMMARY))
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
        rows.append([*words, count, value, time, reading.number(score) + mark])
    unit = f" ({leading.unit})" if leading.unit and not others else ""
    header = [*names, "runs", "leading metric" if others else leading.label, "at", f"validation{unit}"]
    return "\n".join([*align_table([header, *rows], words=len(names)), *_notes(entries)])


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
    spread = reading.number(statistics.stdev(values)) if len(values) > 1 else "-"
    times = sorted({float(entry["seconds"]) for entry in done})
    return [runs, f"{reading.number(statistics.fmean(values))} ± {spread}", ", ".join(map(format_seconds, times))]


def _notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    short = [entry for entry in entries if entry.get("short")]
    notes = [f"note: short runs ({len(short)} of {len(entries)}), not for conclusions"] if short else []
    stand_ins = dict.fromkeys(str(entry["stand_in"]) for entry in entries if entry.get("stand_in"))
    return [*notes, *(f"note: stand-in data: {sentence}" for sentence in stand_ins)]
