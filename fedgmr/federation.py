"""THE LOOP: dispatch tasks, collect updates, learn the news, merge. Read this first.

The server decides, the fleet carries out. Everything that passes between them passes here, and nothing here depends on
which fleet it is, simulated or Flower. Read next: `server/server.py` (merge and restoration), `fleets/simulated.py`
(virtual time).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from torch import Tensor

from fedgmr.exchange import ClientTask, News, Update, Verdict
from fedgmr.server.server import Server


class Fleet(Protocol):
    """The clients, wherever they are; counts run from the beginning of the run, for its record."""

    clients: int
    clock: Literal["virtual", "real"]

    @property
    def now(self) -> float:
        """Seconds since the run began, virtual or real."""

    @property
    def in_flight(self) -> int:
        """Tasks dispatched and not yet collected."""

    def begin(self) -> None:
        """Wait until enough clients are there to start or to continue; the clock runs from here."""

    def free(self) -> list[int]:
        """Clients that can take a task now."""

    def dispatch(self, tasks: Sequence[ClientTask], *, tick: int) -> None:
        """Send tasks; all of them leave together. `tick` counts the merges done."""

    def collect(
        self, *, until: float, arrivals: int | None = None, fastest: int = 0, grace: float = 0.0
    ) -> list[Update]:
        """Wait until a moment, or if that is earlier until so many updates have arrived or the fastest (see `Wait`).

        Fewer come back before that moment only where the others were lost.
        """

    def news(self) -> list[News]:
        """Everything that the fleet has noticed about its clients since the last call."""

    def told(self, verdicts: Sequence[Verdict]) -> None:
        """Hear which of the updates just collected were not merged as they came."""

    @property
    def bytes_down(self) -> Sequence[int]:
        """Bytes sent to each client."""

    @property
    def bytes_up(self) -> Sequence[int]:
        """Bytes received from each client."""

    @property
    def bytes_server(self) -> int:
        """Bytes that have crossed the server's uplink."""

    @property
    def refused(self) -> Mapping[str, int]:
        """Tasks that came to nothing, by reason, and updates that were shortened ("clipped")."""

    @property
    def took(self) -> Mapping[int, float]:
        """Seconds of each client's last task by a real clock; a simulation tells none."""

    @property
    def memories(self) -> dict[int, Tensor]:
        """What clients remember from task to task, by client, where the fleet keeps it for them; for a checkpoint."""

    def record(self, since: float, until: float) -> dict[str, Any]:
        """Fields for a row about the tasks that were dispatched since the last one, where the fleet notes them."""

    def state(self) -> dict[str, Any]:
        """The state of the fleet without its tasks, which the server keeps, as JSON-ready data."""

    def restore(self, state: dict[str, Any], tasks: dict[int, ClientTask], *, tick: int) -> None:
        """Continue from what `state()` has returned; `tasks` were in flight then, `tick` merges had been done."""


def federate(
    server: Server,
    fleet: Fleet,
    *,
    seconds: float,
    after_tick: Callable[[], None] | None = None,
    stop: Callable[[], bool] | None = None,
    resumed: bool = False,
) -> None:
    """Run the federation for `seconds`; a merge that would come later does not happen.

    After every merge and the dispatch that follows it `after_tick` is called (recording, checkpoints). Before the first
    merge and after each one `stop` is asked whether the run ends here (early stopping). `resumed`: the tasks of the
    last dispatch are in flight already.
    """
    coordination = server.rules.coordination
    fleet.begin()
    server.learn(fleet.news())
    if not resumed:
        fleet.dispatch(server.tasks(fleet.free(), fleet.now), tick=server.tick)
    while fleet.now < seconds and not (stop is not None and stop()):
        wait = coordination.wait(server.tick, fleet.in_flight)
        updates = fleet.collect(
            until=min(wait.until, seconds), arrivals=wait.arrivals, fastest=wait.fastest, grace=wait.grace
        )
        server.learn(fleet.news())
        short = wait.arrivals is None or len(updates) < max(1, wait.arrivals)  # of 0: nobody has come back
        if wait.until > seconds and short and fleet.now >= seconds:
            break  # the budget ended before the merge
        if updates or wait.timed:
            fleet.told(server.merge(updates, fleet.now))
        fleet.dispatch(server.tasks(fleet.free(), fleet.now), tick=server.tick)
        if after_tick is not None:
            after_tick()
