"""The threads themselves, in real time and with events instead of waiting."""

import threading
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict

from fedgmr.flower.answers import Failed
from fedgmr.flower.server.clock import WallClock
from fedgmr.flower.server.courier import Answer, Courier, Letter, Online

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
        return [letter(int(number)).message]


def letter(number: int) -> Letter:
    content = RecordDict({"settings": ConfigRecord({"number": number})})
    message = Message(content, dst_node_id=number, message_type="train")
    return Letter(message=message, key=number, read=lambda m: m.content["settings"]["number"], poll=0.01)


def take(inbox: Any, kind: type) -> Any:
    end = time.monotonic() + FAR
    while time.monotonic() < end:
        event = inbox.get(until=end)
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__}")


def test_an_answer_that_is_slow_to_come_holds_up_no_other() -> None:
    grid, clock = Grid(), WallClock()
    inbox = clock.mailbox()
    courier = Courier(grid, clock, inbox, look=1000.0)
    courier.start()
    assert take(inbox, Online) == Online(nodes={4: "now"})
    courier.send([letter(number) for number in range(40)])
    while not grid.pushes:
        time.sleep(0.01)
    order = [39, 3, 20, *(number for number in range(40) if number not in (39, 3, 20, 0))]
    for number in order:  # 0 is never released
        grid.released[str(number)].set()
        answer = take(inbox, Answer)
        assert (answer.key, answer.outcome) == (number, number)
    assert grid.pushes == [40], "all messages of a tick in one call"
    courier.close()
    grid.released["0"].set()


def test_a_message_that_is_not_taken_is_told() -> None:
    grid, clock = Grid(), WallClock()
    grid.rejects = {2}
    inbox = clock.mailbox()
    courier = Courier(grid, clock, inbox, look=1000.0)
    courier.start()
    courier.send([letter(2)])
    answer = take(inbox, Answer)
    assert answer.key == 2
    assert isinstance(answer.outcome, Failed)
    assert answer.outcome.reason == "unsent"
    courier.close()


def test_what_reading_raises_is_the_outcome() -> None:
    grid, clock = Grid(), WallClock()
    inbox = clock.mailbox()
    courier = Courier(grid, clock, inbox, look=1000.0)
    courier.start()
    broken = Letter(message=letter(1).message, key="k", read=lambda m: 1 / 0, poll=0.01)
    courier.send([broken])
    while "1" not in grid.released:
        time.sleep(0.01)
    grid.released["1"].set()
    assert isinstance(take(inbox, Answer).outcome, ZeroDivisionError)
    courier.close()


def test_a_mailbox_waits_until_a_moment() -> None:
    clock = WallClock()
    inbox = clock.mailbox()
    assert inbox.get(until=clock.now() - 1) is None
    assert inbox.get(until=clock.now() + 0.01) is None
    inbox.put("first")
    inbox.put("second")
    assert inbox.get(until=clock.now() - 1) == "first"
    assert inbox.get(until=float("inf")) == "second"
