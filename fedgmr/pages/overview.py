"""The table above the runs: methods side by side, or every combination of the settings that a sweep has tried.

It is that of `fedgmr compare` and of `fedgmr sweep`, so the page, the terminal and the files beside it say the same.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgmr.reporting.comparison import Comparison, compare
from fedgmr.reporting.grid_table import grid_table
from fedgmr.reporting.records import Run

_MOST_KEYS = 6  # of runs that differ in more settings no table can be read


def table_of(runs: Sequence[tuple[Run, Mapping[str, Any]]], comparison: Comparison | None) -> dict[str, Any] | None:
    """The table of runs that have ended, each with its entry of the state; None where they belong to no table."""
    if len(runs) < 2:
        return None
    keys = _telling([entry for _, entry in runs])
    try:
        if not keys:
            made = comparison or compare([run for run, _ in runs])
            return _table(made.title, made.heading(), made.table(), made.notes, 1)
        if len(keys) > _MOST_KEYS:
            return None
        ordered = sorted(runs, key=lambda each: [_rank(each[1]["settings"][key]) for key in keys])
        words = [[*(_word(entry["settings"][key]) for key in keys), entry["method"]] for _, entry in ordered]
        found = [(each, run.summary) for each, (run, _) in zip(words, ordered, strict=True)]
        grid = grid_table([*keys, "method"], found)
        text = "Final values, mean ± std over the seeds. Settings are chosen by validation, never by the test set."
        return _table("Settings", text, [grid.header, *grid.rows], grid.notes, len(keys) + 1)
    except (ValueError, TypeError, LookupError):  # of another task or fleet, or a summary that is none
        return None


def _telling(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings in which runs of the same method differ, apart from their seeds."""
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        methods.setdefault(entry["method"], []).append(entry["settings"])
    keys = dict.fromkeys(key for entry in entries for key in entry["settings"] if key != "seed")
    return [key for key in keys if any(len({repr(one.get(key)) for one in group}) > 1 for group in methods.values())]


def _rank(value: Any) -> tuple[bool, float, str]:
    """What sorts values: numbers by size, then texts."""
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, _word(value)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _table(title: str, text: str, rows: Iterable[Sequence[str]], notes: Iterable[str], words: int) -> dict[str, Any]:
    """A table as the page takes it; its first `words` columns are texts."""
    header, *others = rows
    ended = [f"{note.removesuffix('.')}." for note in notes]  # some are sentences that stand alone elsewhere
    return {"title": title, "text": text, "header": header, "rows": others, "notes": ended, "words": words}
