"""The threads that talk to Flower's grid: a sender, a watcher of nodes, and a puller per request in flight.

`pull_messages` waits for an answer whose upload is still going on, and every call waits while the SuperLink is away. So
the loop itself never calls the grid; it only reads a mailbox, and a slow node delays nobody else.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedgmr.exchange import Update
from fedgmr.flower.answers import Failed, answer_size
from fedgmr.flower.server.clock import Clock, Mailbox

_log = logging.getLogger(__name__)
_TRIES = 5  # calls in a row that may raise before the grid counts as gone
_PAUSE = 1.0  # seconds between them


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A message to a node, and how its answer is dealt with."""

    message: Message
    read: Callable[[Message], Any]  # makes a value of the answer, or raises; called in a thread
    receive: Callable[["Reply"], Update | None]  # takes the reply; called by the loop; an update is handed on
    poll: float  # seconds between looks for the answer
    expires: float  # the moment at which the SuperLink takes the message no longer


@dataclass(frozen=True, kw_only=True, eq=False)
class Reply:
    """The outcome of a request: a value, or the exception that `read` or the grid raised."""

    request: Request
    outcome: Any
    size: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Online:
    """The nodes that are online, each with the moment of its last start as the grid tells it."""

    nodes: dict[int, str]


class GridThreads:
    """Sends requests and watches nodes; puts `Reply`, `Online` and at the very end an exception into `inbox`."""

    def __init__(self, grid: Grid, clock: Clock, inbox: Mailbox, *, look: float) -> None:
        """`look`: seconds between two looks at the nodes."""
        self.grid, self.clock, self.inbox, self.look = grid, clock, inbox, look
        self._outbox = clock.mailbox()
        self._closed = False

    def start(self) -> None:
        """Begin to watch and to send."""
        self.clock.spawn(self._watch)
        self.clock.spawn(self._send)

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests in one go; does not wait."""
        if requests:
            self._outbox.put(requests)

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
        while requests := self._outbox.get(until=float("inf")):
            ids = self._push(requests)
            for request in requests:
                if message_id := ids.get(request):
                    self.clock.spawn(partial(self._pull, request, message_id))
                else:
                    self._fail(request, Failed("unsent", "the SuperLink did not take the message"))

    def _push(self, requests: Sequence[Request]) -> dict[Request, str]:
        """The ids of messages that were sent; none where the SuperLink takes no message.

        One that has waited here until it expired would be refused with all others, and hold up those behind it.
        """
        for _ in range(_TRIES):
            fresh = [request for request in requests if self.clock.now() < request.expires]
            try:
                ids = self.grid.push_messages([request.message for request in fresh]) if fresh else []
                return dict(zip(fresh, ids, strict=False))
            except Exception as error:
                _log.warning("%d messages could not be sent: %s", len(fresh), error)
            self.clock.sleep(_PAUSE)
        return {}

    def _pull(self, request: Request, message_id: str) -> None:
        failures = 0
        while not self._closed:
            try:
                answers = list(self.grid.pull_messages([message_id]))
            except Exception as error:
                failures += 1
                if failures >= _TRIES:
                    self._fail(request, Failed("unreadable", str(error)))
                    return
                self.clock.sleep(_PAUSE)
                continue
            failures = 0
            if answers:
                self._read(request, answers[0])
                return
            self.clock.sleep(request.poll)

    def _read(self, request: Request, message: Message) -> None:
        at = self.clock.now()  # before reading, which is no part of the link
        try:
            outcome = request.read(message)
        except Exception as error:  # whatever a stranger's bytes lead to, it is the outcome of this request
            outcome = error
        self.inbox.put(Reply(request=request, outcome=outcome, size=answer_size(message), at=at))

    def _fail(self, request: Request, outcome: Failed) -> None:
        self.inbox.put(Reply(request=request, outcome=outcome, size=0, at=self.clock.now()))
