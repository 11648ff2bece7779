"""The Flower fleet: the methods that the loop calls, over real nodes and in real time.

The loop reads one mailbox; all traffic is in threads of its own. A client has at most one task in flight, and every
task ends once: its update is accepted, refused, or the task is given up (the node was restarted, the time is over).
What arrives for a task that was given up is refused. Read next: `admission.py` (who takes part), `flights.py` (what is
lost), `grid_threads.py` (the threads).
"""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from fedgmr import wire
from fedgmr.exchange import ClientTask, News, Update, Verdict
from fedgmr.fleets.deployment import DeploymentSettings
from fedgmr.fleets.measurement import Meter, Prior
from fedgmr.fleets.multicast import KnownMaps
from fedgmr.flower.answers import Failed, Result, printable
from fedgmr.flower.messages import TRAIN, Order
from fedgmr.flower.server.admission import Admission
from fedgmr.flower.server.clock import Clock
from fedgmr.flower.server.flights import Flight, Flights
from fedgmr.flower.server.grid_threads import GridThreads, Online, Reply, Request
from fedgmr.flower.server.journal import Journal
from fedgmr.flower.server.packing import PackedTask, pack_tasks, shared_size
from fedgmr.flower.server.roster import Roster
from fedgmr.flower.terms import Terms

_log = logging.getLogger(__name__)
LOOK = 2.0  # seconds between looks at the nodes
_RETURN = 60.0  # seconds in which the nodes of a resumed run may come back before it goes on
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
        directory: Path | None = None,
        probe: int = 0,
    ) -> None:
        """A fleet that does not look for nodes yet; the journal is in `directory`, `probe` is the bytes of a probe."""
        self.clients, self.terms, self.settings, self.meter, self.time = clients, terms, settings, meter, clock
        self.bytes_down, self.bytes_up = [0] * clients, [0] * clients
        self.bytes_server = 0  # left for the SuperLink: what several nodes share counts once
        self.refused: Counter[str] = Counter()
        self.memories: dict[int, Tensor] = {}  # nodes keep their own
        self.journal = Journal(directory, lambda: self.now)
        self._inbox = clock.mailbox()
        self.threads = GridThreads(grid, clock, self._inbox, look=LOOK)
        self.roster = Roster(clients=clients, claims=settings.identity == "claimed")
        self.flights = Flights(terms=terms, settings=settings, meter=meter)
        self._news: list[News] = []
        self.admission = Admission(
            roster=self.roster,
            threads=self.threads,
            clock=clock,
            terms=terms,
            meter=meter,
            journal=self.journal,
            news=self._news,
            patience=settings.first_task,
            probe=probe,
        )
        self._resumed = False
        self._known: dict[int, tuple[int, int]] = {}  # by client: version and highest level of the map it holds
        self._past, self._began = 0.0, float("inf")  # seconds before the clock was started; when that was
        self._late = 0.0

    @property
    def now(self) -> float:
        """Seconds since the run began, without the time between a crash and its resume."""
        return self._past + max(0.0, self.time.now() - self._began)

    @property
    def in_flight(self) -> int:
        """Tasks dispatched and not yet collected."""
        return len(self.flights)

    @property
    def took(self) -> Mapping[int, float]:
        """Seconds of each client's last task, from dispatch to arrival."""
        return self.meter.took

    def begin(self) -> None:
        """Look for nodes and wait until enough clients are there; the run's time goes on from then.

        Nodes that are online and say no hello are waited for as long as a first task may take; where all were turned
        away by then, the run ends. One that goes on does so with whoever is back within a minute: one of its nodes may
        be gone for good.
        """
        if self.roster.claims:
            _log.warning(
                "Nodes are known by what they claim (deployment.identity): one that knows or guesses the id or "
                "partition of an absent client takes its place. Use SuperNode authentication and identity: node."
            )
        if not self._resumed:
            self.journal.cut_back(0)  # of a run that came to no checkpoint
        self.threads.start()
        wanted, told = self.settings.min_clients or self.clients, -1
        patience = self.time.now() + min(self.settings.first_task, _RETURN if self._resumed else math.inf)
        while (present := len(self.free())) < wanted:
            enough = self._resumed or len(self.roster.online) >= wanted
            if present and enough and self.time.now() > patience:
                _log.warning("The run starts with %d of %d clients: the others do not answer.", present, wanted)
                break
            if self.time.now() > patience and enough and (reason := self.admission.hopeless):
                raise ValueError(
                    f"None of the {len(self.roster.online)} nodes can take part. The last one says: {reason}"
                )
            if present != told:
                told = present
                _log.info("Waiting for clients: %d of %d are there.", told, wanted)
            self._take(self._inbox.get(until=float("inf")))
        self._began = self.time.now()

    def close(self) -> None:
        """Stop all traffic."""
        self.threads.close()
        self.journal.close()

    def free(self) -> list[int]:
        """Clients that can take a task now."""
        busy = self.flights.busy()
        return [client for client in range(self.clients) if client not in busy and self.admission.ready(client)]

    def news(self) -> list[News]:
        """Clients that have joined, tasks that are lost and levels that were measured since the last call."""
        news = list(self._news)
        self._news.clear()
        return news

    def told(self, verdicts: Sequence[Verdict]) -> None:
        """Count and note the updates that were not merged as they came."""
        for verdict in verdicts:
            self.refused[verdict.reason] += 1
            self.journal.judge(verdict)
            _log.warning("Client %d: its update was not merged as it came: %s.", verdict.client, verdict.reason)

    def dispatch(self, tasks: Sequence[ClientTask], *, tick: int) -> None:
        """Send the tasks in one go."""
        self.journal.merge(tick, late=self._late)
        requests = []
        for packed in self._pack(tasks, self._known):
            task = packed.task
            flight = self.flights.begin(packed, self.roster.nodes[task.client], self.time.now())
            requests.append(self._request(flight, packed))
            self.journal.write_task("dispatched", flight, bytes=packed.size, level=task.level)
        self.threads.send(requests)

    def record(self, since: float, until: float) -> dict[str, Any]:
        """Nothing: the journal has the tasks of a deployed run."""
        return {}

    def collect(
        self, *, until: float, arrivals: int | None = None, fastest: int = 0, grace: float = 0.0
    ) -> list[Update]:
        """Wait until a moment, or until so many updates or the fastest have arrived, or all others are lost."""
        updates: list[Update] = []
        everybody = arrivals is not None and arrivals >= len(self.flights)
        awaited = range(fastest or (self.clients if everybody else 0))
        while not self._enough(updates, arrivals, fastest):
            event = self._inbox.get(until=until - self._past + self._began)
            if event is None:
                self._past += max(0.0, until - self.now)  # over, even if the sums above were rounded down
                break
            if isinstance(event, Online) and (updates or self.free()):  # an update or a client is kept waiting
                for flight in self.flights.late(awaited, self.time.now()):
                    self._end(flight, "late")
            update = self._take(event)
            if update is not None:
                updates.append(update)
        if updates and fastest:
            return updates + self.collect(until=min(until, self.now + grace))
        self._late = max(0.0, self.now - until)
        return updates

    def _enough(self, updates: Sequence[Update], arrivals: int | None, fastest: int) -> bool:
        if fastest:
            # Whoever of them is lost is waited for no longer.
            arrivals = len(updates) + 1 if any(client < fastest for client in self.flights.busy()) else 1
        if arrivals is None:
            return False
        if updates and (len(updates) >= arrivals or not self.flights):
            return True
        # Nobody is at work: go on as soon as somebody could be.
        return not self.flights and bool(self.free())

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs, as JSON-ready data; tasks in flight are lost with the server's app."""
        return {
            "now": self.now,
            "seats": self.roster.state(),
            "meter": self.meter.state(),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "bytes_server": self.bytes_server,
            "refused": dict(self.refused),
            "journal": self.journal.lines,
        }

    def restore(self, state: Mapping[str, Any], tasks: Mapping[int, ClientTask], *, tick: int) -> None:
        """Continue from what `state()` has returned; the tasks in flight then are lost."""
        if "seats" not in state:
            raise ValueError("This is a simulation, not a deployed run: go on with `fedgmr resume RUN`.")
        self._past, self._resumed = state["now"], True
        self.roster.restore(state["seats"])
        self._news += [News(client=client, lost=True) for client in sorted(tasks)]
        self._news += [known.hello.news(client) for client, known in self.roster.nodes.items()]
        self.meter.restore(state["meter"])
        self.bytes_down, self.bytes_up = list(state["bytes_down"]), list(state["bytes_up"])
        self.bytes_server = state["bytes_server"]
        self.refused = Counter(state["refused"])
        if tasks:
            self.refused["interrupted"] += len(tasks)
        self.journal.restore(state["journal"], lost=sorted(tasks), tick=tick)

    def _take(self, event: Any) -> Update | None:
        """Deal with one event; an accepted update is handed on."""
        if isinstance(event, Online):
            self.admission.look(event.nodes)
            for flight, reason in self.flights.lost(self.roster.nodes, self.time.now()):
                self._end(flight, reason)
        elif isinstance(event, Reply):
            return event.request.receive(event)
        elif isinstance(event, Exception):
            raise event
        return None

    def _take_result(self, flight: Flight, reply: Reply) -> Update | None:
        """Deal with the answer to a task."""
        outcome = reply.outcome
        self.bytes_up[flight.task.client] += reply.size
        if not self.flights.going(flight):
            if not isinstance(outcome, Failed):  # an answer after all, to a task that was given up
                self._count_loss(flight, wire.Reason.STALE, refused=True)
        elif isinstance(outcome, Result) and outcome.update is not None:
            return self._accept(flight, outcome, reply)
        elif isinstance(outcome, Result) and not flight.resent:
            self._send_again(flight)
        elif isinstance(outcome, Result):
            self._end(flight, "lacking", text=f"The client still lacks the {outcome.lacks}.")
        elif isinstance(outcome, Failed | wire.Refused):
            self._end(flight, str(outcome.reason), text=str(outcome), refused=isinstance(outcome, wire.Refused))
        else:
            self._end(flight, "unreadable", text=repr(outcome), refused=True)
        return None

    def _accept(self, flight: Flight, result: Result, reply: Reply) -> Update | None:
        task = flight.task
        self.flights.end(flight)
        self._known[task.client] = (task.map_version, task.level)
        took, training = reply.at - flight.sent, result.seconds.get("train", 0.0)
        if reply.size:  # a client that has diverged sends no values, by which its link could be measured
            self._news += self.meter.observe(task, down=flight.down, up=reply.size, seconds=took, training=training)
        self.journal.accept(flight, bytes=reply.size, took=round(took, 3), client_seconds=dict(result.seconds))
        return result.update

    def _end(self, flight: Flight, reason: str, *, text: str = "", refused: bool = False) -> None:
        """End a task without an update: the client is free again, and nobody knows which map it holds."""
        delays, client = self.flights.end(flight, reason), flight.task.client
        if delays:
            self.admission.ask_again(client, delays)
        if reason == "unavailable":  # until the next look says otherwise; it would be lost again at once
            self.roster.online.pop(flight.node, None)
        self._news.append(News(client=client, lost=True, refused=refused))
        self._known.pop(client, None)
        self._count_loss(flight, reason, refused=refused)
        _log.warning(
            "Client %d: its task of tick %d came to nothing: %s.",
            client,
            flight.task.version,
            printable(text or reason),
        )

    def _count_loss(self, flight: Flight, reason: str, *, refused: bool) -> None:
        self.refused[reason] += 1
        self.journal.write_task("refused" if refused else "lost", flight, reason=reason)

    def _send_again(self, flight: Flight) -> None:
        """Send the same task with recipe and level map to a client that has lost one of them."""
        flight.resent = True
        (packed,) = self._pack([flight.task], {})
        flight.down += packed.size
        flight.deadline = max(flight.deadline, self.time.now() + self.settings.shortest)
        self.threads.send([self._request(flight, packed, recipe=self.terms.recipe)])
        self.journal.write_task("sent again", flight, bytes=packed.size)

    def _pack(self, tasks: Sequence[ClientTask], known: KnownMaps) -> list[PackedTask]:
        """Pack tasks that are about to leave, and count their bytes."""
        packed = pack_tasks(tasks, known, self.terms)
        self.bytes_server += shared_size(packed)
        for one in packed:
            self.bytes_down[one.task.client] += one.size
        return packed

    def _request(self, flight: Flight, packed: PackedTask, *, recipe: str | None = None) -> Request:
        task = flight.task
        content = Order.of(task, self.terms.checksum).content(packed.values, packed.maps, recipe=recipe)
        ttl = flight.deadline - self.time.now()
        return Request(
            message=Message(content, dst_node_id=flight.node, message_type=TRAIN, ttl=ttl, group_id=str(task.version)),
            read=partial(Result.read, task=task, terms=self.terms),
            receive=partial(self._take_result, flight),
            poll=flight.poll,
            expires=flight.deadline,
        )
