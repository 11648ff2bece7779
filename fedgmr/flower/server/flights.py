"""Tasks in flight: how long each may take, and which are lost although nobody says so.

A delivered message is never delivered again: a node that is restarted in the middle of a task forgets it, and the grid
does not tell. It looks like a node that was cut off for a moment, which still has its task. But both say hello when
they are back, each with the name of its process, and that is how the loss is seen.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fedgmr import wire
from fedgmr.exchange import ClientTask
from fedgmr.fleets.deployment import DeploymentSettings
from fedgmr.fleets.measurement import Meter
from fedgmr.flower.server.packing import PackedTask
from fedgmr.flower.server.roster import KnownNode
from fedgmr.flower.terms import Terms

_GRACE = 10.0  # seconds beyond its time to live after which a task is given up without the SuperLink's word
_MOST_DOUBLINGS = 3  # a client has at most eight times as long
_POLL_SHARE, _SHORTEST_POLL, _LONGEST_POLL = 0.05, 0.25, 2.0


@dataclass(kw_only=True, eq=False)
class Flight:
    """A task in flight."""

    task: ClientTask
    number: int  # dispatches before it
    node: int
    life: str  # of the node's process at dispatch
    sent: float
    deadline: float
    awaited: float  # the moment up to which a merge waits for it
    down: int
    expected: float  # seconds; 0: nobody knows
    resent: bool = False

    @property
    def name(self) -> str:
        """The name of the task in the journal."""
        return f"{self.task.client}:{self.task.version}:{self.number}"

    @property
    def poll(self) -> float:
        """Seconds between looks for the answer."""
        return min(max(_SHORTEST_POLL, _POLL_SHARE * self.expected), _LONGEST_POLL)


@dataclass(kw_only=True)
class Flights:
    """All tasks in flight."""

    terms: Terms
    settings: DeploymentSettings
    meter: Meter
    _flights: dict[int, Flight] = field(default_factory=dict)  # by number
    _delays: Counter[int] = field(default_factory=Counter)  # by client: tasks in a row that ran out of time
    _begun: int = 0

    def __len__(self) -> int:
        return len(self._flights)

    def busy(self) -> set[int]:
        """Clients that have a task."""
        return {flight.task.client for flight in self._flights.values()}

    def begin(self, packed: PackedTask, node: KnownNode, now: float) -> Flight:
        """Note a task that leaves for a node."""
        task = packed.task
        up = wire.update_bytes(task.levels.sizes[task.level], self.terms.update_buffers(task), self.terms.value_type)
        expected = self.meter.expected(task.client, down=packed.size, up=up)
        allowed = self.settings.first_task
        if expected is not None:
            allowed = max(self.settings.shortest, self.settings.patience * expected)
        flight = Flight(
            task=task,
            number=self._begun,
            node=node.node,
            life=node.hello.life,
            sent=now,
            awaited=now + min(allowed, self.settings.deadline or allowed),
            deadline=now + allowed * 2 ** min(self._delays[task.client], _MOST_DOUBLINGS),
            down=packed.size,
            expected=expected or 0.0,
        )
        self._begun += 1
        self._flights[flight.number] = flight
        return flight

    def going(self, flight: Flight) -> bool:
        """Whether the task has not ended yet."""
        return flight.number in self._flights

    def end(self, flight: Flight, reason: str = "") -> int:
        """Note that a task has ended, without a reason if well. One that ran out of time doubles the next one's.

        Returns how many tasks of the client in a row, up to this one, ran out of time.
        """
        del self._flights[flight.number]
        if reason in ("expired", "late"):
            self._delays[flight.task.client] += 1
            return self._delays[flight.task.client]
        if not reason:
            del self._delays[flight.task.client]
        return 0

    def late(self, clients: range, now: float) -> list[Flight]:
        """Tasks of these clients for which a merge waits no longer."""
        return [f for f in self._flights.values() if f.task.client in clients and now >= f.awaited]

    def lost(self, nodes: Mapping[int, KnownNode], now: float) -> Iterator[tuple[Flight, str]]:
        """Tasks that will not come back, with the reason; `nodes` by client."""
        for flight in list(self._flights.values()):
            node = nodes[flight.task.client]
            if (node.node, node.hello.life) != (flight.node, flight.life):
                yield flight, "restarted"
            elif now > flight.deadline + _GRACE:
                yield flight, "expired"
