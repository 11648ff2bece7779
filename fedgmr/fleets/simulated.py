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
from fedgmr.fleets.network import Network
from fedgmr.fleets.presence import Presence
from fedgmr.training.executor import Executor


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
        meter: Meter | None = None,
    ) -> None:
        """`presence` says who is there, else everybody; `meter` sees tasks' times, where densities are measured."""
        self.meter = meter
        self.presence = presence or Presence()
        self._sent: dict[int, tuple[float, int]] = {}  # by client: when its task left, bytes down
        self.network, self.executor, self.clients = network, executor, clients
        self.now = 0.0
        self.bytes_down = [0] * clients
        self.bytes_up = [0] * clients
        self.refused: Counter[str] = Counter()
        self.took: dict[int, float] = {}  # by no real clock
        self.memories: dict[int, Tensor] = {}  # as of each client's last update that was collected
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
        """Count the updates that were not merged as they came."""
        self.refused.update(verdict.reason for verdict in verdicts)

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
        """Times and levels that were measured since the last call; nothing is ever lost here, and nobody joins."""
        news, self._news = self._news, []
        return news

    def dispatch(self, tasks: Sequence[ClientTask], *, tick: int) -> None:
        """Send the tasks; all of them leave together, after a merge as much later as it takes."""
        leaving = self.now + (self.network.settings.merge_seconds if tick else 0.0)
        for trip in self.network.send(tasks, leaving):
            heapq.heappush(self._queue, (trip.arrival, self._dispatched, trip.client, trip.up))
            self._dispatched += 1
            self.bytes_down[trip.client] += trip.down
            self._sent[trip.client] = (leaving, trip.down)
            self._remove_idle(trip.client)
        self._tasks.update((task.client, task) for task in tasks)

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
        while self._queue and self._queue[0][0] <= until and len(arrived) != arrivals:
            self.now, _, client, up = heapq.heappop(self._queue)
            self.bytes_up[client] += up
            arrived.append(self._tasks.pop(client))
            self._add_idle(client)
            self._measure(arrived[-1], up)
        if arrivals is None or len(arrived) != arrivals:
            self.now = until
        elif not arrived:
            # Nobody is at work: the next thing that can happen is a client's return.
            self.now = min(until, self.presence.next_return(self.now))
        return self._updates(arrived)

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
            due += [task for client, task in self._tasks.items() if client not in self._trained]
        if due:
            # A client has one task at a time, so between its dispatch and its arrival the memory stays the same.
            due = [replace(task, memory=self.memories.get(task.client)) if self.memories else task for task in due]
            self._trained.update((update.client, update) for update in self.executor.train(due))
        updates = [self._trained.pop(task.client) for task in arrived]
        self.memories |= {update.client: update.memory for update in updates if update.memory is not None}
        return updates

    def state(self) -> dict[str, Any]:
        """The state of the fleet without its tasks, which the server keeps, as JSON-ready data."""
        measured = {} if self.meter is None else {"meter": self.meter.state()}
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
            **measured,
        }

    def restore(self, state: dict[str, Any], tasks: dict[int, ClientTask], *, tick: int) -> None:
        """Continue from what `state()` has returned; `tasks` are the server's tasks in flight."""
        if "queue" not in state:
            raise ValueError("This is a deployed run, not a simulation: go on with `fedgmr deploy --resume RUN`.")
        self.now = state["now"]
        self._queue = [(arrival, number, client, up) for arrival, number, client, up in state["queue"]]
        heapq.heapify(self._queue)
        self._tasks = dict(tasks)
        self.presence.advance(self.now)
        self._idle = self._without_task()
        self._dispatched = state["dispatched"]
        self.bytes_down, self.bytes_up = list(state["bytes_down"]), list(state["bytes_up"])
        self.refused = Counter(state.get("refused", {}))
        self.network.server_bytes, self.network.uplink_free = state["bytes_server"], state["uplink_free"]
        self.network.known_maps = {client: (version, level) for client, version, level in state["known_maps"]}
        self._sent = {client: (sent, down) for client, (sent, down) in state.get("sent", ())}
        if self.meter is not None:
            self.meter.restore(state["meter"])
