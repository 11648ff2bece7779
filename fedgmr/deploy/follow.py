"""Where a run on the fleet stands, read from its directory: the run itself is in another process.

`updates.jsonl` has a line per tick, `metrics.jsonl` one per evaluation; both may be cut back by a resume, so only their
last complete lines are looked at.
"""

import json
from pathlib import Path
from typing import Any

from fedgmr.experiments.run import Watcher
from fedgmr.experiments.rundir import SUMMARY
from fedgmr.reporting.recorder import METRICS

UPDATES = "updates.jsonl"
_TAIL = 1 << 16


def show_progress(run: Path, watcher: Watcher) -> None:
    """Tell the watcher where the run stands; nothing before its first evaluation."""
    row = last_row(run / METRICS)
    if row is None:
        return
    tick = last_tick(run) or row
    watcher.update(
        seconds=max(float(tick["seconds"]), float(row["seconds"])),
        tick=max(int(tick["tick"]), int(row["tick"])),
        accuracy=float(row["accuracy"]),
        density=sum(row["density"]) / len(row["density"]),
        bytes_up=sum(row["bytes_up"]),
        bytes_down=sum(row["bytes_down"]),
    )


def last_tick(run: Path) -> dict[str, Any] | None:
    """The newest line about a merge."""
    return last_row(run / UPDATES, event="tick")


def ending(run: Path) -> dict[str, Any] | None:
    """The summary, once the run has ended."""
    path = run / SUMMARY
    return dict(json.loads(path.read_text())) if path.exists() else None


def last_row(path: Path, **wanted: object) -> dict[str, Any] | None:
    """The last complete line of a JSONL file whose fields are as wanted."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().split(b"\n")[1 if size > _TAIL else 0 : -1]
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        row = json.loads(line)
        if all(row.get(key) == value for key, value in wanted.items()):
            return dict(row)
    return None
