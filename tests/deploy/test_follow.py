"""The state of a run in another process, read from its files."""

import json
from pathlib import Path

from fedgmr.deploy.follow import ending, last_row, last_tick, show_progress


class Told:
    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def update(self, **row: object) -> None:
        self.rows.append(row)


def write(path: Path, *rows: dict[str, object], tail: str = "") -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def test_last_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert last_row(path) is None
    write(path, {"a": 1}, {"a": 2, "b": 1}, {"a": 3}, tail='{"a": 4')
    assert last_row(path) == {"a": 3}
    assert last_row(path, b=1) == {"a": 2, "b": 1}
    assert last_row(path, b=7) is None


def test_only_the_tail_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write(path, {"a": 0}, *({"fill": "x" * 1000, "n": n} for n in range(200)))
    row = last_row(path)
    assert row is not None
    assert row["n"] == 199
    assert last_row(path, a=0) is None  # too far back, and the cut line before it does no harm


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
