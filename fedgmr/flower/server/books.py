"""The books of a deployed run: bytes by client, what came to nothing by reason, and the journal of every task."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedgmr.flower.server.flights import Flight
from fedgmr.flower.server.journal import Journal
from fedgmr.flower.server.packing import Parcel, shared_size


class Books:
    """Counts from the beginning of the run, and writes what happens."""

    def __init__(self, clients: int, journal: Journal, now: Callable[[], float]) -> None:
        """`now` tells the run's seconds."""
        self.journal, self.now = journal, now
        self.down, self.up, self.server = [0] * clients, [0] * clients, 0
        self.refused: Counter[str] = Counter()
        self._accepted: list[tuple[Flight, dict[str, Any]]] = []  # since the last merge
        self._tick = -1

    def packed(self, parcels: Sequence[Parcel]) -> None:
        """Parcels leave."""
        self.server += shared_size(parcels)
        for parcel in parcels:
            self.down[parcel.task.client] += parcel.size

    def accept(self, flight: Flight, **fields: Any) -> None:
        """An update is handed on to the next merge."""
        self._accepted.append((flight, {"arrived": round(self.now(), 3), **fields}))

    def end(self, flight: Flight, reason: str, *, refused: bool) -> None:
        """A task came to nothing, or something came for one that had."""
        self.refused[reason] += 1
        self.tell("refused" if refused else "lost", flight, reason=reason)

    def merge(self, tick: int, *, late: float) -> None:
        """Note that `tick` merges are done: only now do updates count as accepted."""
        for flight, fields in self._accepted:
            self.tell("accepted", flight, tick=tick, **fields)
        self._accepted.clear()
        if tick != self._tick:
            self._tick = tick
            self.journal.write("tick", tick=tick, seconds=round(self.now(), 3), late=round(late, 3))

    def close(self) -> None:
        """What arrived after the last merge is not used."""
        for flight, fields in self._accepted:
            self.tell("unmerged", flight, **fields)
        self._accepted.clear()

    def tell(self, event: str, flight: Flight, **fields: Any) -> None:
        """One line of the journal about a task."""
        task = flight.task
        who = {"task": flight.name, "client": task.client, "version": task.version}
        self.journal.write(event, **who, seconds=round(self.now(), 3), **fields)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON-ready data."""
        return {
            "bytes_down": self.down,
            "bytes_up": self.up,
            "bytes_server": self.server,
            "refused": dict(self.refused),
            "journal": self.journal.lines,
        }

    def restore(self, state: Mapping[str, Any], lost: Sequence[int], tick: int) -> None:
        """Continue from what `state()` has returned; the tasks of the clients `lost` were in flight then."""
        self.down, self.up, self.server = list(state["bytes_down"]), list(state["bytes_up"]), state["bytes_server"]
        self.refused = Counter(state["refused"])
        if lost:
            self.refused["interrupted"] += len(lost)
        self.journal.cut_back(state["journal"])
        self._tick = tick
        self.journal.write("resumed", seconds=self.now(), tick=tick, lost=list(lost))
