"""The recorder: one row per evaluation, in memory and appended to metrics.jsonl, flushed line by line.

A row says where the run stood: time, tick, accuracy, and per client density, staleness and bytes. `cut_back` drops
the rows that a checkpoint does not know of, so that a resumed run writes them again. Checkpoints and summary carry the
digest of the rows before them.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from fedgmr.files import DIGEST_BYTES, METRICS, unwritable, write_atomic

HOST_CLOCK = "wall"  # the one field in which two equal runs differ


class Recorder:
    """Collects rows; with a directory, also writes them."""

    def __init__(self, directory: Path | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._path = None if directory is None else directory / METRICS
        self._file: IO[str] | None = None
        self._digest = _RowsDigest()

    @property
    def digest(self) -> str:
        """Checksum of all rows so far, without the host's clock."""
        return self._digest.hex

    def cut_back(self, rows: int, kept: Callable[[dict[str, Any], int], dict[str, Any]] = lambda row, _: row) -> None:
        """Keep only the first `rows` rows of the file, which has them: its checkpoint was compared with it.

        `kept` says of a row and its number what is kept of it.
        """
        assert self._path is not None, "rows in memory are not resumed"
        self.rows = [kept(row, number) for number, row in enumerate(read_rows(self._path, rows) if rows else [])]
        # No digest covers the host's clock, and the run's own goes on from it.
        for number, row in enumerate(self.rows, start=1):
            wall = row.get(HOST_CLOCK)
            if not isinstance(wall, int | float) or not 0 <= wall < math.inf:
                raise ValueError(
                    f"{self._path} line {number}: {HOST_CLOCK!r} is {wall!r}, not seconds: restore the file."
                )
            self._digest.add(row)
        write_atomic(self._path, "".join(f"{json.dumps(row)}\n" for row in self.rows))

    def record(self, row: dict[str, Any]) -> None:
        """Append one row."""
        self.rows.append(row)
        self._digest.add(row)
        if self._path is not None:
            try:
                if self._file is None:
                    self._file = self._path.open("a")
                self._file.write(json.dumps(row) + "\n")
                self._file.flush()
            except OSError as error:
                raise unwritable(self._path, error) from error

    def sync(self) -> None:
        """Put the rows on the disk itself, so that no checkpoint is ahead of them."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # every row was flushed, or its error is known
                file.close()


def read_rows(path: Path, first: int | None = None) -> list[dict[str, Any]]:
    """The evaluations in `metrics.jsonl`, the first so many or all; a last line that is half-written does not count."""
    # A killed run may end inside a multi-byte character, so undecodable bytes must not raise.
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:first], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{path} line {number} is not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path} line {number} holds no JSON object: restore the file.")
        rows.append(row)
    return rows


def digest_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Checksum of rows as `Recorder.digest` has it."""
    whole = _RowsDigest()
    for row in rows:
        whole.add(row)
    return whole.hex


class _RowsDigest:
    """Grows row by row, so that a long run does not read its rows again for every checkpoint."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def add(self, row: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in row.items() if name != HOST_CLOCK}
        self._hash.update(f"{json.dumps(kept)}\n".encode())

    @property
    def hex(self) -> str:
        return self._hash.hexdigest()
