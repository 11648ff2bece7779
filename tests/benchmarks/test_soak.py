"""The soak on the stand-in for Flower's grid, seconds long; and the books by hand."""

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import soak_grid
from books import balance

from fedgmr.flower.server import journal


def test_books_by_hand(tmp_path: Path) -> None:
    """Ten tasks: four accepted, one unmerged, two given up (one answered later), one refused, one interrupted."""
    before = {"dispatched": 6, "accepted": 3, "lost expired": 1, "tick": 4}
    events = [
        {"event": "earlier", "lines": 14, "counts": before},
        *[{"event": "dispatched"}] * 4,
        {"event": "accepted"},
        {"event": "lost", "reason": "restarted"},
        {"event": "refused", "reason": "stale"},
        {"event": "refused", "reason": "change"},
        {"event": "resumed", "lost": [3]},
        {"event": "unmerged"},
    ]
    (tmp_path / "updates.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    row = {"in_flight": 1, "updates": [2, 2, 0]}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    books = balance(tmp_path)
    assert books["tasks"] == 10
    assert (books["updates accepted"], books["arrived after the last merge"]) == (4, 1)
    assert (books["refused"], books["- stale"], books["- change"]) == (2, 1, 1)
    assert (books["given up"], books["- expired"], books["- restarted"]) == (2, 1, 1)
    assert (books["interrupted with the server's app"], books["in flight at the end"]) == (1, 1)
    assert (books["tasks without an end"], books["accepted and lost"]) == (0, 0)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({**row, "in_flight": 0, "updates": [2, 1, 0]}) + "\n")
    books = balance(tmp_path)
    assert (books["tasks without an end"], books["accepted and lost"]) == (1, 1)


def test_a_short_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LARGEST", 20_000)
    monkeypatch.setenv("FEDGMR_TRUST", "e2e")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    soak = soak_grid.Soak(nodes=15, ticks=20, kills=3, seed=1, folder=tmp_path, identify=monkeypatch)
    books = soak.books(soak.perform())
    assert soak_grid.verdict(books) == []
    assert books["server's app killed"] == 3
    assert books["ticks"] == 20
    assert books["updates accepted"] > 100
    assert books["updates sent"] >= books["updates accepted"]
    sizes = [path.stat().st_size for path in (tmp_path / "run").glob("updates*")]
    assert len(sizes) == 2, "of three or more"
    assert max(sizes) < 20_000 + 15 * 500, "a tick with two lines for every node comes on top"
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) <= 3
