"""How nodes become clients: every node that starts is asked who it is, and where densities are measured, probed.

A node that cannot take part (no data, another model) is told in the log once and asked again when it was restarted.
"""

import logging
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict

from fedgmr.exchange import News
from fedgmr.fleets.measurement import Meter
from fedgmr.flower.answers import Failed, Hello, read_hello, read_probe
from fedgmr.flower.messages import HELLO, PROBE, hello_content, probe_content
from fedgmr.flower.server.clock import Clock
from fedgmr.flower.server.courier import Answer, Courier, Letter
from fedgmr.flower.server.journal import Journal
from fedgmr.flower.server.roster import Roster
from fedgmr.flower.terms import Terms
from fedgmr.seeding import generator
from fedgmr.wire import Reason, Refused

_log = logging.getLogger(__name__)
_RETRY = 10.0  # seconds until a node that did not answer is asked again
_CLAIM = 120.0  # seconds a node waits for the number it claims; a killed node counts as online for about 60
_POLL = 0.25

Start = tuple[int, str]  # a node, and when it was last started


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """The key of a hello or probe on its way."""

    start: Start
    sent: float
    probed: int = -1  # the client whose link is probed; -1: it is a hello


@dataclass(kw_only=True)
class Reception:
    """Admits nodes to a roster."""

    roster: Roster
    courier: Courier
    clock: Clock
    terms: Terms
    meter: Meter
    journal: Journal
    patience: float  # seconds a hello may take
    probe: int = 0  # bytes of a probe; 0: links are not probed
    _again: dict[Start, float] = field(default_factory=dict)  # when to ask next
    _waiting: dict[Start, tuple[Hello, float]] = field(default_factory=dict)  # said hello, has no number
    _probed: set[int] = field(default_factory=set)

    def look(self, online: dict[int, str]) -> list[News]:
        """Note who is online; ask those who are new. Returns who has joined."""
        self.roster.online = online
        now, news = self.clock.now(), []
        for start in self.roster.strangers().items():
            if start in self._waiting:
                news += self._admit(start, *self._waiting[start])
            elif now >= self._again.get(start, now):
                self._again[start] = float("inf")
                self._greet(start)
        self._waiting = {s: v for s, v in self._waiting.items() if online.get(s[0]) == s[1]}
        return news

    def ready(self, client: int) -> bool:
        """Whether the client can take a task."""
        return self.roster.present(client) and (not self.probe or client in self._probed)

    def answer(self, answer: Answer) -> list[News]:
        """Take in the answer to a hello or a probe. Returns who has joined."""
        key, outcome = answer.key, answer.outcome
        if key.probed >= 0:
            if not isinstance(outcome, Exception):
                self.meter.probe(key.probed, down=self.probe, up=0, seconds=answer.at - key.sent)
            self._probed.add(key.probed)  # one that failed is made up for by the first tasks
        elif isinstance(outcome, Hello) and self._fits(outcome):
            return self._admit(key.start, outcome, answer.at, seconds=answer.at - key.sent)
        else:
            self._turn_away(key.start, outcome)
        return []

    def _fits(self, hello: Hello) -> bool:
        return hello.layout == self.terms.layout and all(c < self.terms.classes for c in hello.classes)

    def _greet(self, start: Start) -> None:
        content = hello_content(self.terms.recipe, self.terms.checksum, classes=self.terms.classes > 0)
        self._send(start, HELLO, content, Greeting(start=start, sent=self.clock.now()))

    def _admit(self, start: Start, hello: Hello, since: float, *, seconds: float | None = None) -> list[News]:
        patient = self.clock.now() - since < _CLAIM
        client = self.roster.admit(*start, hello, patient=patient)
        if client is None:
            if start not in self._waiting:
                _log.warning("Node %d waits: every client number is taken (fleet.clients).", start[0])
            self._waiting[start] = (hello, since)
            return []
        self._waiting.pop(start, None)
        _log.info("Node %d is client %d with %d samples.", start[0], client, hello.samples)
        self.journal.write("joined", client=client, node=str(start[0]), samples=hello.samples)
        if seconds is not None:
            self.meter.probe(client, down=len(self.terms.recipe), up=0, seconds=seconds)
        if self.probe and client not in self._probed:
            data = generator(0, "probe").bytes
            key = Greeting(start=start, sent=self.clock.now(), probed=client)
            self._send(start, PROBE, probe_content(self.probe, data), key)
        return [hello.news(client)]

    def _turn_away(self, start: Start, outcome: object) -> None:
        if isinstance(outcome, Hello):
            outcome = Refused(Reason.COUNT, "its model or classes are not the server's; both need the same task")
        _log.warning("Node %d cannot take part: %s", start[0], outcome)
        final = isinstance(outcome, Refused) or (isinstance(outcome, Failed) and outcome.reason == "raised")
        if not final:
            self._again[start] = self.clock.now() + _RETRY

    def _send(self, start: Start, kind: str, content: RecordDict, key: Greeting) -> None:
        message = Message(content, dst_node_id=start[0], message_type=kind, ttl=self.patience)
        read = read_hello if key.probed < 0 else read_probe
        self.courier.send([Letter(message=message, key=key, read=read, poll=_POLL)])
