"""Tables: CSV or Parquet files that hold whole runs. A table is written anew whenever something has changed.

`runs` has a line per run with its settings and summary, `evaluations` one per row of `metrics.jsonl`, `clients` one per
row and client.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.files import write_atomic
from fedgmr.reporting.history import History
from fedgmr.reporting.run_files import RunFiles, flattened
from fedgmr.trackers.tracker import Values

Line = Mapping[str, Any]
Encoder = Callable[[Sequence[str], Sequence[Line]], bytes]


class Tables:
    """The three tables of all exported runs."""

    takes_back = True

    def __init__(self, exported: Path, output: Path | None, suffix: str, encode: Encoder) -> None:
        """Tables in files with this suffix, whose bytes are made of columns and lines."""
        self.folder, self.suffix, self.encode = output or exported / "tables", suffix, encode
        self.runs: dict[str, tuple[RunFiles, dict[str, Any]]] = {}

    def begin(self, run: RunFiles) -> None:
        """Note a run, with its settings."""
        self.runs[run.name] = run, {f"recipe.{key}": value for key, value in run.settings().items()}

    def add(self, run: RunFiles, first: int, rows: Sequence[Values]) -> None:
        """Nothing yet: `flush` writes whole tables, read from the directories."""

    def take_back(self, run: RunFiles, first: int) -> None:
        """Nothing: the next rows are written with all others."""

    def end(self, run: RunFiles, summary: Mapping[str, Any]) -> None:
        """Note the summary."""
        self.runs[run.name][1].update({f"summary.{key}": value for key, value in flattened(summary).items()})

    def close(self) -> str:
        """Write the tables."""
        self.flush()
        return ", ".join(str(self.folder / f"{name}{self.suffix}") for name in ("runs", "evaluations", "clients"))

    def flush(self) -> None:
        """Write all tables."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tables: dict[str, list[Line]] = {"runs": [], "evaluations": [], "clients": []}
        for name, (run, about) in self.runs.items():
            tables["runs"].append({"run": name, **about})
            if rows := run.rows():
                history = History.of(rows, run.path)
                lines = enumerate(history.table())
                tables["evaluations"] += [{"run": name, "row": number, **line} for number, line in lines]
                tables["clients"] += [{"run": name, **line} for line in history.client_table()]
        for table, lines_of in tables.items():
            columns = list(dict.fromkeys(column for line in lines_of for column in line))
            write_atomic(self.folder / f"{table}{self.suffix}", self.encode(columns, lines_of))


def csv_tables(exported: Path, output: Path | None) -> Tables:
    """Text with commas; what is null is an empty field."""
    return Tables(exported, output, ".csv", _as_csv)


def parquet_tables(exported: Path, output: Path | None) -> Tables:
    """Columns with types, by pyarrow: a column is a number where all its values are, else text."""
    return Tables(exported, output, ".parquet", _as_parquet)


def _as_csv(columns: Sequence[str], lines: Sequence[Line]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().encode(errors="replace")


def _as_parquet(columns: Sequence[str], lines: Sequence[Line]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({column: _column([line.get(column) for line in lines]) for column in columns})
    content = io.BytesIO()
    parquet.write_table(table, content)
    return content.getvalue()


def _column(values: Sequence[Any]) -> Sequence[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values] if float in kinds else values
    return values if len(kinds) == 1 else [None if value is None else str(value) for value in values]
