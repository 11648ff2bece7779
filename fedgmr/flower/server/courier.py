"""Everything that talks to Flower's grid, in threads of its own: a sender, a watcher, a puller per message in flight.

`pull_messages` waits for an answer whose upload is still going on, and every call waits while the SuperLink is away; so
nothing here is ever called by the loop itself, which only reads a mailbox. A slow node delays nobody else.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flwr.app import Message

from fedgmr.flower.answers import Failed, answer_size
from fedgmr.flower.server.clock import Clock, Mailbox

_log = logging.getLogger(__name__)
_TRIES = 5  # calls in a row that may raise before the grid counts as gone
_PAUSE = 1.0  # seconds between them


class NodeRecord(Protocol):
    """What the grid says of a node."""

    node_id: int
    last_activated_at: str


class Grid(Protocol):
    """The part of Flower's Grid that is used."""

    def get_nodes(self) -> Iterable[NodeRecord]:
        """The nodes that are online."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; one id for each, empty where it was not taken."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that are there."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Letter:
    """A message to a node."""

    message: Message
    key: Any  # what the receiver of events knows it by
    read: Callable[[Message], Any]  # makes a value of the answer, or raises; called in a thread
    poll: float  # seconds between looks for the answer


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What became of a letter: a value, or the exception that `read` or the grid raised."""

    key: Any
    outcome: Any
    size: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Online:
    """The nodes that are online, each with the moment of its last start as the grid tells it."""

    nodes: dict[int, str]


class Courier:
    """Carries letters and watches nodes; puts `Answer`, `Online` and at the very end an exception into `inbox`."""

    def __init__(self, grid: Grid, clock: Clock, inbox: Mailbox, *, look: float) -> None:
        """`look`: seconds between two looks at the nodes."""
        self.grid, self.clock, self.inbox, self.look = grid, clock, inbox, look
        self._outbox = clock.mailbox()
        self._closed = False

    def start(self) -> None:
        """Begin to watch and to send."""
        self.clock.spawn(self._watch)
        self.clock.spawn(self._send)

    def send(self, letters: Sequence[Letter]) -> None:
        """Send letters in one go; does not wait."""
        if letters:
            self._outbox.put(letters)

    def close(self) -> None:
        """Let the threads end; answers still on their way are not looked for."""
        self._closed = True
        self._outbox.put(None)

    def _watch(self) -> None:
        failures = 0
        while not self._closed:
            try:
                nodes = {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}
            except Exception as error:
                failures += 1
                if failures >= _TRIES:
                    self.inbox.put(error)
                    return
                self.clock.sleep(_PAUSE)
                continue
            failures = 0
            self.inbox.put(Online(nodes=nodes))
            self.clock.sleep(self.look)

    def _send(self) -> None:
        while letters := self._outbox.get(until=float("inf")):
            try:
                ids = list(self.grid.push_messages([letter.message for letter in letters]))
            except Exception as error:
                _log.warning("%d messages could not be sent: %s", len(letters), error)
                ids = []
            for letter, message_id in zip(letters, [*ids, *[""] * (len(letters) - len(ids))], strict=True):
                if message_id:
                    self.clock.spawn(lambda letter=letter, message_id=message_id: self._pull(letter, message_id))  # type: ignore[misc]
                else:
                    self._report(letter, Failed("unsent", "the SuperLink did not take the message"))

    def _pull(self, letter: Letter, message_id: str) -> None:
        failures = 0
        while not self._closed:
            try:
                answers = list(self.grid.pull_messages([message_id]))
            except Exception as error:
                failures += 1
                if failures >= _TRIES:
                    self._report(letter, Failed("unreadable", str(error)))
                    return
                self.clock.sleep(_PAUSE)
                continue
            if answers:
                self._read(letter, answers[0])
                return
            self.clock.sleep(letter.poll)

    def _read(self, letter: Letter, message: Message) -> None:
        at = self.clock.now()  # before reading, which is no part of the link
        try:
            outcome = letter.read(message)
        except Exception as error:  # whatever a stranger's bytes lead to, it is this letter's outcome
            outcome = error
        self.inbox.put(Answer(key=letter.key, outcome=outcome, size=answer_size(message), at=at))

    def _report(self, letter: Letter, outcome: Failed) -> None:
        self.inbox.put(Answer(key=letter.key, outcome=outcome, size=0, at=self.clock.now()))
