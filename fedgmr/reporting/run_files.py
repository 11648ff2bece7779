"""The runs below a directory, also while they go on: rows, settings, summary, and whether anybody works on them.

A resume drops the rows after its checkpoint and writes them again, so `final_rows` says which rows will stay.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from fedgmr.files import CHECKPOINTS, LOCK, METRICS, RECIPE, SUMMARY, digest
from fedgmr.reporting.recorder import read_rows
from fedgmr.reporting.records import read_summary
from fedgmr.settings.text import by_dotted_key, read_mapping


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """One run directory."""

    path: Path
    name: str  # its path below the exported directory, or its own name

    @property
    def recipe_text(self) -> str:
        """The recipe as it stands in the directory."""
        return (self.path / RECIPE).read_text(encoding="utf-8", errors="replace")

    @property
    def key(self) -> str:
        """The same text for the same run, wherever and whenever it is exported."""
        return digest([self.name, self.recipe_text])

    def settings(self) -> dict[str, Any]:
        """The resolved recipe by dotted keys; lists as JSON text."""
        return flattened(read_mapping(self.path / RECIPE))

    def rows(self) -> list[dict[str, Any]]:
        """The rows so far; a half-written last line does not count."""
        metrics = self.path / METRICS
        return read_rows(metrics) if metrics.is_file() else []

    def summary(self) -> Mapping[str, Any]:
        """The summary; empty where the run has not ended."""
        return read_summary(self.path / SUMMARY)

    def final_rows(self) -> int:
        """The number of rows that no resume writes again: those that the newest checkpoint has counted."""
        files = sorted((self.path / CHECKPOINTS).glob("tick-*.safetensors"))
        try:
            with safe_open(files[-1], "np") as file:
                return int(json.loads(file.metadata()["state"])["recorded"])
        except (LookupError, OSError, ValueError, SafetensorError):  # none yet, or it was removed just now
            return 0

    def at_work(self) -> bool:
        """Whether a process works on the run."""
        try:
            file = os.open(self.path / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # and given back at once
        except OSError:
            return True
        finally:
            os.close(file)
        return False


def is_run(directory: Path) -> bool:
    """Whether a directory is that of a run."""
    return (directory / RECIPE).is_file()


def find_runs(directory: Path) -> list[RunFiles]:
    """The run in a directory, or all runs below it, by name."""
    if is_run(directory):
        return [RunFiles(path=directory, name=directory.resolve().name)]
    paths = sorted(path.parent for path in directory.rglob(RECIPE))
    return [RunFiles(path=path, name=path.relative_to(directory).as_posix()) for path in paths]


def flattened(data: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe or a summary by dotted keys; lists as JSON text."""
    flat = by_dotted_key(data)
    return {key: json.dumps(value) if isinstance(value, list) else value for key, value in flat.items()}
