"""The recorder: one row per evaluation, in memory and appended to metrics.jsonl, flushed line by line.

A row says where the run stood: time, tick, accuracy, and per client density, staleness and bytes. `cut_back` drops
the rows that a checkpoint does not know of, so that a resumed run writes them again.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fedgmr.files import METRICS, write_atomic


class History(Sequence[Mapping[str, Any]]):
    """A table: rows by number, columns by name."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __getitem__(self, key: Any) -> Any:
        """`history[3]` is a row, `history["accuracy"]` a column."""
        if isinstance(key, str):
            return [row[key] for row in self.rows]
        return self.rows[key]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.rows[0]) if self.rows else []


class Recorder:
    """Collects rows; with a directory, also writes them."""

    def __init__(self, directory: Path | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._path = None if directory is None else directory / METRICS
        self._file: IO[str] | None = None

    def cut_back(self, rows: int) -> None:
        """Keep only the first `rows` rows of a file already there."""
        if self._path is None:
            return
        # A killed run may end in the middle of a line, whatever bytes those are.
        text = self._path.read_text(encoding="utf-8", errors="replace") if self._path.exists() else ""
        lines = text.splitlines(keepends=True)[:rows]
        if len(lines) < rows:
            raise ValueError(
                f"{self._path} has {len(lines)} rows, the checkpoint {rows}: the file was cut; start the run again."
            )
        write_atomic(self._path, "".join(lines))
        self.rows = [json.loads(line) for line in lines]

    def record(self, row: dict[str, Any]) -> None:
        """Append one row."""
        self.rows.append(row)
        if self._path is not None:
            if self._file is None:
                self._file = self._path.open("a")
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Put the rows on the disk itself, so that no checkpoint is ahead of them."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
