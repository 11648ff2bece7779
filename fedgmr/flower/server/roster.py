"""The roster: nodes of the grid come, go and return; clients of the run keep their number.

A run has as many clients as its recipe's fleet. A node that joins gets the number it prefers (its partition) or the
next one that is free, and keeps it. It is known again by its node id, which belongs to its key where SuperNodes
authenticate themselves: a key has one number for the whole run, and nobody else gets it. If the id is new and claims
are believed, it is known by the client id that it keeps in a directory of its own; only a client without one is known
by its partition. A claim never pushes out a node that is online.
"""

from dataclasses import dataclass, field
from typing import Any

from fedgmr.flower.answers import Hello


@dataclass
class KnownNode:
    """The node behind a client."""

    node: int
    hello: Hello
    start: str  # of the node when it said hello, as the grid tells it

    @property
    def anonymous(self) -> bool:
        """Whether the node could not be known again under a new id; it leaves its number to the next one."""
        return not self.hello.client_id and self.hello.partition < 0


@dataclass
class Roster:
    """The clients of a run and the nodes behind them."""

    clients: int
    claims: bool = False  # whether a new node may take up an absent client's number
    nodes: dict[int, KnownNode] = field(default_factory=dict)  # by client
    online: dict[int, str] = field(default_factory=dict)  # by node: when it was last started

    def client_of(self, node: int) -> int | None:
        """The client whose node this is."""
        return next((client for client, known in self.nodes.items() if known.node == node), None)

    def sharing(self, client: int) -> int | None:
        """Another client whose node names the same partition."""
        partition = self.nodes[client].hello.partition
        named = (c for c, known in self.nodes.items() if known.hello.partition == partition >= 0)
        return next((other for other in named if other != client), None)

    def present(self, client: int) -> bool:
        """Whether the client's node is online and has said hello since it was started."""
        known = self.nodes.get(client)
        return known is not None and self.online.get(known.node) == known.start

    def strangers(self) -> dict[int, str]:
        """Nodes online that have not said hello since they were started."""
        greeted = {(known.node, known.start) for known in self.nodes.values()}
        return {node: start for node, start in self.online.items() if (node, start) not in greeted}

    def admit(self, node: int, start: str, hello: Hello, *, patient: bool = False) -> int | None:
        """The number of a client that said hello; None where there is none for it.

        `patient`: rather none than a new number, if the number it claims belongs to a node that still counts as online.
        A killed node does so for a minute, and this may be the same one, started again.
        """
        client = self._number_for(node, hello, patient)
        if client is not None:
            self.nodes[client] = KnownNode(node=node, hello=hello, start=start)
        return client

    def _number_for(self, node: int, hello: Hello, patient: bool) -> int | None:
        client = self.client_of(node)
        if client is not None:
            return client
        claimed = self._claimed(hello) if self.claims else None
        if claimed is not None and self.nodes[claimed].node not in self.online:
            return claimed
        if claimed is not None and patient:
            return None
        if 0 <= hello.partition < self.clients and hello.partition not in self.nodes:
            return hello.partition
        for client in range(self.clients):
            if client not in self.nodes:
                return client
        absent = [c for c, known in sorted(self.nodes.items()) if known.node not in self.online and known.anonymous]
        return absent[0] if self.claims and absent else None

    def _claimed(self, hello: Hello) -> int | None:
        for client, known in self.nodes.items():
            if hello.client_id or known.hello.client_id:
                same = hello.client_id == known.hello.client_id
            else:
                same = hello.partition == known.hello.partition >= 0
            if same:
                return client
        return None

    def state(self) -> list[list[Any]]:
        """The nodes by client, as JSON-ready data."""
        return [
            [client, k.node, k.hello.client_id, k.hello.partition, k.hello.samples, list(k.hello.classes)]
            for client, k in sorted(self.nodes.items())
        ]

    def restore(self, state: list[list[Any]]) -> None:
        """Continue from what `state()` has returned; the clients have to say hello again."""
        for client, node, client_id, partition, samples, classes in state:
            hello = Hello(client_id=client_id, partition=partition, samples=samples, classes=tuple(classes))
            self.nodes[client] = KnownNode(node=node, hello=hello, start="")
