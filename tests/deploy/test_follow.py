"""The state of a run in another process, read from its files."""

import json
from pathlib import Path

from fedgmr.deploy.follow import ending, last_tick, show_progress


class Told:
    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def update(self, **row: object) -> None:
        self.rows.append(row)


def write(path: Path, *rows: dict[str, object], tail: str = "") -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def test_progress_joins_ticks_and_evaluations(tmp_path: Path) -> None:
    told = Told()
    show_progress(tmp_path, told)
    assert told.rows == []
    metrics = {
        "seconds": 20.0,
        "tick": 2,
        "accuracy": 0.5,
        "density": [1.0, 0.5],
        "bytes_up": [3, 4],
        "bytes_down": [5, 6],
    }
    write(tmp_path / "metrics.jsonl", metrics)
    show_progress(tmp_path, told)
    write(
        tmp_path / "updates.jsonl", {"event": "tick", "tick": 3, "seconds": 30.5}, {"event": "dispatched", "client": 1}
    )
    show_progress(tmp_path, told)
    first = {"seconds": 20.0, "tick": 2, "accuracy": 0.5, "density": 0.75, "bytes_up": 7, "bytes_down": 11}
    assert told.rows == [first, {**first, "seconds": 30.5, "tick": 3}]
    assert last_tick(tmp_path) == {"event": "tick", "tick": 3, "seconds": 30.5}


def test_the_end_is_the_summary(tmp_path: Path) -> None:
    assert ending(tmp_path) is None
    (tmp_path / "summary.json").write_text('{"status": "finished"}')
    assert ending(tmp_path) == {"status": "finished"}
