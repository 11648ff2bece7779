"""Admission: how nodes become clients.

Every node that starts is asked who it is and, where densities are measured, its link is probed; of many that start at
once a few are asked first, and ever more as they answer. A client that let a task run out of time is asked again before
it gets another one, after a pause that grows with every such task. A node that cannot take part (no data, another
model) is named in the log once and asked again after a restart.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flwr.app import Message, RecordDict

from fedgmr.exchange import News
from fedgmr.fleets.measurement import Meter
from fedgmr.flower.answers import Failed, Hello, printable, read_answer
from fedgmr.flower.messages import HELLO, PROBE, make_content
from fedgmr.flower.server.clock import Clock
from fedgmr.flower.server.grid_threads import GridThreads, Reply, Request
from fedgmr.flower.server.journal import Journal
from fedgmr.flower.server.roster import Roster
from fedgmr.flower.terms import Terms
from fedgmr.seeding import generator
from fedgmr.wire import Reason, Refused

_log = logging.getLogger(__name__)
_RETRY = 10.0  # seconds until a node that does not answer is asked again; twice as long the next time
_MOST_RETRIES = 4  # doublings: at least every 160 s
_MOST_DOUBLINGS = 6  # of the pauses before a client that let its tasks run out of time is asked again
_CLAIM = 120.0  # seconds a node waits for the number it claims; a killed node counts as online for about 60
_AT_ONCE = 8  # nodes asked at the same time, one more with every answer; they may share a machine
_POLL = 0.25

Start = tuple[int, str]  # a node, and when it was last started


@dataclass(kw_only=True)
class _Guest:
    """A node that is online and no client, or one that has to say hello again."""

    again: float = -math.inf  # when to ask next
    asked: int = 0  # hellos in a row
    unanswered: float = -math.inf  # when it was asked, while that is open
    hello: tuple[Hello, float] | None = None  # with its moment, of one that waits for a number


@dataclass(kw_only=True)
class Admission:
    """Admits nodes to a roster."""

    roster: Roster
    threads: GridThreads
    clock: Clock
    terms: Terms
    meter: Meter
    journal: Journal
    news: list[News]  # of the fleet; clients that join are appended
    patience: float  # seconds a hello may take
    probe: int = 0  # bytes of a probe; 0: links are not probed
    _guests: dict[Start, _Guest] = field(default_factory=lambda: defaultdict(_Guest))
    _probed: set[int] = field(default_factory=set)
    _at_once: int = _AT_ONCE
    _reason: str = ""  # for which the last one was turned away

    def look(self, online: dict[int, str]) -> None:
        """Note who is online; ask those who are new."""
        self.roster.online = online
        now = self.clock.now()
        for start in self.roster.strangers().items():
            guest = self._guests[start]
            if guest.hello is not None:
                self._admit(start, *guest.hello)
            elif now >= guest.again and self._asked_lately(now) < self._at_once:
                self._greet(start)
        # Whoever comes back does so with another start: over months these would pile up.
        for start in [start for start in self._guests if online.get(start[0]) != start[1]]:
            del self._guests[start]

    def ready(self, client: int) -> bool:
        """Whether the client can take a task."""
        return self.roster.present(client) and (not self.probe or client in self._probed)

    @property
    def hopeless(self) -> str:
        """Why nobody can take part; empty while somebody might."""
        online = self.roster.online.items()
        return self._reason if online and all(self._guests[start].again == math.inf for start in online) else ""

    def ask_again(self, client: int, delays: int) -> None:
        """Let a client say hello before its next task: its last tasks, so many in a row, ran out of time."""
        known = self.roster.nodes[client]
        pause = _RETRY * (2 ** min(delays - 1, _MOST_DOUBLINGS) - 1)
        self._guests[(known.node, known.start)] = _Guest(again=self.clock.now() + pause)
        known.start = ""

    def _asked_lately(self, now: float) -> int:
        return sum(now - guest.unanswered < _RETRY for guest in self._guests.values())

    def _greet(self, start: Start) -> None:
        now, guest = self.clock.now(), self._guests[start]
        before = guest.asked
        pause = _RETRY * 2 ** min(before, _MOST_RETRIES)
        guest.again, guest.unanswered, guest.asked = now + pause, now, before + 1
        if before:
            _log.warning("Node %d has not said hello yet: it is asked again.", start[0])
        settings = {"recipe": self.terms.recipe, "checksum": self.terms.checksum, "classes": self.terms.classes}
        # A node that is busy with the first hello is not to find a heap of others behind it.
        patience = min(pause, self.patience) if before else self.patience
        self._send(start, HELLO, make_content(settings), Hello.read, partial(self._take_hello, start, now), patience)

    def _take_hello(self, start: Start, sent: float, reply: Reply) -> None:
        hello, guest = reply.outcome, self._guests[start]
        self._at_once += guest.unanswered > -math.inf
        guest.unanswered = -math.inf
        if guest.hello is not None or start not in self.roster.strangers().items():
            return  # it has answered another one
        if not isinstance(hello, Hello):
            self._turn_away(start, hello)
        elif hello.layout != self.terms.layout or any(c >= self.terms.classes for c in hello.classes):
            text = "its model or classes are not the server's; both need the same task"
            self._turn_away(start, Refused(Reason.COUNT, text))
        else:
            self._admit(start, hello, reply.at, seconds=reply.at - sent)

    def _admit(self, start: Start, hello: Hello, since: float, *, seconds: float | None = None) -> None:
        patient = self.clock.now() - since < _CLAIM
        client, guest = self.roster.admit(*start, hello, patient=patient), self._guests[start]
        if client is None:
            if guest.hello is None:
                _log.warning("Node %d waits: no client number is free for it (fleet.clients).", start[0])
            guest.hello = (hello, since)
            return
        guest.hello = None
        _log.info("Node %d is client %d with %d samples.", start[0], client, hello.samples)
        if (other := self.roster.sharing(client)) is not None:
            text = (
                "The nodes of clients %d and %d both name partition-id=%d: of the same data they have the same samples."
            )
            _log.warning(text, other, client, hello.partition)
        self.journal.write("joined", client=client, node=str(start[0]), samples=hello.samples)
        self.news.append(hello.news(client))
        if seconds is not None and client not in self.meter.estimates:  # later ones may have waited behind a task
            self.meter.probe(client, down=len(self.terms.recipe), up=0, seconds=seconds)
        if self.probe and client not in self._probed:
            data = generator(0, "probe").bytes(self.probe)  # bytes that do not compress
            receive = partial(self._take_probe, client, self.clock.now())
            self._send(start, PROBE, make_content({}, {"probe": data}), read_answer, receive, self.patience)

    def _take_probe(self, client: int, sent: float, reply: Reply) -> None:
        if not isinstance(reply.outcome, Exception):
            self.meter.probe(client, down=self.probe, up=0, seconds=reply.at - sent)
        self._probed.add(client)  # one that failed is made up for by the first tasks

    def _turn_away(self, start: Start, outcome: object) -> None:
        if not isinstance(outcome, Failed) or outcome.reason != "expired":  # of which asking again tells
            _log.warning("Node %d cannot take part: %s", start[0], printable(outcome))
        if isinstance(outcome, Refused) or (isinstance(outcome, Failed) and outcome.reason == "raised"):
            self._guests[start].again, self._reason = math.inf, printable(outcome)

    def _send(
        self,
        start: Start,
        kind: str,
        content: RecordDict,
        read: Callable[[Message], Any],
        receive: Callable[[Reply], None],
        patience: float,
    ) -> None:
        message = Message(content, dst_node_id=start[0], message_type=kind, ttl=patience)
        expires = self.clock.now() + patience
        self.threads.send([Request(message=message, read=read, receive=receive, poll=_POLL, expires=expires)])
