"""Admission: how nodes become clients.

Every node that starts is asked who it is and, where densities are measured, its link is probed; of many that start at
once a few are asked first, and ever more as they answer. A client that let a task run out of time is asked again before
it gets another one, after a pause that grows with every such task. A node that cannot take part (no data, another
model) is named in the log once and asked again after a restart.
"""

import logging
import math
from collections import Counter
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
    _again: dict[Start, float] = field(default_factory=dict)  # when to ask next
    _asked: Counter[Start] = field(default_factory=Counter)  # hellos in a row
    _waiting: dict[Start, tuple[Hello, float]] = field(default_factory=dict)  # said hello, has no number
    _probed: set[int] = field(default_factory=set)
    _unanswered: dict[Start, float] = field(default_factory=dict)  # when each was asked
    _at_once: int = _AT_ONCE
    _reason: str = ""  # for which the last one was turned away

    def look(self, online: dict[int, str]) -> None:
        """Note who is online; ask those who are new."""
        self.roster.online = online
        now = self.clock.now()
        for start in self.roster.strangers().items():
            if start in self._waiting:
                self._admit(start, *self._waiting[start])
            elif now >= self._again.get(start, now) and self._asked_lately(now) < self._at_once:
                self._greet(start)
        self._waiting = {s: v for s, v in self._waiting.items() if online.get(s[0]) == s[1]}
        # Whoever comes back does so with another start: over months these would pile up.
        self._again = {s: at for s, at in self._again.items() if online.get(s[0]) == s[1]}
        self._asked = Counter({s: n for s, n in self._asked.items() if online.get(s[0]) == s[1]})
        self._unanswered = {s: at for s, at in self._unanswered.items() if online.get(s[0]) == s[1]}

    def ready(self, client: int) -> bool:
        """Whether the client can take a task."""
        return self.roster.present(client) and (not self.probe or client in self._probed)

    @property
    def hopeless(self) -> str:
        """Why nobody can take part; empty while somebody might."""
        online = self.roster.online.items()
        return self._reason if online and all(self._again.get(start) == math.inf for start in online) else ""

    def ask_again(self, client: int, delays: int) -> None:
        """Let a client say hello before its next task: its last tasks, so many in a row, ran out of time."""
        known = self.roster.nodes[client]
        self._again[(known.node, known.start)] = self.clock.now() + _RETRY * (2 ** min(delays - 1, _MOST_DOUBLINGS) - 1)
        del self._asked[(known.node, known.start)]
        known.start = ""

    def _asked_lately(self, now: float) -> int:
        return sum(now - asked < _RETRY for asked in self._unanswered.values())

    def _greet(self, start: Start) -> None:
        now, before = self.clock.now(), self._asked[start]
        pause = _RETRY * 2 ** min(before, _MOST_RETRIES)
        self._again[start] = now + pause
        self._unanswered[start] = now
        self._asked[start] += 1
        if before:
            _log.warning("Node %d has not said hello yet: it is asked again.", start[0])
        settings = {"recipe": self.terms.recipe, "checksum": self.terms.checksum, "classes": self.terms.classes > 0}
        # A node that is busy with the first hello is not to find a heap of others behind it.
        patience = min(pause, self.patience) if before else self.patience
        self._send(start, HELLO, make_content(settings), Hello.read, partial(self._take_hello, start, now), patience)

    def _take_hello(self, start: Start, sent: float, reply: Reply) -> None:
        hello = reply.outcome
        self._at_once += self._unanswered.pop(start, None) is not None
        if start in self._waiting or start not in self.roster.strangers().items():
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
        client = self.roster.admit(*start, hello, patient=patient)
        if client is None:
            if start not in self._waiting:
                _log.warning("Node %d waits: every client number is taken (fleet.clients).", start[0])
            self._waiting[start] = (hello, since)
            return
        self._waiting.pop(start, None)
        _log.info("Node %d is client %d with %d samples.", start[0], client, hello.samples)
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
            self._again[start], self._reason = math.inf, printable(outcome)

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
