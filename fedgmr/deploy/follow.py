"""Where a run on the fleet stands, read from its directory: the run itself is in another process.

`updates.jsonl` has a line per tick, `metrics.jsonl` one per evaluation; both may be cut back by a resume, so only their
last complete lines are looked at.
"""

from pathlib import Path
from typing import Any

from fedgmr.experiments.run import Watcher
from fedgmr.files import METRICS, SUMMARY, UPDATES, last_row, read_json


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
    return read_json(run / SUMMARY) or None
