"""Coordination: when the server merges (synchronous, semi-asynchronous, asynchronous, by the fastest).

Time here is the fleet's: virtual seconds in a simulation, real ones in a deployment. A merge moment is described by a
deadline and by arrivals, so many or those of the fastest clients; whichever comes first ends the wait.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

_PERIOD = {
    "above": 0,
    "help": "virtual seconds; `null`: 1.10 x a noise-free synchronous round with IMS at the preset densities",
}


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Wait until `until`, until `arrivals` updates have come, or for the fastest clients, whichever is first.

    `fastest`: until the updates of clients 0..fastest-1, those at work, have come, and `grace` seconds more. If none of
    them is at work the first arrival takes their place.
    """

    until: float = math.inf
    arrivals: int | None = None
    fastest: int = 0
    grace: float = 0.0

    @property
    def timed(self) -> bool:
        """Whether a moment alone ends the wait, so that the merge happens without updates too."""
        return self.arrivals is None and not self.fastest


class Coordination(Protocol):
    """Decides when the server merges."""

    kind: ClassVar[str]

    @property
    def period(self) -> float | None:
        """Seconds of a tick; None where a round takes as long as its clients."""
        return None

    @property
    def always(self) -> int:
        """Number of clients, from client 0 on, that are in every cohort."""
        return 0

    def wait(self, tick: int, in_flight: int) -> Wait:
        """The condition that merge number `tick + 1` waits for."""

    def schedule_tick(self, tick: int, now: float) -> float:
        """The tick at which the learning-rate schedule is read (A19): the number of merges, unless said otherwise."""
        return tick


@dataclass(frozen=True, kw_only=True)
class Synchronous(Coordination):
    """Wait for every client at work."""

    kind: ClassVar[str] = "synchronous"

    def wait(self, tick: int, in_flight: int) -> Wait:
        """Wait for all tasks in flight."""
        return Wait(arrivals=in_flight)


@dataclass(frozen=True, kw_only=True)
class SemiAsynchronous(Coordination):
    """Merge every `period` seconds whatever has arrived."""

    kind: ClassVar[str] = "semi_asynchronous"
    period: float | None = field(default=None, metadata=_PERIOD)

    def wait(self, tick: int, in_flight: int) -> Wait:
        """Wait until the next multiple of the period."""
        assert self.period is not None, "the period is resolved before a run"
        return Wait(until=(tick + 1) * self.period)


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Coordination):
    """Merge at every arrival."""

    kind: ClassVar[str] = "asynchronous"
    period: float | None = field(default=None, metadata=_PERIOD)

    def wait(self, tick: int, in_flight: int) -> Wait:
        """Wait for one arrival, or for none where nobody works, so that the fleet looks for a client's return."""
        return Wait(arrivals=min(1, in_flight))

    def schedule_tick(self, tick: int, now: float) -> float:
        """Elapsed time over the period, so that the rate falls as fast in time as under ticks."""
        return tick if self.period is None else now / self.period


@dataclass(frozen=True, kw_only=True)
class Fastest(Coordination):
    """Merge a little after the fastest clients' updates are in, with whatever has arrived by then."""

    kind: ClassVar[str] = "fastest"
    clients: int = field(
        default=1, metadata={"at_least": 1, "help": "number of clients that are waited for, from client 0 on"}
    )
    grace: float = field(
        default=0.5, metadata={"at_least": 0, "help": "seconds between the last of their updates and the merge"}
    )

    @property
    def always(self) -> int:
        """They take part in every tick."""
        return self.clients

    def wait(self, tick: int, in_flight: int) -> Wait:
        """Wait for the fastest clients."""
        return Wait(fastest=self.clients, grace=self.grace)
