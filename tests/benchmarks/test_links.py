import json
import os
import subprocess
import sys
from pathlib import Path

import link_records
import links
import pytest
from digits import digits
from link_records import Outcome, Prediction, byte_rows, race_rows, reached, read_tasks, time_rows, within
from netns import Count, Shares

MIB = 2**20


def lines(path: Path, *rows: dict[str, object]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def outcome(**fields: object) -> Outcome:
    empty = {
        "tasks": [],
        "metrics": [],
        "in_flight": set(),
        "counted": [],
        "idle": [],
        "window": 100.0,
        "seconds": 90.0,
    }
    return Outcome(**{**empty, **fields})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def predicted() -> Prediction:
    recipe = links.recipe_of("fedgmr", clients=4, seconds=60.0, period=20.0)
    return Prediction(recipe, digits().layout(), recipe.fleet.resolved_links(), overhead=7.0)


def test_headers_are_no_payload() -> None:
    after = Count(down=1_000_000, down_packets=700, up=5_000, up_packets=70)
    count = after.since(Count(down=0, down_packets=0, up=380, up_packets=0))
    assert count.payload_down == 1_000_000 - 700 * 66
    assert count.payload_up == 0  # 70 bare acknowledgements


def test_prediction_by_hand(predicted: Prediction) -> None:
    """Conv-2 has 6,601,504 weights and 2,206 biases; the last client gets a twentieth over 1 / 0.25 MiB/s."""
    values = 4 * (6_601_504 * 0.05 + 2_206)
    seconds, down, up = predicted.task(3, 0, level_map=False)
    assert down == pytest.approx(values, rel=1e-3)
    assert up == pytest.approx(values, rel=1e-3)
    assert seconds == pytest.approx(7.0 + values / MIB + values / (0.25 * MIB), rel=1e-3)
    longer, more, same = predicted.task(3, 0, level_map=True)
    assert same == up
    assert longer - seconds == pytest.approx((more - down) / MIB)
    # The first client has everything over 20 / 5 MiB/s; the shared uplink of a simulation does not count here.
    full = 4 * 6_603_710
    assert predicted.task(0, 4, level_map=False)[0] == pytest.approx(
        7.0 + full / (20 * MIB) + full / (5 * MIB), rel=1e-3
    )


def test_tasks_of_a_journal(tmp_path: Path) -> None:
    def event(kind: str, task: str, **fields: object) -> dict[str, object]:
        return {"event": kind, "task": task, "client": int(task[0]), **fields}

    lines(
        tmp_path / "updates.jsonl",
        event("dispatched", "0:0:0", level=4, bytes=900, seconds=0.5),
        event("dispatched", "1:0:1", level=0, bytes=100, seconds=0.5),
        event("accepted", "0:0:0", bytes=800, took=9.5, client_seconds={"load": 1.0, "train": 0.5}),
        {"event": "tick", "tick": 1, "seconds": 10.0},
        event("lost", "1:0:1", reason="restarted"),
        event("dispatched", "1:1:2", level=1, bytes=100, seconds=10.0),
    )
    tasks, in_flight = read_tasks(tmp_path)
    assert tasks == [link_records.Task(client=0, level=4, sent=0.5, down=900, up=800, took=9.5, training=0.5)]
    assert in_flight == {1}


def test_bytes_less_headers_and_baseline() -> None:
    count = Count(down=1_066_000, down_packets=1_000, up=526_400, up_packets=400)
    last = {"bytes_down": [990_000, 1], "bytes_up": [500_000, 1]}
    run = outcome(counted=[count, count], in_flight={1}, metrics=[last], idle=[(100.0, 0.0)] * 2)
    down, up = byte_rows("x", run, run.idle)
    # 1,066,000 - 66,000 of headers - 100 x 100 idle = 990,000; 526,400 - 26,400 = 500,000.
    assert (down["kernel MB"], down["difference %"]) == ("0.990", "+0.00")
    assert (up["kernel MB"], up["difference %"]) == ("0.500", "+0.00")
    assert within([down, up], 0.0)
    assert not within([{**up, "difference %": "-3.01"}], 0.03)
    assert not within([], 1.0)  # nothing measured is no success


def test_every_task_is_held_to_its_own_bytes(predicted: Prediction) -> None:
    seconds, down, up = predicted.task(3, 0, level_map=False)
    longer, more, _ = predicted.task(3, 0, level_map=True)
    cases = ((more, 1.1 * longer), (down, 0.5 * seconds), (down, 3.0 * seconds))
    tasks = [
        link_records.Task(client=3, level=0, sent=0.0, down=size, up=up, took=took, training=0.1)
        for size, took in cases
    ]
    fleet = links.recipe_of("fedgmr", clients=4, seconds=60.0, period=20.0).fleet.resolved_links()
    (row,) = time_rows("x", outcome(tasks=tasks), predicted, fleet)
    assert (row["tasks"], row["difference %"]) == (3, "+10.0")
    assert row["measured s"] == f"{1.1 * longer:.1f}"
    strange = link_records.Task(client=3, level=0, sent=0.0, down=down + 5000, up=up, took=1.0, training=0.1)
    with pytest.raises(ValueError, match="in the journal"):
        time_rows("x", outcome(tasks=[strange]), predicted, fleet)


def test_the_race() -> None:
    rows = [
        {"seconds": s, "accuracy": a, "tick": 1, "updates": [1], "bytes_up": [1], "bytes_down": [1]}
        for s, a in ((0.0, 0.1), (20.0, 0.8), (40.0, 0.7))
    ]
    run = outcome(metrics=rows)
    assert reached(run, 0.8) == 20.0
    assert reached(run, 0.81) is None
    assert [row["s to 81 %"] for row in race_rows({"a": run}, 0.81)] == ["not in 90"]


def test_a_node_gets_its_share_of_the_processors_and_no_more() -> None:
    busy = "import time\nwhile time.monotonic() - began < 1.0: pass\nprint(time.process_time())"
    command = [sys.executable, "-c", f"import time; began = time.monotonic()\n{busy}"]
    try:
        with Shares(1, cores=0.25, prefix=f"fedgmr-test-{os.getpid()}") as shares:
            done = subprocess.run(shares.inside(0, command), capture_output=True, text=True, check=True)
            group = shares.inside(0, [])[3]
    except OSError as error:
        pytest.skip(str(error))
    assert float(done.stdout) < 0.5
    assert not Path(group).exists()
