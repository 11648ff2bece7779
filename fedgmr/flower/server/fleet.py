"""The Flower fleet: the methods that the loop calls, over real nodes and in real time.

The loop reads one mailbox; all traffic is in the courier's threads. A client has at most one task in flight, and every
task ends once: its update is accepted, refused, or the task is given up (the node was restarted, the time is over).
What arrives for a task that was given up is refused. Read next: `reception.py` (who takes part), `flights.py` (what is
lost), `courier.py` (threads).
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from flwr.app import Message, RecordDict

from fedgmr import wire
from fedgmr.exchange import ClientTask, News, Update
from fedgmr.fleets.deployment import DeploymentSettings
from fedgmr.fleets.measurement import Meter, Prior
from fedgmr.fleets.multicast import KnownMaps
from fedgmr.flower.answers import Failed, Result, read_result
from fedgmr.flower.messages import TRAIN, task_contents
from fedgmr.flower.server.books import Books
from fedgmr.flower.server.clock import Clock
from fedgmr.flower.server.courier import Answer, Courier, Grid, Letter, Online
from fedgmr.flower.server.flights import Flight, Flights
from fedgmr.flower.server.journal import Journal
from fedgmr.flower.server.packing import Parcel, pack_tasks
from fedgmr.flower.server.reception import Greeting, Reception
from fedgmr.flower.server.roster import Roster
from fedgmr.flower.terms import Terms

_log = logging.getLogger(__name__)
LOOK = 2.0  # seconds between looks at the nodes
OVERHEAD = Prior(overhead=5.0, deviation=3.0, jitter=1.0, noise=0.1)  # about 5 s per task, whatever its size


class FlowerFleet:
    """Clients on nodes of a Flower grid."""

    clock: Literal["virtual", "real"] = "real"

    def __init__(
        self,
        grid: Grid,
        clock: Clock,
        *,
        clients: int,
        terms: Terms,
        settings: DeploymentSettings,
        meter: Meter,
        journal: Journal | None = None,
        probe: int = 0,
    ) -> None:
        """A fleet that has not begun to look for nodes.

        Args:
            grid: Flower's.
            clock: tells the time and starts threads.
            clients: how many the run has at most.
            terms: what both sides agree on.
            settings: the recipe's section.
            meter: learns what tasks take.
            journal: events for later.
            probe: bytes of the probe of a new client's link; 0: none.
        """
        self.clients, self.terms, self.settings, self.meter, self.time = clients, terms, settings, meter, clock
        self.books = Books(clients, journal or Journal(), lambda: self.now)
        self._inbox = clock.mailbox()
        self.courier = Courier(grid, clock, self._inbox, look=LOOK)
        self.roster = Roster(clients=clients, claims=settings.identity == "claimed")
        self.flights = Flights(terms=terms, settings=settings, meter=meter)
        self.reception = Reception(
            roster=self.roster,
            courier=self.courier,
            clock=clock,
            terms=terms,
            meter=meter,
            journal=self.books.journal,
            patience=settings.first_task,
            probe=probe,
        )
        self._news: list[News] = []
        self._resumed = False
        self._known: dict[int, tuple[int, int]] = {}  # by client: version and highest level of the map it holds
        self._past, self._began = 0.0, float("inf")  # seconds before the clock was started; when that was
        self._late = 0.0

    @property
    def now(self) -> float:
        """Seconds since the run began, without the time between a crash and its resume."""
        return self._past + max(0.0, self.time.now() - self._began)

    @property
    def bytes_down(self) -> list[int]:
        """Bytes sent to each client."""
        return self.books.down

    @property
    def bytes_up(self) -> list[int]:
        """Bytes received from each client."""
        return self.books.up

    @property
    def bytes_server(self) -> int:
        """Bytes that have left for the SuperLink: what several nodes share counts once."""
        return self.books.server

    @property
    def refused(self) -> Mapping[str, int]:
        """Tasks that came to nothing, by reason."""
        return self.books.refused

    @property
    def in_flight(self) -> int:
        """Tasks dispatched and not yet collected."""
        return len(self.flights)

    def begin(self) -> None:
        """Look for nodes and wait until enough clients are there; the run's time goes on from then."""
        if not self._resumed:
            self.books.journal.cut_back(0)  # of a run that came to no checkpoint
        self.courier.start()
        wanted, told = self.settings.min_clients or self.clients, -1
        while len(present := self.free()) < wanted:
            if len(present) != told:
                told = len(present)
                _log.info("Waiting for clients: %d of %d are there.", told, wanted)
            self._take(self._inbox.get(until=float("inf")))
        self._began = self.time.now()

    def close(self) -> None:
        """Stop all traffic."""
        self.courier.close()
        self.books.close()

    def free(self) -> list[int]:
        """Clients that can take a task now."""
        busy = self.flights.busy()
        return [client for client in range(self.clients) if client not in busy and self.reception.ready(client)]

    def news(self) -> list[News]:
        """Clients that have joined, tasks that are lost and levels that were measured since the last call."""
        news, self._news = self._news, []
        return news

    def dispatch(self, tasks: Sequence[ClientTask], *, tick: int) -> None:
        """Send the tasks in one go."""
        self.books.merge(tick, late=self._late)
        parcels = self._packed(tasks, self._known)
        letters = []
        for parcel, content in zip(parcels, task_contents(parcels, self.terms.checksum), strict=True):
            flight = self.flights.begin(parcel, self.roster.seats[parcel.task.client], self.time.now())
            letters.append(self._letter(flight, content))
            self.books.tell("dispatched", flight, bytes=parcel.size, level=parcel.task.level)
        self.courier.send(letters)

    def collect(self, *, until: float, arrivals: int | None = None) -> list[Update]:
        """Wait until a moment, or until so many updates have arrived, or all others are lost."""
        updates: list[Update] = []
        while not self._enough(updates, arrivals):
            event = self._inbox.get(until=until - self._past + self._began)
            if event is None:
                break
            update = self._take(event)
            if update is not None:
                updates.append(update)
        self._late = max(0.0, self.now - until)
        return updates

    def _enough(self, updates: Sequence[Update], arrivals: int | None) -> bool:
        if arrivals is None:
            return False
        if updates and (len(updates) >= arrivals or not self.flights):
            return True
        # Nobody is at work: go on as soon as somebody could be.
        return not self.flights and bool(self.free())

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on with, as JSON-ready data; tasks in flight are lost with the server's app."""
        return {
            "now": self.now,
            "seats": self.roster.state(),
            "meter": self.meter.state(),
            **self.books.state(),
        }

    def restore(self, state: Mapping[str, Any], tasks: Mapping[int, ClientTask], *, tick: int) -> None:
        """Continue from what `state()` has returned; the tasks in flight then are lost."""
        if "seats" not in state:
            raise ValueError("This is a simulation, not a deployed run: go on with `fedgmr resume RUN`.")
        self._past, self._resumed = state["now"], True
        self.roster.restore(state["seats"])
        self._news = [News(client=client, lost=True) for client in sorted(tasks)]
        self._news += [seat.hello.news(client) for client, seat in self.roster.seats.items()]
        self.meter.restore(state["meter"])
        self.books.restore(state, sorted(tasks), tick)

    def _take(self, event: Any) -> Update | None:
        """Deal with one event; an accepted update is handed on."""
        if isinstance(event, Online):
            self._news += self.reception.look(event.nodes)
            for flight, reason in self.flights.lost(event.nodes, self.time.now()):
                self._end(flight, reason)
        elif isinstance(event, Answer):
            if isinstance(event.key, Flight):
                return self._settle(event.key, event)
            assert isinstance(event.key, Greeting)
            self._news += self.reception.answer(event)
        elif isinstance(event, Exception):
            raise event
        return None

    def _settle(self, flight: Flight, answer: Answer) -> Update | None:
        outcome = answer.outcome
        self.books.up[flight.task.client] += answer.size
        if not self.flights.going(flight):
            if not isinstance(outcome, Failed):  # an answer after all, to a task that was given up
                self.books.end(flight, wire.Reason.STALE, refused=True)
        elif isinstance(outcome, Result) and outcome.update is not None:
            return self._accept(flight, outcome, answer)
        elif isinstance(outcome, Result) and not flight.resent:
            self._send_again(flight)
        elif isinstance(outcome, Result):
            self._end(flight, "lacking", text=f"The client still lacks the {outcome.lacks}.")
        elif isinstance(outcome, Failed | wire.Refused):
            self._end(flight, str(outcome.reason), text=str(outcome), refused=isinstance(outcome, wire.Refused))
        else:
            self._end(flight, "unreadable", text=repr(outcome), refused=True)
        return None

    def _accept(self, flight: Flight, result: Result, answer: Answer) -> Update | None:
        task = flight.task
        self.flights.end(flight)
        self._known[task.client] = (task.map_version, task.level)
        took, training = answer.at - flight.sent, result.seconds.get("train", 0.0)
        self._news += self.meter.observe(task, down=flight.down, up=answer.size, seconds=took, training=training)
        self.books.accept(flight, bytes=answer.size, took=round(took, 3), client_seconds=dict(result.seconds))
        return result.update

    def _end(self, flight: Flight, reason: str, *, text: str = "", refused: bool = False) -> None:
        """A task without an update: the client is free again, and nobody knows which map it holds."""
        self.flights.end(flight, reason)
        client = flight.task.client
        self._news.append(News(client=client, lost=True))
        self._known.pop(client, None)
        self.books.end(flight, reason, refused=refused)
        _log.warning("Client %d: its task of tick %d came to nothing: %s.", client, flight.task.version, text or reason)

    def _send_again(self, flight: Flight) -> None:
        """The client has lost the recipe or the level map: the same task with both."""
        flight.resent = True
        parcels = self._packed([flight.task], {})
        contents = task_contents(parcels, self.terms.checksum, whole=True, text=self.terms.recipe)
        flight.down += parcels[0].size
        flight.deadline = max(flight.deadline, self.time.now() + self.settings.shortest)
        self.courier.send([self._letter(flight, contents[0])])
        self.books.tell("sent again", flight, bytes=parcels[0].size)

    def _packed(self, tasks: Sequence[ClientTask], known: KnownMaps) -> list[Parcel]:
        """Parcels that are about to leave, with their bytes counted."""
        terms = self.terms
        parcels = pack_tasks(tasks, known, run=terms.run, ims=terms.ims, value_type=terms.value_type)
        self.books.packed(parcels)
        return parcels

    def _letter(self, flight: Flight, content: RecordDict) -> Letter:
        task, terms = flight.task, self.terms
        read = partial(
            read_result, task=task, run=terms.run, value_type=terms.value_type, buffers=terms.update_buffers(task)
        )
        left = flight.deadline - self.time.now()
        message = Message(
            content, dst_node_id=flight.node, message_type=TRAIN, ttl=left, group_id=str(flight.task.version)
        )
        return Letter(message=message, key=flight, read=read, poll=flight.poll)
