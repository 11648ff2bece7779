"""The weights of updates in a merge: staleness weight times client weight (A12, A33).

A client weighs the same as all others, or by its number of samples. Read next: `staleness.py`, `aggregation.py`.
"""

import math
from collections.abc import Sequence

from fedgmr.exchange import ClientProfile
from fedgmr.server.buffer import Contribution
from fedgmr.server.rules import ServerRules


class Weights:
    """What each client's update counts, now and when it came."""

    def __init__(self, rules: ServerRules, profiles: Sequence[ClientProfile]) -> None:
        """Nobody has sent an update yet; until then a client counts as fresh."""
        self._rules = rules
        self.on_arrival = [0] * len(profiles)  # staleness of each client's newest update when it arrived
        self.weigh(profiles)

    def weigh(self, profiles: Sequence[ClientProfile]) -> None:
        """Set the clients' own weights; one whose samples are not known weighs as much as the average."""
        self.counted = self._rules.admission.counted(profiles)  # samples, as far as a client is believed
        known = [samples for samples in self.counted if samples]
        if self._rules.weighting == "uniform" or not known:
            self.clients = [1.0] * len(profiles)
            return
        mean = sum(known) / len(known)
        self.clients = [samples / mean if samples else 1.0 for samples in self.counted]

    def of(self, c: Contribution, tick: int) -> float:
        """That of an update at the merge after `tick` others."""
        return self._of(c.client, tick - c.version if self._rules.buffer.ages else self.on_arrival[c.client])

    def fleet(self) -> float:
        """The sum over all clients, each as at its last arrival."""
        return math.fsum(map(self._of, range(len(self.clients)), self.on_arrival))

    def _of(self, client: int, staleness: int) -> float:
        return self._rules.staleness.weight(staleness) * self.clients[client]
