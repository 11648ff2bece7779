"""Who is who: nodes of the grid come, go and return; clients of the run keep their number.

A run has as many clients as its recipe's fleet. A node that joins gets the number it prefers (its partition) or the
next one that is free, and keeps it. It is known again by its node id, which SuperNode authentication makes stable; if
that is new and claims are believed, by the client id it keeps in a directory of its own, else by its partition. A
claim never pushes out a node that is online. Knows nothing of Flower.
"""

from dataclasses import dataclass, field
from typing import Any

from fedgmr.flower.answers import Hello


@dataclass
class Seat:
    """A client's number, taken."""

    node: int
    hello: Hello
    start: str  # of the node when it said hello, as the grid tells it


@dataclass
class Roster:
    """The clients of a run and the nodes behind them."""

    clients: int
    claims: bool = True  # whether a new node may take up an absent client's number
    seats: dict[int, Seat] = field(default_factory=dict)
    online: dict[int, str] = field(default_factory=dict)  # by node: when it was last started

    def client_of(self, node: int) -> int | None:
        """The client whose node this is."""
        return next((client for client, seat in self.seats.items() if seat.node == node), None)

    def present(self, client: int) -> bool:
        """Whether the client's node is online and has said hello since it was started."""
        seat = self.seats.get(client)
        return seat is not None and self.online.get(seat.node) == seat.start

    def strangers(self) -> dict[int, str]:
        """Nodes online that have not said hello since they were started."""
        known = {(seat.node, seat.start) for seat in self.seats.values()}
        return {node: start for node, start in self.online.items() if (node, start) not in known}

    def admit(self, node: int, start: str, hello: Hello, *, patient: bool = False) -> int | None:
        """The number of a client that said hello; None where there is none for it.

        Args:
            node: the node it is.
            start: when that was last started.
            hello: what it said.
            patient: rather none than a new number, if the number it claims belongs to a node that still counts as
                online: a killed node does so for a minute, and this may be the same one, started again.
        """
        client = self._seat_for(node, hello, patient)
        if client is not None:
            self.seats[client] = Seat(node=node, hello=hello, start=start)
        return client

    def _seat_for(self, node: int, hello: Hello, patient: bool) -> int | None:
        client = self.client_of(node)
        if client is not None:
            return client
        claimed = self._claimed(hello) if self.claims else None
        if claimed is not None and self.seats[claimed].node not in self.online:
            return claimed
        if claimed is not None and patient:
            return None
        if 0 <= hello.partition < self.clients and hello.partition not in self.seats:
            return hello.partition
        for client in range(self.clients):
            if client not in self.seats:
                return client
        # A node that cannot be known again leaves its number to the next one.
        absent = [c for c, seat in sorted(self.seats.items()) if seat.node not in self.online and not _knowable(seat)]
        return absent[0] if self.claims and absent else None

    def _claimed(self, hello: Hello) -> int | None:
        for client, seat in self.seats.items():
            if hello.client_id and seat.hello.client_id:
                same = hello.client_id == seat.hello.client_id
            else:
                same = hello.partition == seat.hello.partition >= 0
            if same:
                return client
        return None

    def state(self) -> list[list[Any]]:
        """The seats, as JSON-ready data."""
        return [
            [client, s.node, s.hello.client_id, s.hello.partition, s.hello.samples, list(s.hello.classes)]
            for client, s in sorted(self.seats.items())
        ]

    def restore(self, state: list[list[Any]]) -> None:
        """Take up the seats saved by `state()`; their clients have to say hello again."""
        for client, node, client_id, partition, samples, classes in state:
            hello = Hello(client_id=client_id, partition=partition, samples=samples, classes=tuple(classes))
            self.seats[client] = Seat(node=node, hello=hello, start="")


def _knowable(seat: Seat) -> bool:
    return bool(seat.hello.client_id) or seat.hello.partition >= 0
