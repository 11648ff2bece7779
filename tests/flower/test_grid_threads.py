"""The threads themselves, in real time and with events instead of waiting."""

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict

from fedgmr.flower.answers import Failed
from fedgmr.flower.server import grid_threads
from fedgmr.flower.server.clock import Clock
from fedgmr.flower.server.grid_threads import GridThreads, Online, Reply, Request

FAR = 60.0  # seconds no test should ever take


class Grid:
    """Answers to messages whose number is released; pulling another one waits."""

    def __init__(self) -> None:
        self.released: dict[str, threading.Event] = {}
        self.pushes: list[int] = []
        self.rejects: set[int] = set()

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(node_id=4, last_activated_at="now")]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        batch = list(messages)
        self.pushes.append(len(batch))
        ids = []
        for message in batch:
            number = message.metadata.dst_node_id
            self.released.setdefault(str(number), threading.Event())
            ids.append("" if number in self.rejects else str(number))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        (number,) = message_ids
        assert self.released[number].wait(FAR)
        return [request(int(number)).message]


def request(number: int) -> Request:
    content = RecordDict({"settings": ConfigRecord({"number": number})})
    message = Message(content, dst_node_id=number, message_type="train")
    return Request(
        message=message,
        read=lambda m: m.content["settings"]["number"],
        receive=lambda reply: None,
        poll=0.01,
        expires=math.inf,
    )


def take(inbox: Any, kind: type) -> Any:
    end = time.monotonic() + FAR
    while time.monotonic() < end:
        event = inbox.get(until=end)
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__}")


def test_an_answer_that_is_slow_to_come_holds_up_no_other() -> None:
    grid, clock = Grid(), Clock()
    inbox = clock.mailbox()
    threads = GridThreads(grid, clock, inbox, look=1000.0)
    threads.start()
    assert take(inbox, Online) == Online(nodes={4: "now"})
    threads.send([request(number) for number in range(40)])
    while not grid.pushes:
        time.sleep(0.01)
    order = [39, 3, 20, *(number for number in range(40) if number not in (39, 3, 20, 0))]
    for number in order:  # 0 is never released
        grid.released[str(number)].set()
        reply = take(inbox, Reply)
        assert (reply.request.message.metadata.dst_node_id, reply.outcome) == (number, number)
    assert grid.pushes == [40], "all messages of a tick in one call"
    threads.close()
    grid.released["0"].set()


def test_an_answer_is_looked_for_through_any_number_of_single_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five in a row are too many; a task of hours may see more than that."""
    monkeypatch.setattr(grid_threads, "_PAUSE", 0.0)
    grid, clock, calls = Grid(), Clock(), list[str]()

    def pull(message_ids: Iterable[str]) -> list[Message]:
        (number,) = message_ids
        calls.append(number)
        if number == "2" or (len(calls) % 2 and len(calls) < 20):
            raise ConnectionError("away")
        return [request(1).message] if len(calls) > 20 else []

    monkeypatch.setattr(grid, "pull_messages", pull)
    inbox = clock.mailbox()
    threads = GridThreads(grid, clock, inbox, look=1000.0)
    threads.start()
    threads.send([request(1)])
    assert take(inbox, Reply).outcome == 1
    threads.send([request(2)])
    assert str(take(inbox, Reply).outcome) == "unreadable: away"
    assert calls.count("2") == 5
    threads.close()


def test_a_message_that_is_not_taken_is_told() -> None:
    grid, clock = Grid(), Clock()
    grid.rejects = {2}
    inbox = clock.mailbox()
    threads = GridThreads(grid, clock, inbox, look=1000.0)
    threads.start()
    threads.send([request(2)])
    reply = take(inbox, Reply)
    assert reply.request.message.metadata.dst_node_id == 2
    assert isinstance(reply.outcome, Failed)
    assert reply.outcome.reason == "unsent"
    threads.close()


def test_a_message_that_expired_before_it_was_sent_holds_up_no_other() -> None:
    grid, clock = Grid(), Clock()
    inbox = clock.mailbox()
    threads = GridThreads(grid, clock, inbox, look=1000.0)
    threads.start()
    threads.send([request(1), replace(request(2), expires=clock.now() - 1.0)])
    reply = take(inbox, Reply)
    assert reply.request.message.metadata.dst_node_id == 2
    assert reply.outcome.reason == "unsent"
    assert grid.pushes == [1], "only the other one was handed to the grid"
    threads.send([replace(request(3), expires=clock.now() - 1.0)])
    assert take(inbox, Reply).outcome.reason == "unsent"
    assert grid.pushes == [1]
    grid.released["1"].set()
    assert take(inbox, Reply).outcome == 1
    threads.close()


def test_what_reading_raises_is_the_outcome() -> None:
    grid, clock = Grid(), Clock()
    inbox = clock.mailbox()
    threads = GridThreads(grid, clock, inbox, look=1000.0)
    threads.start()
    broken = replace(request(1), read=lambda m: 1 / 0)
    threads.send([broken])
    while "1" not in grid.released:
        time.sleep(0.01)
    grid.released["1"].set()
    assert isinstance(take(inbox, Reply).outcome, ZeroDivisionError)
    threads.close()


def test_a_mailbox_waits_until_a_moment() -> None:
    clock = Clock()
    inbox = clock.mailbox()
    assert inbox.get(until=clock.now() - 1) is None
    assert inbox.get(until=clock.now() + 0.01) is None
    inbox.put("first")
    inbox.put("second")
    assert inbox.get(until=clock.now() - 1) == "first"
    assert inbox.get(until=float("inf")) == "second"
