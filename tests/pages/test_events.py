"""What clients did: from rows and from the journal of a deployed run, by hand, cut, rotated and hostile."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedgmr.pages.events import JournalEvents, RowEvents, thinned
from fedgmr.pages.watch import Watch

from .conftest import row

TRIPS = [
    [1, 0, 0.0, 10.0, 12.5, 30.0, 1000, 900],  # received 10 s, trained 2.5 s, sent the rest
    [0, 1, 5.0, 15.0, None, 40.0, 1000, None],  # lost while it was trained
    [0, 1, 50.0, None, None, None, 1000, None],  # a link that has stopped for ever
]
RATES = [[[1.0, 3.0], [0.5, 0.5]], [[8.0, 8.0], [4.0, 2.0]]]


def test_the_events_of_rows_by_hand(make_run: Any, tmp_path: Path, write_rows: Any) -> None:
    run = make_run(tmp_path / "run", 1)
    write_rows(run, [row(1, trips=TRIPS[:2], away=[[0, 40.0, 50.0]], rates=RATES)], mode="a")
    write_rows(run, [row(2, trips=TRIPS[2:], away=[])], mode="a")
    watch = Watch([run])
    assert watch.state()["runs"][0]["events"] == 3
    tasks = [
        [1, 0, 0.0, 30.0, 10.0, 2.5, None],
        [0, 1, 5.0, 35.0, None, None, "left"],
        [0, 1, 50.0, None, None, None, "left"],
    ]
    assert watch.events(0, 0, 0) == {
        "id": 0,
        "epoch": 0,
        "from": 0,
        "rows": 3,
        "tasks": tasks,
        "away": [[0, 40.0, 50.0]],
        "rates": [[0.0, 60.0, RATES]],
        "joined": [],
    }
    later = watch.events(0, 2, 0)
    assert later is not None
    assert (later["from"], later["tasks"], later["away"], later["rates"]) == (2, tasks[2:], [], [])
    other = watch.events(0, 2, 5)
    assert other is not None
    assert (other["from"], len(other["tasks"])) == (0, 3), "of another epoch, so all"
    assert watch.events(1, 0, 0) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"trips": [[2, 0, 0.0, 1.0, 2.0, 3.0, 1, 1]]},  # there is no client 2
        {"trips": [[0, 0, None, 1.0, 2.0, 3.0, 1, 1]]},
        {"trips": [[0, 0, 0.0]]},
        {"trips": [["<b>", 0, 0.0, 1.0, 2.0, 3.0, 1, 1]]},
        {"away": [[0, 1.0]]},
        {"away": [[0, "x", 2.0]]},
        {"rates": [[[1.0], [1.0]]]},
        {"rates": [[["<b>"], [1.0]], [[1.0], [1.0]]]},
        {"rates": 5},
    ],
)
def test_events_that_are_none(fields: dict[str, Any], make_run: Any, tmp_path: Path, write_rows: Any) -> None:
    run = make_run(tmp_path / "run", 2)
    write_rows(run, [row(2, **fields)], mode="a")
    (entry,) = Watch([run]).state()["runs"]
    assert (entry["status"], entry["rows"]) == ("unknown", 2)


def test_rates_that_no_screen_can_show_become_means() -> None:
    events = RowEvents()
    for number in range(3000):
        events.add(row(number, rates=RATES), 2)
    rates = thinned(events.given(0))["rates"]
    assert len(rates) == 1500
    assert rates[1] == [60.0, 180.0, [[[2.0], [0.5]], [[8.0], [3.0]]]]
    few = RowEvents()
    few.add(row(1, rates=RATES), 2)
    assert thinned(few.given(0)) == few.given(0)


def journal(*events: dict[str, Any]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


JOINED = [{"event": "joined", "client": client, "node": 7, "samples": 5, "seconds": 1.0 + client} for client in (0, 1)]
SENT = [
    {"event": "dispatched", "task": f"{client}.0.{client}", "client": client, "version": 0, "seconds": 2.0, "level": 1}
    for client in (0, 1)
]


def test_the_journal_of_a_deployed_run_by_hand(make_run: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    path = run / "updates.jsonl"
    path.write_text(journal(*JOINED, *SENT))
    watch = Watch([run])
    (entry,) = watch.state()["runs"]
    assert (entry["clock"], entry["events"]) == ("real", 4)
    found = watch.events(0, 2, 0)
    assert found is not None
    assert found["joined"] == [[0, 1.0], [1, 2.0]]
    assert found["tasks"] == [[0, 1, 2.0, None, None, None, None], [1, 1, 2.0, None, None, None, None]]
    ends = [
        {"event": "accepted", "task": "0.0.0", "client": 0, "seconds": 9.0, "arrived": 8.5, "took": 6.5},
        {"event": "lost", "task": "1.0.1", "client": 1, "seconds": 12.0, "reason": "<b>expired"},
        {"event": "tick", "tick": 1, "seconds": 9.0, "late": 0.0},
        {**SENT[0], "task": "0.1.2", "seconds": 9.0},
        {"event": "resumed", "seconds": 20.0, "tick": 1, "lost": [0]},
    ]
    with path.open("a") as file:
        file.write(journal(*ends))
    assert watch.state()["runs"][0]["events"] == 9
    found = watch.events(0, 0, 0)
    assert found is not None
    assert found["tasks"] == [
        [0, 1, 2.0, 6.5, None, None, None],
        [1, 1, 2.0, 10.0, None, None, "<b>expired"],
        [0, 1, 9.0, 11.0, None, None, "restarted"],
    ]


def test_a_journal_that_is_cut_or_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "updates.jsonl"
    path.write_text(journal(*JOINED, *SENT))
    events = JournalEvents(tmp_path)
    events.advance()
    (tmp_path / "new").write_text(journal({"event": "earlier", "lines": 4, "counts": {}}, JOINED[0]))
    os.replace(tmp_path / "new", path)  # as a long file is put aside
    events.advance()
    assert len(events.given()["tasks"]) == 2, "what was put aside stands"
    (tmp_path / "new").write_text(journal(*JOINED, SENT[0]))
    os.replace(tmp_path / "new", path)  # as a resume cuts it
    events.advance()
    assert [task[0] for task in events.given()["tasks"]] == [0]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        '{"event": "dispatched", "task": "x"}',
        '{"event": "joined", "client": "<b>"}',
        '{"event": "accepted", "task": ["x"], "seconds": 1e999}',
        "[" * 100_000,
    ],
)
def test_lines_that_are_no_events_are_left_out(line: str, make_run: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "updates.jsonl").write_text(line + "\n" + journal(*JOINED))
    found = Watch([run])
    found.state()
    events = found.events(0, 0, 0)
    assert events is not None
    assert (events["tasks"], len(events["joined"])) == ([], 2)
    json.dumps(events, allow_nan=False)


def test_a_journal_that_is_a_link_is_not_followed(make_run: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_text(journal(*JOINED, *SENT))
    run = make_run(tmp_path / "runs" / "run")
    (run / "updates.jsonl").symlink_to(outside)
    watch = Watch([tmp_path / "runs"])
    watch.state()
    events = watch.events(0, 0, 0)
    assert events is not None
    assert (events["tasks"], events["joined"]) == ([], [])


def test_a_recorded_run_whose_node_was_killed(tmp_path: Path) -> None:
    """`fedgmr deploy local quickstart --clients 4`; the SuperNode of client 2 was killed while it was at work."""
    shutil.copytree(Path(__file__).with_name("recorded"), tmp_path / "run")
    watch = Watch([tmp_path / "run"])
    (entry,) = watch.state()["runs"]
    assert (entry["clock"], entry["status"], entry["clients"]) == ("real", "interrupted", 4)
    columns, events = watch.columns(0, 0, 0), watch.events(0, 0, 0)
    assert columns is not None
    assert events is not None
    assert [client for client, _ in events["joined"]] == [0, 1, 2, 3]
    assert [task for task in events["tasks"] if task[6]] == [[2, 0, 350.11, 87.9, None, None, "unavailable"]]
    lines = [json.loads(line) for line in (tmp_path / "run" / "updates.jsonl").read_text().splitlines()]
    merged = [[line["client"] for line in lines if line["event"] == "accepted"].count(client) for client in range(4)]
    assert merged == columns["clients"]["updates"][-1]
    took = {line["task"]: line["took"] for line in lines if "took" in line}
    ended = [took[line["task"]] for line in lines if line["event"] == "dispatched" and line["task"] in took]
    assert [task[3] for task in events["tasks"] if not task[6]] == pytest.approx(ended, abs=0.05)
