"""updates.jsonl: one line per event of a deployed run, so that every task can be followed from dispatch to its end.

Appended and flushed line by line. A resumed run drops the lines its checkpoint does not know of, as with the metrics.
"""

import json
from pathlib import Path
from typing import Any

from fedgmr.files import UPDATES, write_atomic


class Journal:
    """Writes events; without a directory it only counts them."""

    def __init__(self, directory: Path | None = None) -> None:
        self._path = None if directory is None else directory / UPDATES
        self.lines = 0

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        self.lines += 1
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **fields}) + "\n")

    def cut_back(self, lines: int) -> None:
        """Keep only the first `lines` lines of a file already there; fewer where it was cut by force."""
        if self._path is not None and self._path.exists():
            kept = self._path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[:lines]
            write_atomic(self._path, "".join(kept))
            lines = len(kept)
        self.lines = lines
