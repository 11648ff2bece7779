"""The Flower fleet: the methods that the loop calls, over real nodes and in real time.

The loop reads one mailbox; all traffic is in the courier's threads. A client has at most one task in flight, and every
task ends once: its update is accepted, refused, or the task is given up (the node was restarted, the time is over).
What arrives for a task that was given up is refused. Read next: `reception.py` (who takes part), `flights.py` (what is
lost), `courier.py` (threads).
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from flwr.app import Message, RecordDict

from fedgmr import wire
from fedgmr.exchange import ClientTask, Update
from fedgmr.fleets.deployment import DeploymentSettings
from fedgmr.fleets.flower.answers import Failed, Hello, Result, read_result
from fedgmr.fleets.flower.clock import Clock
from fedgmr.fleets.flower.courier import Answer, Courier, Grid, Letter, Online
from fedgmr.fleets.flower.flights import Flight, Flights
from fedgmr.fleets.flower.journal import Journal
from fedgmr.fleets.flower.messages import TRAIN, task_contents
from fedgmr.fleets.flower.packing import Known, Parcel, pack_tasks, shared_size
from fedgmr.fleets.flower.reception import Greeting, Reception
from fedgmr.fleets.flower.roster import Roster
from fedgmr.fleets.flower.terms import Terms
from fedgmr.fleets.measurement import Meter, Prior

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
        meet: Callable[[int, Hello], None],
        tick: Callable[[], int],
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
            meet: is told what a client that joins says of itself.
            tick: the server's tick, for the journal.
            journal: events for later.
            probe: bytes of the probe of a new client's link; 0: none.
        """
        self.clients, self.terms, self.settings, self.meter, self.tick = clients, terms, settings, meter, tick
        self.time, self.journal = clock, journal or Journal()
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
            journal=self.journal,
            meet=meet,
            patience=settings.first_task,
            probe=probe,
        )
        self.bytes_down, self.bytes_up, self.bytes_server = [0] * clients, [0] * clients, 0
        self.refused: Counter[str] = Counter()
        self._lost: list[int] = []
        self._known: dict[int, tuple[int, int]] = {}  # by client: version and highest level of the map it holds
        self._past, self._began = 0.0, float("inf")  # seconds before the clock was started; when that was
        self._late, self._told = 0.0, -1
        self._accepted: list[tuple[Flight, dict[str, Any]]] = []  # since the last merge

    @property
    def now(self) -> float:
        """Seconds since the run began, without the time between a crash and its resume."""
        return self._past + max(0.0, self.time.now() - self._began)

    @property
    def in_flight(self) -> int:
        """Tasks dispatched and not yet collected."""
        return len(self.flights)

    def begin(self) -> None:
        """Look for nodes and wait until enough clients are there; the run's time goes on from then."""
        self.courier.start()
        wanted, told = self.settings.min_clients or self.clients, -1
        while len(present := self.free()) < wanted:
            if len(present) != told:
                told = len(present)
                _log.info("Waiting for clients: %d of %d are there.", told, wanted)
            self._take(self._inbox.get(until=float("inf")))
        self._began = self.time.now()

    def close(self) -> None:
        """Stop all traffic; what arrived after the last merge is not used."""
        self.courier.close()
        for flight, details in self._accepted:
            self._tell("unmerged", flight, **details)

    def free(self) -> list[int]:
        """Clients that can take a task now."""
        busy = self.flights.busy()
        return [client for client in range(self.clients) if client not in busy and self.reception.ready(client)]

    def lost(self) -> list[int]:
        """Clients whose task will never come back, each told once."""
        lost, self._lost = self._lost, []
        return lost

    def dispatch(self, tasks: Sequence[ClientTask]) -> None:
        """Send the tasks in one go."""
        self._tell_merge()
        parcels = self._packed(tasks, self._known)
        letters = []
        for parcel, content in zip(parcels, task_contents(parcels, self.terms.checksum), strict=True):
            flight = self.flights.begin(parcel, self.roster.seats[parcel.task.client], self.time.now())
            letters.append(self._letter(flight, content))
            self._tell("dispatched", flight, bytes=parcel.size, level=parcel.task.level)
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
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "bytes_server": self.bytes_server,
            "refused": dict(self.refused),
            "seats": self.roster.state(),
            "meter": self.meter.state(),
            "journal": self.journal.lines,
        }

    def restore(self, state: Mapping[str, Any], tasks: Mapping[int, ClientTask]) -> None:
        """Take up the state saved by `state()`; the tasks in flight then are lost."""
        if "seats" not in state:
            raise ValueError("This is a simulation, not a deployed run: go on with `fedgmr resume RUN`.")
        self._past = state["now"]
        self.bytes_down, self.bytes_up = list(state["bytes_down"]), list(state["bytes_up"])
        self.bytes_server = state["bytes_server"]
        self.refused = Counter(state["refused"])
        self.roster.restore(state["seats"])
        for client, seat in self.roster.seats.items():
            self.reception.meet(client, seat.hello)
        self.meter.restore(state["meter"])
        self.journal.cut_back(state["journal"])
        self._lost, self._told = sorted(tasks), self.tick()
        if tasks:
            self.refused["interrupted"] += len(tasks)
        self.journal.write("resumed", seconds=self.now, tick=self.tick(), lost=self._lost)

    def _take(self, event: Any) -> Update | None:
        """Deal with one event; an accepted update is handed on."""
        if isinstance(event, Online):
            self.reception.look(event.nodes)
            for flight, reason in self.flights.lost(event.nodes, self.time.now()):
                self._end(flight, reason)
        elif isinstance(event, Answer):
            if isinstance(event.key, Flight):
                return self._settle(event.key, event)
            assert isinstance(event.key, Greeting)
            self.reception.answer(event)
        elif isinstance(event, Exception):
            raise event
        return None

    def _settle(self, flight: Flight, answer: Answer) -> Update | None:
        outcome = answer.outcome
        self.bytes_up[flight.task.client] += answer.size
        if not self.flights.going(flight):
            if not isinstance(outcome, Failed):  # an answer after all, to a task that was given up
                self.refused[wire.Reason.STALE] += 1
                self._tell("refused", flight, reason=str(wire.Reason.STALE), bytes=answer.size)
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
        self.meter.observe(task, down=flight.down, up=answer.size, seconds=took, training=training)
        details = {"bytes": answer.size, "took": round(took, 3), "client_seconds": dict(result.seconds)}
        self._accepted.append((flight, {"arrived": round(self.now, 3), **details}))
        return result.update

    def _end(self, flight: Flight, reason: str, *, text: str = "", refused: bool = False) -> None:
        """A task without an update: the client is free again, and nobody knows which map it holds."""
        self.flights.end(flight, reason)
        client = flight.task.client
        self._lost.append(client)
        self._known.pop(client, None)
        self.refused[reason] += 1
        _log.warning("Client %d: its task of tick %d came to nothing: %s.", client, flight.task.version, text or reason)
        self._tell("refused" if refused else "lost", flight, reason=reason)

    def _send_again(self, flight: Flight) -> None:
        """The client has lost the recipe or the level map: the same task with both."""
        flight.resent = True
        parcels = self._packed([flight.task], {})
        contents = task_contents(parcels, self.terms.checksum, whole=True, text=self.terms.recipe)
        flight.down += parcels[0].size
        flight.deadline = max(flight.deadline, self.time.now() + self.settings.shortest)
        self.courier.send([self._letter(flight, contents[0])])
        self._tell("sent again", flight, bytes=parcels[0].size)

    def _packed(self, tasks: Sequence[ClientTask], known: Known) -> list[Parcel]:
        """Parcels that are about to leave, with their bytes counted."""
        terms = self.terms
        parcels = pack_tasks(tasks, known, run=terms.run, ims=terms.ims, value_type=terms.value_type)
        self.bytes_server += shared_size(parcels)
        for parcel in parcels:
            self.bytes_down[parcel.task.client] += parcel.size
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

    def _tell(self, event: str, flight: Flight, **fields: Any) -> None:
        task = flight.task
        who = {"task": flight.name, "client": task.client, "version": task.version}
        self.journal.write(event, **who, seconds=round(self.now, 3), **fields)

    def _tell_merge(self) -> None:
        """Updates count as accepted only now that they have been merged."""
        for flight, details in self._accepted:
            self._tell("accepted", flight, tick=self.tick(), **details)
        self._accepted.clear()
        if self.tick() != self._told:
            self._told = self.tick()
            self.journal.write("tick", tick=self._told, seconds=round(self.now, 3), late=round(self._late, 3))
