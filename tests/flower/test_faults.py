"""What real networks do, in virtual time: nothing stalls the others, nothing is applied twice, everybody may return."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Message

from fedgmr import wire
from fedgmr.exchange import Diverged
from fedgmr.experiments.run import run_recipe
from fedgmr.flower.answers import reply
from fedgmr.flower.client.client_app import app
from fedgmr.flower.server.fleet import LOOK
from flower.grid import RUN, Node, partitions
from flower.runs import PERIOD, Deployed


def journal(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "updates.jsonl").read_text().splitlines()]


def test_a_slow_upload_stalls_nobody(tmp_path: Path) -> None:
    # Client 2's answer takes 55 s, during which pulling it waits; the others answer within the period.
    run = Deployed(partitions(3, tmp_path), tmp_path, latency={2: 55.0}, blocking=True).drive(7)
    ticks = [event for event in journal(tmp_path) if event["event"] == "tick"]
    assert [event["seconds"] for event in ticks] == [PERIOD * tick for tick in range(7)] + [70.0]
    assert all(event["late"] == 0 for event in ticks)
    assert run.server.updates == [7, 7, 1]
    assert run.server.staleness[2] == 6  # dispatched at tick 0, merged first by merge number 6, then held
    assert run.fleet.refused == {}


def test_a_restart_is_seen_and_its_task_done_again(tmp_path: Path) -> None:
    run = Deployed(partitions(3, tmp_path), tmp_path, latency={1: 14.0})
    node = run.nodes[999]
    levels = list(run.server.client_levels)

    def restart(tick: int) -> None:
        if tick == 3:
            node.restart()

    run.drive(8, restart)
    lost = [event for event in journal(tmp_path) if event["event"] == "lost"]
    assert [(event["client"], event["reason"]) for event in lost] == [(1, "restarted")]
    assert 30.0 < lost[0]["seconds"] <= 30.0 + 1.0 + 2 * LOOK  # seen, hello said, seen that it is another life
    # Dispatched at ticks 0 and 2; the restart at tick 3 loses the second, which is sent anew at the next tick.
    firsts = [task["first-batch"] for task in run.tasks_of(1)]
    assert firsts[:4] == [0, 3, 3, 6]
    assert run.fleet.roster.nodes[1].node == 999
    assert run.server.client_levels == levels
    assert run.server.batches[1] == 3 * (run.server.updates[1] + 1)


def test_a_node_that_was_cut_off_for_a_moment_keeps_its_task(tmp_path: Path) -> None:
    run = Deployed(partitions(3, tmp_path), tmp_path, latency={1: 14.0})

    def flicker(tick: int) -> None:
        if tick == 3:
            run.nodes[999].flicker()

    run.drive(8, flicker)
    assert run.fleet.refused == {}
    assert [task["first-batch"] for task in run.tasks_of(1)][:3] == [0, 3, 6]
    assert [event["client"] for event in journal(tmp_path) if event["event"] == "joined"] == [0, 1, 2, 1]


def test_a_lost_hello_is_said_again_and_a_run_starts_without_a_mute_node(tmp_path: Path) -> None:
    """Looks are at 0, 2, 4, ... s. A hello is repeated 10, 20, 40 s after the one before: at 10, 30, 70 s."""
    nodes, asked = partitions(3, tmp_path), list[float]()
    run = Deployed(nodes, tmp_path, sections={"deployment": {"first_task": 60.0}})

    def arrival(node: Node, message: Message) -> float | None:
        if node is nodes[998] and message.metadata.message_type != "train":
            asked.append(run.clock.now())
            return run.clock.now() + 1.0 if len(asked) == answered else None
        return run.arrival(node, message)

    run.grid.arrival, answered = arrival, 2
    run.drive(3)
    assert asked == [0.0, 10.0]
    assert run.clock.now() == 11.0 + 3 * PERIOD, "the run begins with the answer to the second hello"
    assert run.server.updates == [3, 3, 3]

    asked.clear()
    run = Deployed(nodes, tmp_path, sections={"deployment": {"first_task": 60.0}})
    run.grid.arrival, answered = arrival, 4
    run.drive(2)
    assert asked == [0.0, 10.0, 30.0, 70.0]
    assert run.clock.now() == 62.0 + 2 * PERIOD, "the first look after first_task"
    assert run.server.updates == [2, 2, 1], "it says hello at 71 s, just before the dispatch of 72 s"


def test_many_nodes_are_asked_a_few_first_and_ever_more(tmp_path: Path) -> None:
    """Eight at 0 s, which answer at 1 s; then sixteen at once: the next sixteen at the look of 2 s, the last at 4 s."""
    run, asked = Deployed(partitions(30, tmp_path), clients=30, sections={"fleet": {"clients": 30}}), list[float]()

    def arrival(node: Node, message: Message) -> float | None:
        if message.metadata.message_type != "train":
            asked.append(run.clock.now())
        return run.arrival(node, message)

    run.grid.arrival = arrival
    run.drive(1)
    assert Counter(asked) == {0.0: 8, 2.0: 16, 4.0: 6}
    assert run.server.updates == [1] * 30


def test_mute_nodes_hold_up_nobody_for_longer_than_the_next_try(tmp_path: Path) -> None:
    nodes, asked = partitions(12, tmp_path), list[float]()
    run = Deployed(nodes, clients=12, sections={"fleet": {"clients": 12}, "deployment": {"min_clients": 4}})

    def arrival(node: Node, message: Message) -> float | None:
        asked.append(run.clock.now())
        return None if node.node_id > 992 else run.arrival(node, message)

    run.grid.arrival = arrival
    run.drive(1)
    assert asked[:8] == [0.0] * 8, "of whom nobody answers"
    assert asked[8] == 10.0


def test_nothing_is_kept_of_starts_that_are_over(tmp_path: Path) -> None:
    run = Deployed(partitions(3, tmp_path))
    run.drive(12, lambda tick: run.nodes[999].restart())
    assert run.nodes[999].last_activated_at == "start 12"
    assert len(run.fleet.admission._guests) <= 3


def test_a_moment_that_was_waited_for_is_over_however_it_is_rounded(tmp_path: Path) -> None:
    """Seconds before a resume and a clock whose sum is rounded down: the loop must not stand still before its end."""
    past, until = 0.1, 1.0
    began = next(b for b in (n / 7 for n in range(1, 1000)) if past + ((until - past + b) - b) < until)
    run = Deployed(partitions(3, tmp_path))
    run.clock.sleep(began)
    run.fleet._past, run.fleet._began = past, began
    assert run.fleet.collect(until=until) == []
    assert run.fleet.now == until


def test_an_answer_to_a_task_that_was_given_up_is_refused(tmp_path: Path) -> None:
    nodes = partitions(3, tmp_path)
    nodes[999].stubborn = True
    run = Deployed(nodes, tmp_path, latency={1: 14.0})

    def restart(tick: int) -> None:
        if tick == 1:
            nodes[999].restart()

    run.drive(6, restart)
    assert run.fleet.refused == {"restarted": 1, "stale": 1}
    accepted = [event["task"] for event in journal(tmp_path) if event["event"] == "accepted"]
    assert len(accepted) == len(set(accepted)) == sum(run.server.updates)
    refused = [event for event in journal(tmp_path) if event["event"] == "refused"]
    assert [event["task"] for event in refused] == ["1:0:1"]


def test_a_task_without_an_answer_ends_and_the_next_one_has_longer(tmp_path: Path) -> None:
    run = Deployed(partitions(3, tmp_path), tmp_path, latency={2: None}).drive(20)
    lost = [event for event in journal(tmp_path) if event["event"] == "lost"]
    assert [event["reason"] for event in lost] == ["expired", "expired"]
    first, second = (event["seconds"] for event in lost)
    assert 60.0 <= first <= 62.0  # deployment.first_task
    assert 70.0 + 120.0 <= second <= 70.0 + 122.0  # it says hello, is sent a task at the next tick, for twice as long
    assert run.server.updates[:2] == [20, 20]
    assert {task["first-batch"] for task in run.tasks_of(2)} == {0}


def test_a_node_that_goes_is_let_go_and_taken_back(tmp_path: Path) -> None:
    run = Deployed(partitions(3, tmp_path), tmp_path)
    node = run.nodes[999]
    held: list[int] = []

    def leave(tick: int) -> None:
        node.online = not 3 <= tick < 8
        if tick == 7:
            held.append(run.server.buffer[1].version)
            node.restart()

    run.drive(12, leave)
    assert run.fleet.refused == {"unavailable": 1}
    assert held == [2], "its last update stays in the buffer while it is away"
    assert run.server.updates[0] == 12
    assert 5 <= run.server.updates[1] < 8
    assert [event["client"] for event in journal(tmp_path) if event["event"] == "joined"].count(1) == 2


def test_a_node_that_is_gone_gets_no_task_before_the_next_look(tmp_path: Path) -> None:
    """Looks are at 0, 2, 4, ... s; it leaves at 6.5 s, and Flower says so to whoever asks for its answer."""
    run = Deployed(partitions(1, tmp_path), tmp_path, clients=1, method="fedasync", rules={})

    def leave() -> None:
        run.clock.sleep(6.5)
        run.nodes[1000].online = False
        run.clock.sleep(20.0)
        run.nodes[1000].online = True

    def count(tick: int) -> None:
        assert run.fleet.refused["unavailable"] <= 1

    run.clock.spawn(leave)
    run.drive(3, count)
    assert run.fleet.refused == {"unavailable": 1}
    assert run.server.updates == [3]


def test_a_new_node_id_is_known_by_its_client_id(tmp_path: Path) -> None:
    nodes = partitions(3, tmp_path)
    run = Deployed(nodes, tmp_path, sections={"deployment": {"identity": "claimed"}})

    def replace(tick: int) -> None:
        if tick == 3:
            nodes[999].online = False
        if tick == 4:
            nodes[5] = Node(node_id=5, config=nodes[999].config)

    run.drive(8, replace)
    assert run.fleet.roster.nodes[1].node == 5
    assert run.server.updates[1] >= 5
    assert run.server.staleness[1] is not None


def test_nobody_gets_the_number_of_a_key_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Node 5 has stolen the files of client 1, its client id and partition, and comes while node 999 is away."""
    nodes = partitions(3, tmp_path)
    run = Deployed(nodes, tmp_path)

    def steal(tick: int) -> None:
        nodes[999].online = not 3 <= tick < 6
        if tick == 4:
            nodes[5] = Node(node_id=5, config=nodes[999].config)

    run.drive(9, steal)
    assert {client: known.node for client, known in run.fleet.roster.nodes.items()} == {0: 1000, 1: 999, 2: 998}
    assert not any(event["event"] == "joined" and event["node"] == "5" for event in journal(tmp_path))
    assert run.server.updates[1] == 9 - 3 - 1, "all ticks but three, and the task that it had when it left"
    assert "Node 5 waits: no client number is free for it" in caplog.text


def test_a_late_node_joins_at_any_tick(tmp_path: Path) -> None:
    nodes = partitions(3, tmp_path)
    late = nodes.pop(998)
    run = Deployed(nodes, tmp_path)

    def join(tick: int) -> None:
        if tick == 4:
            nodes[998] = late

    run.drive(8, join)
    assert run.server.updates == [8, 8, 3]  # hello during tick 5, then one task per tick
    assert run.server.profiles[2].samples > 0


def test_two_nodes_with_the_same_partition_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = partitions(3, tmp_path)
    nodes[998].config["partition-id"] = 1
    Deployed(nodes).drive(1)
    said = [record.getMessage() for record in caplog.records if "both name" in record.getMessage()]
    (words,) = said
    assert words.startswith("The nodes of clients 1 and 2 both name partition-id=1:")
    caplog.clear()
    Deployed(partitions(3, tmp_path / "other")).drive(1)
    nodes = partitions(2, tmp_path / "own")
    for node in nodes.values():
        del node.config["partition-id"]
    Deployed(nodes, clients=2).drive(1)
    assert "both name" not in caplog.text


def test_nodes_beyond_the_fleet_wait(tmp_path: Path) -> None:
    nodes = partitions(4, tmp_path)
    run = Deployed(nodes, tmp_path, clients=3).drive(4)
    assert sorted(known.node for known in run.fleet.roster.nodes.values()) == [998, 999, 1000]
    assert run.server.updates == [4, 4, 4]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("bit", "checksum"),
        ("nothing", "length"),
        ("longer", "length"),
        ("client", "client"),
        ("run", "run"),
        ("replay", "stale"),
        ("loss", "non-finite"),
    ],
)
def test_what_is_not_the_update_is_refused(damage: str, reason: str, tmp_path: Path) -> None:
    nodes = partitions(3, tmp_path)
    run = Deployed(nodes, tmp_path)
    seen: list[bytes] = []

    def hostile(message: Message, context: Context) -> Message:
        honest = app(message, context)
        if message.metadata.message_type != "train":
            return honest
        seen.append(honest.content["objects"]["update"].data)
        if len(seen) == 1:
            return honest
        return _damaged(damage, message, seen)

    nodes[999].answer = hostile
    run.drive(6)
    assert run.fleet.refused == {reason: 3}
    assert run.server.updates == [6, 1, 6]
    assert [task["first-batch"] for task in run.tasks_of(1)] == [0, 3, 3, 3], "then it is on hold"
    assert torch.isfinite(run.server.model).all()


def _damaged(damage: str, message: Message, seen: list[bytes]) -> Message:
    data, loss = seen[-1], 0.5
    if damage == "bit":
        data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    elif damage == "nothing":
        data = b""
    elif damage == "longer":
        data += b"\0"
    elif damage == "replay":
        data = seen[0]
    elif damage == "loss":
        loss = float("nan")
    else:
        header = wire.Header.read(data)
        values = np.zeros(header.count, np.float32)
        stamp = wire.Stamp(
            run=RUN + 1 if damage == "run" else RUN,
            client=0 if damage == "client" else 1,
            version=header.stamp.version,
            map_version=header.stamp.map_version,
        )
        data = wire.encode_update(values, stamp=stamp, last=header.last)
    return reply(message, {"loss": loss}, data)


@pytest.mark.parametrize(
    ("value", "report", "beyond", "reason"),
    [
        (1e38, None, "refuse", "non-finite"),
        (3.4e38, None, "clip", "non-finite"),
        (1e6, None, "refuse", "change"),
        (1e6, None, "clip", "clipped"),
        (0.0, wire.Report(metric_sum=-1e308, samples=1), "refuse", "report"),
        (0.0, wire.Report(metric_sum=1.0, samples=2**63), "refuse", "report"),
    ],
)
def test_a_well_formed_update_that_is_out_of_bounds(
    value: float, report: wire.Report | None, beyond: str, reason: str, tmp_path: Path
) -> None:
    nodes = partitions(3, tmp_path)
    run = Deployed(nodes, tmp_path, rules={"coordination": {"period": PERIOD}, "admission": {"beyond": beyond}})

    def hostile(message: Message, context: Context) -> Message:
        honest = app(message, context)
        if message.metadata.message_type != "train":
            return honest
        header = wire.Header.read(honest.content["objects"]["update"].data)
        values = np.full(header.count, value, np.float32)
        data = wire.encode_update(values, stamp=header.stamp, last=header.last, report=report)
        return reply(message, {"loss": 0.5}, data)

    nodes[999].answer = hostile
    run.drive(6)
    times = 6 if reason == "clipped" else 3  # then it is on hold
    assert run.fleet.refused == {reason: times}
    assert torch.isfinite(run.server.model).all()
    assert run.server.model.norm() < 100
    ended = [event for event in journal(tmp_path) if event["event"] in ("accepted", "refused")]
    events = [event for event in ended if event["client"] == 1]
    assert len(events) == times
    if reason == "clipped":
        assert all(event["clipped"] is True for event in events)
        assert run.server.updates == [6, 6, 6]
    else:
        assert {(event["event"], event["reason"]) for event in events} == {("refused", reason)}
        assert run.server.updates == [6, 0, 6]
        assert {task["first-batch"] for task in run.tasks_of(1)} == {0}


def diverged(message: Message, context: Context) -> Message:
    """A client whose training diverges."""
    if message.metadata.message_type != "train":
        return app(message, context)
    return reply(message, {"refused": "diverged"})


@pytest.mark.parametrize(("method", "rules"), [("fedgmr", {"coordination": {"period": PERIOD}}), ("fedavg", {})])
def test_where_all_clients_diverge_the_run_has_diverged(method: str, rules: dict[str, Any], tmp_path: Path) -> None:
    nodes = partitions(3, tmp_path)
    run = Deployed(nodes, tmp_path, method=method, rules=rules)
    for node in nodes.values():
        node.answer = diverged
    with pytest.raises(Diverged, match="3 of 3 clients are out of bounds") as caught:
        run.drive(6)
    assert [verdict.reason for verdict in caught.value.verdicts] == ["client-diverged"] * 3
    assert run.server.tick == 1


def test_weights_too_large_for_16_bits_are_divergence(tmp_path: Path) -> None:
    """They are finite where they were trained, so only writing them down shows it; a simulation ends likewise."""
    training = {"batch_size": 10, "steps": 1, "learning_rate": 1e6}
    run = Deployed(partitions(3, tmp_path), sections={"network": {"values": "fp16"}, "training": training})
    with pytest.raises(Diverged, match="3 of 3 clients are out of bounds") as caught:
        run.drive(6)
    assert [verdict.reason for verdict in caught.value.verdicts] == ["client-diverged"] * 3
    with pytest.raises(Diverged, match="3 of 3 clients are out of bounds"):
        run_recipe(run.assembly.recipe, None)


def test_a_client_that_says_that_it_diverges_stops_nobody(tmp_path: Path) -> None:
    nodes = partitions(3, tmp_path)
    nodes[999].answer = diverged
    run = Deployed(nodes, tmp_path).drive(6)
    assert run.fleet.refused == {"client-diverged": 6}
    assert run.server.updates == [6, 0, 6]


def test_a_client_that_forgot_is_sent_the_rest_at_once(tmp_path: Path) -> None:
    run = Deployed(partitions(3, tmp_path), tmp_path)
    whole = Deployed(partitions(3, tmp_path / "other")).drive(6)

    def forget(tick: int) -> None:
        if tick == 2:
            (tmp_path / "1" / "level-map.bin").unlink()
        if tick == 4:
            (tmp_path / "1" / "recipe.json").write_text("{}")
            (tmp_path / "2" / "level-map.bin").write_bytes(b"damaged")

    run.drive(6, forget)
    again = [(event["client"], event["version"]) for event in journal(tmp_path) if event["event"] == "sent again"]
    assert again == [(1, 2), (1, 4), (2, 4)]
    assert run.fleet.refused == {}
    assert run.server.updates == whole.server.updates == [6, 6, 6]
    assert torch.equal(run.server.model, whole.server.model), "each update counts once"
    assert run.fleet.bytes_down[1] > whole.fleet.bytes_down[1]
    assert run.fleet.bytes_up == whole.fleet.bytes_up


def test_a_superlink_that_is_away_for_a_moment(tmp_path: Path) -> None:
    run = Deployed(partitions(3, tmp_path), tmp_path)

    def away(tick: int) -> None:
        run.grid.fails = 3 if tick == 3 else 0

    run.drive(8, away)
    assert run.server.tick == 8
    assert set(run.fleet.refused) <= {"unsent"}
    assert min(run.server.updates) >= 7


def test_a_grid_that_is_gone_ends_the_run(tmp_path: Path) -> None:
    run = Deployed(partitions(3, tmp_path), tmp_path)

    def gone(tick: int) -> None:
        run.grid.fails = 10**9 if tick >= 2 else 0

    with pytest.raises(ConnectionError, match="away"):
        run.drive(8, gone)


def test_a_synchronous_round_goes_on_without_the_lost(tmp_path: Path) -> None:
    run = Deployed(partitions(3, tmp_path), tmp_path, latency={2: None}, method="fedavg", rules={}).drive(3)
    assert run.server.updates == [3, 3, 0]
    assert run.fleet.refused == {"expired": 1, "late": 1}  # the second task has twice as long, but nobody waits for it
    assert run.server.tick == 3


def test_a_silent_client_costs_a_synchronous_method_its_deadline_once(tmp_path: Path) -> None:
    """The others answer after 4 s. Looks are at 1, 3, ... 19, 21: the first after the deadline of 20 s is at 21 s."""
    run = _beside_a_silent_client(tmp_path, deadline=20.0)
    moments: list[float] = []
    run.drive(5, lambda tick: moments.append(run.fleet.now))
    assert moments == [21.0, 25.0, 29.0, 33.0, 37.0]
    assert run.server.updates == [5, 5, 0]
    assert run.fleet.refused == {"late": 1}
    lost = [event for event in journal(tmp_path) if event["event"] == "lost"]
    assert [(event["client"], event["reason"], event["seconds"]) for event in lost] == [(2, "late", 21.0)]


def test_without_a_deadline_a_merge_waits_as_long_as_the_task_has(tmp_path: Path) -> None:
    """The first task has 60 s, and the SuperLink itself says then that it is over."""
    run = _beside_a_silent_client(tmp_path)
    moments: list[float] = []
    run.drive(4, lambda tick: moments.append(run.fleet.now))
    assert moments == [60.0, 64.0, 68.0, 72.0]
    assert run.fleet.refused == {"expired": 1}


def _beside_a_silent_client(directory: Path, **deployment: float) -> Deployed:
    """FedAvg with a client that says hello once and nothing more."""
    settings = {"shortest": 30.0, "first_task": 60.0, **deployment}
    nodes = partitions(3, directory)
    run = Deployed(nodes, directory, method="fedavg", rules={}, sections={"deployment": settings})
    hellos: list[int] = []

    def arrival(node: Node, message: Message) -> float | None:
        if node is nodes[998]:
            hellos.append(1)
            return run.clock.now() + 1.0 if len(hellos) == 1 else None
        return run.arrival(node, message)

    run.grid.arrival = arrival
    return run


def test_a_client_that_says_hello_and_nothing_more_is_asked_ever_more_rarely(tmp_path: Path) -> None:
    """It costs the deadline each time, 20 s up to a look; it is asked again at once, 10 s, 30 s, 70 s later."""
    settings = {"shortest": 30.0, "first_task": 60.0, "deadline": 20.0}
    run = Deployed(
        partitions(3, tmp_path),
        tmp_path,
        latency={2: None},
        method="fedavg",
        rules={},
        sections={"deployment": settings},
    )
    moments = [0.0]
    run.drive(40, lambda tick: moments.append(run.fleet.now))
    assert max(np.diff(moments)) <= 20.0 + LOOK
    sent = [e["seconds"] for e in journal(tmp_path) if e["event"] == "dispatched" and e["client"] == 2]
    waits = np.diff(sent) - 20.0
    for wait, pause in zip(waits, (0.0, 10.0, 30.0), strict=False):
        assert pause <= wait <= pause + 4 * LOOK, "a look for each of the two, and the end of a round of 4 s"


def test_an_update_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    """Client 2 needs 35 s of the 20 that a merge waits: its answer to the task of tick 0 comes during a later one."""
    sections = {"deployment": {"first_task": 60.0, "deadline": 20.0}}
    run = Deployed(partitions(3, tmp_path), None, latency={2: 35.0}, method="fedavg", rules={}, sections=sections)
    run.drive(3)  # merges at 21, 25 and 47 s; at 25 s it has said hello and is sent a second task, late at 47 s
    assert run.fleet.refused == {"late": 2, "stale": 1}
    assert run.server.updates == [3, 3, 0]


def test_a_node_that_raises_is_asked_again_only_after_a_restart(tmp_path: Path) -> None:
    nodes = partitions(3, tmp_path)
    asked: list[str] = []

    def broken(message: Message, context: Context) -> Message:
        asked.append(message.metadata.message_type)
        raise ValueError("no data here")

    nodes[998].answer = broken
    run = Deployed(nodes, tmp_path, sections={"deployment": {"min_clients": 2}})

    def mend(tick: int) -> None:
        if tick == 3:
            nodes[998].answer = app
            nodes[998].restart()

    run.drive(6, mend)
    assert asked == ["query.hello"]
    assert run.server.updates[2] >= 2


def test_a_run_whose_nodes_are_all_turned_away_ends(tmp_path: Path) -> None:
    def broken(message: Message, context: Context) -> Message:
        raise ValueError("no data here")

    nodes = partitions(3, tmp_path)
    for node in nodes.values():
        node.answer = broken
    run = Deployed(nodes, tmp_path, sections={"deployment": {"first_task": 60.0}})
    with pytest.raises(ValueError, match=r"^None of the 3 nodes can take part\. The last one says: .*no data here"):
        run.drive(1)
    assert run.clock.now() == 62.0, "the first look after first_task: one may be mended and restarted before"


def test_the_fastest_set_the_pace_and_are_not_waited_for_when_lost(tmp_path: Path) -> None:
    rules = {"coordination": {"kind": "fastest", "clients": 2, "grace": 2.0}}
    latency = {0: 4.0, 1: 6.0, 2: 7.0}
    run = Deployed(partitions(3, tmp_path), tmp_path, latency=latency, blocking=True, rules=rules).drive(3)
    assert run.fleet.now == pytest.approx(3 * (6.0 + 2.0))
    assert run.server.updates == [3, 3, 3]

    run = Deployed(partitions(3, tmp_path), tmp_path, latency=latency, blocking=True, rules=rules)
    moments: list[float] = []

    def leave(tick: int) -> None:
        moments.append(run.fleet.now)
        if tick == 2:
            run.nodes[1000].online = run.nodes[999].online = False

    run.drive(5, leave)
    assert moments[:2] == pytest.approx([8.0, 16.0])
    # Both are lost soon after 16, and the merges go on by client 2: 7 s and the grace.
    assert run.server.updates == [2, 2, 5]
    assert np.diff(moments)[1:] == pytest.approx([9.0, 9.0, 9.0], abs=LOOK)
