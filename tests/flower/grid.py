"""A Flower grid in one process: real messages, the real client app, and a script that says when answers arrive.

Messages are taken apart and put together as Flower does it, so what does not survive that shows. Nodes can be started
again, go away and come back.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedgmr.flower.client import client_app
from fedgmr.flower.client.client_app import app
from flower.virtual import VirtualClock

RUN = 2**63 + 12345


@dataclass
class Node:
    node_id: int
    config: dict[str, Any]
    last_activated_at: str = "start 0"
    online: bool = True
    answer: Callable[[Message, Context], Message] = app
    stubborn: bool = False  # answers although it was restarted, as an orphaned process may
    state: RecordDict = field(default_factory=RecordDict)  # in the memory of its process
    lives: int = 0

    def restart(self) -> None:
        """As a supervisor does it: the grid sees a new start only."""
        self.flicker()
        self.state, self.lives = RecordDict(), self.lives + 1

    def flicker(self) -> None:
        """As a heartbeat after too many missed ones does it: the grid sees a new start, too."""
        self.last_activated_at = f"start {int(self.last_activated_at.split()[1]) + 1}"


@dataclass
class Sent:
    message: Message
    at: float
    due: float
    life: int  # of the node at that time: a message is handed out once
    answered: bool = False


@dataclass
class FakeGrid:
    """`arrival(node, message)` is the moment the answer is there; None: never.

    While it is on its way `pull_messages` waits if `blocking`, as Flower does during an upload; else it finds nothing.
    """

    clock: VirtualClock
    nodes: dict[int, Node]
    arrival: Callable[[Node, Message], float | None]
    pushes: list[int] = field(default_factory=list)  # bytes of the distinct objects of each push
    sent: dict[str, Sent] = field(default_factory=dict)
    run_id: int = RUN
    blocking: bool = True
    fails: int = 0  # so many calls raise, as while a SuperLink restarts

    def get_nodes(self) -> list[Node]:
        self._call()
        return [node for node in self.nodes.values() if node.online]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._call()
        ids, objects = [], {}
        with no_object_id_recompute():
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                parts = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
                objects.update(parts)
                node = self.nodes[message.metadata.dst_node_id]
                due = self.arrival(node, message)
                self.sent[message.object_id] = Sent(
                    message=_inflated(message, parts),
                    at=self.clock.now(),
                    due=float("inf") if due is None else due,
                    life=node.lives,
                )
                ids.append(message.object_id)
        self.pushes.append(sum(map(len, objects.values())))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self._call()
        (message_id,) = message_ids
        sent = self.sent[message_id]
        if self.blocking and self._working(sent):
            self.clock.sleep(max(0.0, sent.due - self.clock.now()))
        node = self.nodes[sent.message.metadata.dst_node_id]
        if sent.due <= self.clock.now() and self._working(sent):
            sent.answered = True
            return [self._answer(node, sent.message)]
        if self.clock.now() >= sent.at + sent.message.metadata.ttl:
            return [_error(sent.message, 3, "expired")]
        return [] if node.online else [_error(sent.message, 5, "unavailable")]

    def _working(self, sent: Sent) -> bool:
        """Whether the node is still at it, and will be in time."""
        node = self.nodes[sent.message.metadata.dst_node_id]
        undisturbed = node.online and (node.stubborn or sent.life == node.lives)
        return undisturbed and sent.due <= sent.at + sent.message.metadata.ttl

    def _call(self) -> None:
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the SuperLink is away")

    def _answer(self, node: Node, message: Message) -> Message:
        context = Context(
            run_id=self.run_id, node_id=node.node_id, node_config=dict(node.config), state=node.state, run_config={}
        )
        try:
            reply = node.answer(message, context)
        except Exception as error:
            return _error(message, 2, str(error))
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            return _inflated(reply, {key: part.deflate() for key, part in get_all_nested_objects(reply).items()})


def identify(monkeypatch: Any) -> None:
    """What Flower tells a server's app of itself; and a client measures its own time in steps, not by this machine."""
    steps = itertools.count()
    monkeypatch.setattr(client_app, "time", SimpleNamespace(perf_counter=lambda: 0.01 * next(steps)))
    monkeypatch.setattr(TaskIdentity, "_run_id", RUN)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 7)


def partitions(count: int, directory: Path, **config: Any) -> dict[int, Node]:
    """Nodes with the parts of the recipe's partition, under node ids in another order."""
    return {
        1000 - client: Node(
            node_id=1000 - client,
            config={"partition-id": client, "state-dir": str(directory / str(client)), "device": "cpu", **config},
        )
        for client in range(count)
    }


def _inflated(message: Message, parts: dict[str, bytes]) -> Message:
    made = inflate_object_from_contents(message.object_id, dict(parts))
    assert isinstance(made, Message)
    made.metadata.__dict__["_message_id"] = message.object_id
    return made


def _error(message: Message, code: int, reason: str) -> Message:
    return Message(Error(code=code, reason=reason), reply_to=message)
