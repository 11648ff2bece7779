"""A deployed run in virtual time, with things that happen to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedgmr.experiments.assembly import Assembly
from fedgmr.federation import federate
from fedgmr.flower.server.fleet import FlowerFleet
from fedgmr.flower.server.server_app import assemble_deployed
from fedgmr.recipe import recipe_from
from flower.grid import RUN, FakeGrid, Message, Node
from flower.virtual import VirtualClock

PERIOD = 10.0


@dataclass
class Deployed:
    """A run on a fake grid; `latency` by partition, seconds from dispatch to answer."""

    nodes: dict[int, Node]
    directory: Path | None = None
    latency: Mapping[int, float | None] = field(default_factory=dict)
    blocking: bool = False
    run_id: int = RUN
    clients: int = 3
    method: str = "fedgmr"
    rules: Mapping[str, Any] = field(default_factory=lambda: {"coordination": {"period": PERIOD}})
    sections: Mapping[str, Any] = field(default_factory=dict)
    task: str = "e2e.tiny:dense"

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.grid = FakeGrid(self.clock, self.nodes, self.arrival, run_id=self.run_id, blocking=self.blocking)
        self.received: list[Message] = []
        data = {
            "seconds": 1e6,
            "task": self.task,
            "method": {"name": self.method, **self.rules},
            "fleet": {"clients": self.clients, "densities": [1.0, 0.2, 0.05, 0.1][: self.clients]},
            "training": {"batch_size": 10, "steps": 3},
            "deployment": {"min_clients": min(self.clients, len(self.nodes)), "shortest": 30.0, "first_task": 60.0},
            "evaluation": {"every_seconds": 1e6},
            "device": "cpu",
            **self.sections,
        }
        self.assembly: Assembly[FlowerFleet] = assemble_deployed(
            recipe_from(data), self.grid, self.run_id, self.clock, self.directory
        )
        self.fleet, self.server = self.assembly.fleet, self.assembly.server

    def arrival(self, node: Node, message: Message) -> float | None:
        if message.metadata.message_type != "train":
            return self.clock.now() + 1.0
        self.received.append(message)
        latency = self.latency.get(node.config.get("partition-id", -1), 4.0)
        return None if latency is None else self.clock.now() + latency

    def drive(self, ticks: int, watch: Callable[[int], None] = lambda tick: None) -> "Deployed":
        """So many merges; `watch(tick)` after each."""

        federate(
            self.server,
            self.fleet,
            seconds=1e6,
            after_tick=lambda: watch(self.server.tick),
            stop=lambda: self.server.tick >= ticks,
        )
        self.fleet.close()
        assert self.clock.problems == []
        return self

    def tasks_of(self, client: int) -> list[dict[str, Any]]:
        """The settings of the tasks sent to a client."""
        settings = [dict(m.content["settings"]) for m in self.received if m.metadata.message_type == "train"]
        return [entry for entry in settings if entry["client"] == client]
