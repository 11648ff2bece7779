"""The simulated fleet: a virtual clock, an event queue and lazily batched training.

A task's arrival time is known at dispatch (time is data), so training happens only when its update is collected;
nothing here looks at the host's clock. Ties in the queue are broken by dispatch order, so the run is deterministic.
"""

import bisect
import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from fedgmr.exchange import ClientTask, News, Update, Verdict
from fedgmr.fleets.measurement import Meter
from fedgmr.fleets.network import Network, Trip
from fedgmr.fleets.presence import Presence
from fedgmr.fleets.trips import note_away, note_rates, note_trip
from fedgmr.training.executor import Executor

OnLeaving = Literal["finish", "resume", "lose"]


class SimulatedFleet:
    """Clients in virtual time."""

    clock: Literal["virtual", "real"] = "virtual"

    def __init__(
        self,
        network: Network,
        executor: Executor,
        clients: int,
        *,
        presence: Presence | None = None,
        on_leaving: OnLeaving = "finish",
        records: bool = False,
        meter: Meter | None = None,
    ) -> None:
        """A fleet at moment 0.

        `presence` says who is there, by default everybody, and `on_leaving` what becomes of the task of a client that
        leaves; `records`: its trips are kept for the rows; `meter` sees tasks' times, where densities are measured.
        """
        self.meter = meter
        self.presence, self.on_leaving = presence or Presence(), on_leaving
        network.presence = self.presence if on_leaving == "resume" else None
        self._trips: list[list[Any]] | None = [] if records else None  # since the last row, see `record`
        self._doomed: set[int] = set()  # clients whose task in flight will be lost
        self._sent: dict[int, tuple[float, int]] = {}  # by client: when its task left, bytes down
        self.network, self.executor, self.clients = network, executor, clients
        self.now = 0.0
        self.bytes_down = [0] * clients
        self.bytes_up = [0] * clients
        self.refused: Counter[str] = Counter()
        self.took: dict[int, float] = {}  # by no real clock
        self.memories: dict[int, Tensor] = {}  # as of each client's last update that was not refused
        self._remembered: dict[int, Tensor] = {}  # the same before the updates that were collected last
        self._tasks: dict[int, ClientTask] = {}
        self._news: list[News] = []
        self._idle = self._without_task()  # ascending: clients that are there
        self._trained: dict[int, Update] = {}  # by client: updates made ahead of their arrival
        self._queue: list[tuple[float, int, int, int]] = []  # arrival, dispatch number, client, bytes up
        self._dispatched = 0

    @property
    def in_flight(self) -> int:
        """Tasks dispatched and not yet collected."""
        return len(self._tasks)

    @property
    def bytes_server(self) -> int:
        """Bytes that have crossed the server's shared uplink."""
        return self.network.server_bytes

    def told(self, verdicts: Sequence[Verdict]) -> None:
        """Count the updates that were not merged as they came; the client of a refused one forgets it."""
        for verdict in verdicts:
            self.refused[verdict.reason] += 1
            if not verdict.merged:
                self.memories.pop(verdict.client, None)
                if (before := self._remembered.get(verdict.client)) is not None:
                    self.memories[verdict.client] = before

    def begin(self) -> None:
        """Nothing to wait for: all clients are there."""

    def free(self) -> list[int]:
        """Clients that can take a task now."""
        for client in self.presence.advance(self.now):
            if client in self.presence.away:
                self._remove_idle(client)
            else:
                self._add_idle(client)
        return list(self._idle)

    def news(self) -> list[News]:
        """Tasks that were lost, times and levels that were measured since the last call; nobody joins here."""
        news, self._news = self._news, []
        return news

    def dispatch(self, tasks: Sequence[ClientTask], *, tick: int) -> None:
        """Send the tasks; all of them leave together, after a merge as much later as it takes."""
        leaving = self.now + (self.network.settings.merge_seconds if tick else 0.0)
        levels = {task.client: task.level for task in tasks}
        for sent in self.network.send(tasks, leaving):
            trip = self._cut_short(sent)
            if trip.lost:
                self._doomed.add(trip.client)
            if self._trips is not None:
                self._trips.append(note_trip(trip, levels[trip.client], leaving))
            heapq.heappush(self._queue, (trip.arrival, self._dispatched, trip.client, trip.up))
            self._dispatched += 1
            self.bytes_down[trip.client] += trip.down
            self._sent[trip.client] = (leaving, trip.down)
            self._remove_idle(trip.client)
        self._tasks.update((task.client, task) for task in tasks)

    def record(self, since: float, until: float) -> dict[str, Any]:
        """What a row says of tasks that were dispatched since the last one, of who was away, and of varying rates."""
        if self._trips is None:
            return {}
        trips, self._trips = self._trips, []
        noted: dict[str, Any] = {"trips": trips, "away": note_away(self.presence, since, until)}
        if self.network.varies and since < until:
            noted["rates"] = note_rates(self.network, since, until)
        return noted

    def collect(
        self, *, until: float, arrivals: int | None = None, fastest: int = 0, grace: float = 0.0
    ) -> list[Update]:
        """Advance the clock to `until`, or if earlier to update number `arrivals` or `grace` after the fastest."""
        if fastest and self._queue:
            awaited = [arrival for arrival, _, client, _ in self._queue if client < fastest]
            until = min(until, max(awaited, default=self._queue[0][0]) + grace)
        elif fastest:
            arrivals = 0
        arrived: list[ClientTask] = []
        lost = 0
        while self._queue and self._queue[0][0] <= until and len(arrived) != arrivals:
            self.now, _, client, up = heapq.heappop(self._queue)
            task = self._tasks.pop(client)
            self._add_idle(client)
            if client in self._doomed:
                self._lose(client)
                lost += 1
                continue
            self.bytes_up[client] += up
            arrived.append(task)
            self._measure(task, up)
        # Nobody waits for what is lost.
        enough = arrivals is not None and (len(arrived) == arrivals or (lost > 0 and not self._queue))
        if not enough:
            self.now = until
        elif not arrived and not lost:
            # Nobody is at work: the next thing that can happen is a client's return.
            self.now = min(until, self.presence.next_return(self.now))
        return self._updates(arrived)

    def _cut_short(self, trip: Trip) -> Trip:
        """The trip as it ends where the client leaves before its arrival."""
        if self.on_leaving == "lose" and (leaves := self.presence.leaves(trip.client, self.now)) < trip.arrival:
            return replace(trip, arrival=leaves, lost=True)
        if trip.arrival == math.inf:  # its link carries nothing any more, or it never comes back
            return replace(trip, arrival=self.presence.last_leave(trip.client, self.now), lost=True)
        return trip

    def _lose(self, client: int) -> None:
        """Give up a task; nobody knows which map the client holds."""
        self._doomed.discard(client)
        self._sent.pop(client, None)
        self.network.known_maps.pop(client, None)
        self.network.lost[client] += 1
        self.refused["left"] += 1
        self._news.append(News(client=client, lost=True))

    def _without_task(self) -> list[int]:
        return [c for c in range(self.clients) if c not in self._tasks and c not in self.presence.away]

    def _add_idle(self, client: int) -> None:
        if client not in self._tasks and client not in self.presence.away:
            bisect.insort(self._idle, client)

    def _remove_idle(self, client: int) -> None:
        place = bisect.bisect_left(self._idle, client)
        if self._idle[place : place + 1] == [client]:
            del self._idle[place]

    def _measure(self, task: ClientTask, up: int) -> None:
        sent, down = self._sent.pop(task.client, (math.nan, 0))
        if self.meter is None:
            if not math.isnan(sent):  # checkpoints of earlier releases do not know when a task left
                self._news.append(News(client=task.client, seconds=self.now - sent))
        else:
            training = self.network.training_seconds(task.client)
            self._news += self.meter.observe(task, down=down, up=up, seconds=self.now - sent, training=training)

    def _updates(self, arrived: Sequence[ClientTask]) -> list[Update]:
        """The arrivals' updates; an executor that works ahead is given the other tasks in flight beside them."""
        due = [task for task in arrived if task.client not in self._trained]
        if due and self.executor.ahead:
            coming = (client for client in self._tasks if client not in self._trained and client not in self._doomed)
            due += [self._tasks[client] for client in coming]
        if due:
            # A client has one task at a time, so between its dispatch and its arrival the memory stays the same.
            due = [replace(task, memory=self.memories.get(task.client)) if self.memories else task for task in due]
            self._trained.update((update.client, update) for update in self.executor.train(due))
        updates = [self._trained.pop(task.client) for task in arrived]
        self._remembered = dict(self.memories)
        self.memories |= {update.client: update.memory for update in updates if update.memory is not None}
        return updates

    def state(self) -> dict[str, Any]:
        """The state of the fleet without its tasks, which the server keeps, as JSON-ready data."""
        further: dict[str, Any] = {} if self.meter is None else {"meter": self.meter.state()}
        further |= {"doomed": sorted(self._doomed)} if self._doomed else {}
        further |= {"lost": sorted(self.network.lost.items())} if self.network.lost else {}
        further |= {} if self._trips is None else {"trips": self._trips}
        return {
            "now": self.now,
            "queue": sorted(self._queue),
            "dispatched": self._dispatched,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "bytes_server": self.network.server_bytes,
            "uplink_free": self.network.uplink_free,
            "known_maps": [[client, *known] for client, known in sorted(self.network.known_maps.items())],
            "refused": dict(self.refused),
            "sent": sorted(self._sent.items()),
            **further,
        }

    def restore(self, state: dict[str, Any], tasks: dict[int, ClientTask], *, tick: int) -> None:
        """Continue from what `state()` has returned; `tasks` are the server's tasks in flight."""
        if "queue" not in state:
            raise ValueError("This is a deployed run, not a simulation: go on with `fedgmr deploy --resume RUN`.")
        self.now = state["now"]
        self._queue = [(arrival, number, client, up) for arrival, number, client, up in state["queue"]]  # sorted
        self._tasks = dict(tasks)
        self.presence.advance(self.now)
        self._idle = self._without_task()
        self._dispatched = state["dispatched"]
        self.bytes_down, self.bytes_up = list(state["bytes_down"]), list(state["bytes_up"])
        self.refused = Counter(state.get("refused", {}))
        self.network.server_bytes, self.network.uplink_free = state["bytes_server"], state["uplink_free"]
        self.network.known_maps = {client: (version, level) for client, version, level in state["known_maps"]}
        self.network.lost = Counter(dict(state.get("lost", ())))
        self._sent = {client: (sent, down) for client, (sent, down) in state.get("sent", ())}
        self._doomed = set(state.get("doomed", ()))
        if self._trips is not None:
            self._trips = list(state.get("trips", ()))
        if self.meter is not None:
            self.meter.restore(state["meter"])
