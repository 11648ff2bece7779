"""THE LOOP: collect updates, merge, restore, record, dispatch. Read this first.

The server decides, the fleet carries out; which fleet stands behind the loop, simulated or Flower, changes nothing
here. Read next: `server/server.py` (merge and restoration), `fleets/simulated.py` (virtual time).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from fedgmr.exchange import ClientTask, Update
from fedgmr.server.server import Server


class Fleet(Protocol):
    """Where the clients are."""

    @property
    def now(self) -> float:
        """Seconds since the run began, virtual or real."""
        ...

    @property
    def in_flight(self) -> int:
        """Tasks dispatched and not yet collected."""
        ...

    def free(self) -> list[int]:
        """Clients that can take a task now."""
        ...

    def dispatch(self, tasks: Sequence[ClientTask]) -> None:
        """Send tasks; all of them leave together."""
        ...

    def collect(self, *, until: float, arrivals: int | None = None) -> list[Update]:
        """Wait until a moment, or until so many updates have arrived if that is earlier."""
        ...


def federate(
    server: Server, fleet: Fleet, *, seconds: float, after_tick: Callable[[], None], resumed: bool = False
) -> None:
    """Run the federation for `seconds`.

    Args:
        server: holds the model and decides.
        fleet: carries tasks to clients and brings updates back.
        seconds: the time budget; a merge that would come later does not happen.
        after_tick: called after every merge and the dispatch that follows it (recording, checkpoints).
        resumed: the tasks of the last dispatch are in flight already.
    """
    coordination = server.rules.coordination
    if not resumed:
        fleet.dispatch(server.tasks(fleet.free(), fleet.now))
    while fleet.now < seconds:
        wait = coordination.wait(server.tick, fleet.in_flight)
        updates = fleet.collect(until=min(wait.until, seconds), arrivals=wait.arrivals)
        if wait.until > seconds and (wait.arrivals is None or len(updates) < wait.arrivals):
            break  # the budget ended before the merge
        if updates or wait.arrivals is None:
            server.merge(updates, fleet.now)
        fleet.dispatch(server.tasks(fleet.free(), fleet.now))
        after_tick()
