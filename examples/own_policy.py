"""Your own participation policy: who is asked to train. No download, a few seconds.

Run it with `python examples/own_policy.py`. In a recipe it goes by its import path, as in
`participation: {count: 3, policy: {kind: "own_policy:Rested", ticks: 4}}`; its fields are its keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from own_task import two_moons

import fedgmr
from fedgmr.server.participation import Known, Participation


@dataclass(frozen=True, kw_only=True)
class Rested:
    """Spares batteries: whoever was asked lately rests, as long as others are free; of these any is as likely."""

    kind: ClassVar[str] = "rested"
    ticks: int = field(default=2, metadata={"at_least": 0, "help": "merges that a client rests after it was asked"})

    def choose(self, free: Sequence[int], places: int, known: Known) -> list[int]:
        """The rested in a random order, then the others, those asked the longest ago first."""
        order = known.draws().permutation(len(free))
        asked = {client: known.asked.get(client, -self.ticks - 1) for client in free}
        tired = {client: asked[client] if known.tick - asked[client] <= self.ticks else -1 for client in free}
        return sorted((free[int(i)] for i in order), key=lambda client: tired[client])[:places]


def main() -> None:
    """Simulate ten clients, three at work at a time, and print how often each has answered."""
    result = fedgmr.simulate(
        two_moons(),
        method="fedavg",
        fleet=fedgmr.FleetSettings(name="low", scale="model"),
        seconds=3000,
        participation=Participation(count=3, policy=Rested(ticks=2)),
        progress=False,
    )
    last = result.history[-1]
    print(f"Updates of each client: {last['updates']}; accuracy {last['accuracy']:.3f}")


if __name__ == "__main__":
    main()
