"""The journal: a long one is put aside with its counts, and a resume finds its place in either file."""

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedgmr.flower.server import journal as module
from fedgmr.flower.server.journal import Journal


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(journal: Journal, ticks: range) -> Journal:
    """Two events before each tick."""
    for tick in ticks:
        journal.write("dispatched", client=0)
        journal.write("lost", client=0, reason="expired")
        journal.merge(tick, late=0.0)
    return journal


@pytest.fixture
def long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """Four ticks of three events, 179 bytes each; 479 bytes are there before the third tick is written."""
    monkeypatch.setattr(module, "LARGEST", 350)
    return write(Journal(tmp_path, lambda: 7.0), range(4))


def test_a_long_file_is_put_aside_with_its_counts(long: Journal, tmp_path: Path) -> None:
    head, first, *rest = lines(tmp_path / "updates.jsonl")
    assert head == {"event": "earlier", "lines": 8, "counts": {"dispatched": 3, "lost expired": 3, "tick": 2}}
    assert first == {"event": "tick", "tick": 2, "seconds": 7.0, "late": 0.0}
    assert rest[0] == {"event": "dispatched", "seconds": 7.0, "client": 0}, "every event has its moment"
    assert [event["event"] for event in rest] == ["dispatched", "lost", "tick"]
    assert len(lines(tmp_path / "updates-earlier.jsonl")) == 8
    assert long.lines == 12
    assert long.counts == {"dispatched": 4, "lost expired": 4, "tick": 4}


def test_only_two_files_are_kept(long: Journal, tmp_path: Path) -> None:
    write(long, range(4, 100))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["updates-earlier.jsonl", "updates.jsonl"]
    assert all(path.stat().st_size < 350 + 250 for path in tmp_path.iterdir())  # the limit, a tick, the counts
    head, *rest = lines(tmp_path / "updates.jsonl")
    assert head["lines"] + len(rest) == 300 == sum(long.counts.values())


@pytest.mark.parametrize(("known", "names"), [(9, ["updates-earlier.jsonl", "updates.jsonl"]), (6, ["updates.jsonl"])])
def test_a_resume_goes_on_in_either_file(long: Journal, tmp_path: Path, known: int, names: list[str]) -> None:
    again = Journal(tmp_path, lambda: 9.0)
    again.restore(known, lost=[0, 3], tick=known // 3 - 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert again.lines == known + 1
    per = known // 3
    assert again.counts == {"dispatched": per, "lost expired": per, "tick": per, "resumed": 1, "interrupted": 2}
    last = lines(tmp_path / "updates.jsonl")[-2:]
    assert [event["event"] for event in last] == ["tick", "resumed"]
    assert last[0]["tick"] == per - 1


def test_a_kill_between_the_two_files_loses_nothing(long: Journal, tmp_path: Path) -> None:
    (tmp_path / "updates.jsonl").unlink()
    again = Journal(tmp_path, lambda: 9.0)
    again.cut_back(8)
    assert (again.lines, len(lines(tmp_path / "updates.jsonl"))) == (8, 8)


def test_a_new_run_begins_with_nothing(long: Journal, tmp_path: Path) -> None:
    again = Journal(tmp_path, lambda: 0.0)
    again.cut_back(0)
    assert (again.lines, dict(again.counts)) == (0, {})
    assert (tmp_path / "updates.jsonl").read_text() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["updates.jsonl"]


@pytest.mark.parametrize("end", [b'{"event": "tick", "seco', b"\0" * 40, b'{"event": "tick"}\n\0\0\0\n'])
def test_a_line_that_lost_its_end_with_the_power_is_left_out(end: bytes, tmp_path: Path) -> None:
    """The checkpoint was safe on the disk, the last lines of the journal were not."""
    write(Journal(tmp_path, lambda: 7.0), range(2))
    path = tmp_path / "updates.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + end)
    again = Journal(tmp_path, lambda: 9.0)
    again.restore(20, lost=[], tick=2)
    written = lines(path)
    assert again.lines == len(written) == sum(again.counts.values()) == 6 + end.startswith(b'{"event": "tick"}') + 1
    assert path.read_bytes().startswith(whole)
    assert written[-1]["event"] == "resumed"
