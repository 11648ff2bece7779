"""Participation: how many clients are at work, and who of the free ones is asked to train.

A policy is a function of what the server knows: samples, the seconds of tasks, reported losses, who was asked when. It
has no memory of its own, so a resumed run asks the same clients. Formulas and advice: `docs/recipes.md`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from statistics import fmean, median
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fedgmr.seeding import generator

# Oort's constants: quantile at which utilities are clipped, cut-off as a share of the last place's, weight of age.
_CLIP, _CUT, _AGE = 0.95, 0.95, 0.1


@dataclass(frozen=True, kw_only=True)
class Known:
    """The server's knowledge of its clients when it asks some of them to train."""

    clients: int  # the size of the fleet
    seed: int = 0
    tick: int = 0
    samples: Sequence[float] = ()  # by client, as far as it is believed; 0: not known
    seconds: Mapping[int, float] = field(default_factory=dict)  # by client: its last task, or as its link promises
    losses: Mapping[int, float] = field(default_factory=dict)  # by client: mean training loss of its last update
    asked: Mapping[int, int] = field(default_factory=dict)  # by client: tick of its last task; the latest one last

    def draws(self) -> np.random.Generator:
        """The random numbers of this tick."""
        return generator(self.seed, "cohort", self.tick)

    def counts(self, clients: Sequence[int]) -> list[float]:
        """The samples of these clients; one whose number is not known has the mean of the others."""
        known = [count for count in self.samples if count]
        mean = fmean(known) if known else 1.0
        return [(self.samples[client] if self.samples else 0.0) or mean for client in clients]

    @property
    def typical(self) -> float:
        """The median of the known seconds; 1 while there are none. A task takes some time, so it is above 0."""
        return median(self.seconds.values()) if self.seconds else 1.0


class Policy(Protocol):
    """Chooses the clients that are asked to train."""

    kind: ClassVar[str]

    def choose(self, free: Sequence[int], places: int, known: Known) -> list[int]:
        """So many of the free clients, fewer than all, in the order in which they are asked."""


@dataclass(frozen=True, kw_only=True)
class Uniform(Policy):
    """Every free client is as likely as any other."""

    kind: ClassVar[str] = "uniform"

    def choose(self, free: Sequence[int], places: int, known: Known) -> list[int]:
        """Draw without replacement."""
        return sorted(free[int(i)] for i in known.draws().choice(len(free), size=places, replace=False))


@dataclass(frozen=True, kw_only=True)
class FastestFirst(Policy):
    """The clients whose task takes the shortest time."""

    kind: ClassVar[str] = "fastest"

    def choose(self, free: Sequence[int], places: int, known: Known) -> list[int]:
        """Those of whom nothing is known come first, so that it becomes known."""
        return nsmallest(places, free, key=lambda client: (known.seconds.get(client, 0.0), client))


@dataclass(frozen=True, kw_only=True)
class RoundRobin(Policy):
    """Everybody in turn, in an order drawn by the seed."""

    kind: ClassVar[str] = "round_robin"

    def choose(self, free: Sequence[int], places: int, known: Known) -> list[int]:
        """Whoever was never asked, then whoever was asked the longest ago."""
        order = generator(known.seed, "turns").permutation(known.clients)
        waiting = set(free)
        turns = [int(client) for client in order if int(client) not in known.asked] + list(known.asked)
        return [client for client in turns if client in waiting][:places]


@dataclass(frozen=True, kw_only=True)
class ByData(Policy):
    """Clients with more samples are asked more often."""

    kind: ClassVar[str] = "by_data"

    def choose(self, free: Sequence[int], places: int, known: Known) -> list[int]:
        """Draw one after the other, without replacement, in proportion to the samples."""
        return _drawn(free, known.counts(free), places, known.draws())


@dataclass(frozen=True, kw_only=True)
class Oort(Policy):
    """Utility of loss and speed, in the manner of Oort (Lai et al., OSDI 2021), and a share for clients never asked."""

    kind: ClassVar[str] = "oort"
    seconds: float | None = field(
        default=None,
        metadata={
            "above": 0,
            "help": "T, the preferred time of a task; `null`: the median of those that the server knows",
        },
    )
    penalty: float = field(
        default=2.0,
        metadata={"at_least": 0, "help": "exponent by which slower clients lose utility; `0`: they lose none"},
    )
    explore: float = field(
        default=0.9,
        metadata={
            "at_least": 0,
            "at_most": 1,
            "help": "share of the places for clients never asked, at the first tick",
        },
    )
    decay: float = field(
        default=0.98, metadata={"above": 0, "at_most": 1, "help": "factor on that share from tick to tick"}
    )
    least: float = field(default=0.2, metadata={"at_least": 0, "at_most": 1, "help": "that share is at least this"})

    def choose(self, free: Sequence[int], places: int, known: Known) -> list[int]:
        """Fill the share of those never asked by speed, and the other places by utility."""
        draws = known.draws()
        new = [client for client in free if client not in known.asked]
        old = [client for client in free if client in known.asked]
        share = max(self.least, self.explore * self.decay**known.tick)
        # Rounded at random, so that one place at a time has its share too.
        exploring = int(share * places + draws.random())
        exploring = min(max(exploring, places - len(old)), len(new), places)
        typical = known.typical
        by_speed = [1 / known.seconds.get(client, typical) for client in new]
        return _drawn(new, by_speed, exploring, draws) + self._useful(old, places - exploring, known, draws)

    def utilities(self, clients: Sequence[int], known: Known) -> list[float]:
        """The utility of each of these clients, all of which were asked before."""
        learned = [
            count * abs(known.losses.get(client, 0.0))
            for client, count in zip(clients, known.counts(clients), strict=True)
        ]
        most = float(np.quantile(learned, _CLIP, method="higher")) or 1.0
        preferred = known.typical if self.seconds is None else self.seconds
        utilities = []
        for client, value in zip(clients, learned, strict=True):
            age = math.sqrt(_AGE * math.log(known.tick + 1) / (known.asked[client] + 1))
            slower = max(1.0, known.seconds.get(client, preferred) / preferred)
            # Of one that says its loss is 1e308 the product is infinite, and so the quantile may be.
            learning = value / most if value < most else 1.0
            utilities.append((learning + age) * slower**-self.penalty)
        return utilities

    def _useful(self, clients: Sequence[int], places: int, known: Known, draws: np.random.Generator) -> list[int]:
        """Drawn by utility among those that reach almost that of the last place."""
        if not places:
            return []
        utilities = self.utilities(clients, known)
        cut = _CUT * sorted(utilities, reverse=True)[places - 1]
        admitted = [(client, utility) for client, utility in zip(clients, utilities, strict=True) if utility >= cut]
        return _drawn([client for client, _ in admitted], [utility for _, utility in admitted], places, draws)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """The clients at work: every free one, or so many, which a policy chooses at each tick."""

    count: int | None = field(
        default=None,
        metadata={
            "at_least": 1,
            "help": "number of clients at work, chosen from the free ones at each tick; `null`: all",
        },
    )
    fraction: float | None = field(
        default=None,
        metadata={"above": 0, "at_most": 1, "help": "the same as a share of the fleet; give only one of the two"},
    )
    policy: Policy = field(
        default=Uniform(),
        metadata={
            "kinds": (Uniform, FastestFirst, RoundRobin, ByData, Oort),
            "help": (
                "who of the free clients is asked: `uniform`, `fastest`, `round_robin`, `by_data`, `oort`; all "
                "but `uniform` need `count` or `fraction`"
            ),
        },
    )

    def __post_init__(self) -> None:
        if self.count is not None and self.fraction is not None:
            raise ValueError(f"count is {self.count} and fraction is {self.fraction}: give one of the two.")
        if self.count is None and self.fraction is None and not isinstance(self.policy, Uniform):
            name = getattr(self.policy, "kind", type(self.policy).__name__)
            raise ValueError(f"policy is {name} and everybody is asked: give count or fraction too.")

    def draw(self, free: Sequence[int], known: Known, *, in_flight: int, always: int = 0) -> list[int]:
        """The clients, out of the free ones, that get a task now, in the order in which they are asked.

        Clients 0..always-1 are among them whenever they are free; the policy chooses the others.
        """
        # Less a rounding error: 0.07 x 100 is 7.000000000000001.
        places = max(1, math.ceil(self.fraction * known.clients - 1e-9)) if self.fraction is not None else self.count
        if places is None or places - in_flight >= len(free):
            return list(free)
        certain = [client for client in free if client < always]
        others = [client for client in free if client >= always]
        places = max(0, places - in_flight - len(certain))
        chosen = self.policy.choose(others, places, known) if places else []
        if len(chosen) != places or len(set(chosen)) != places or not set(chosen) <= set(others):
            raise ValueError(
                f"participation.policy has chosen {list(chosen)}: it must choose {places} of the free clients, each "
                "once."
            )
        return [*certain, *chosen]


def _drawn(clients: Sequence[int], weights: Sequence[float], places: int, draws: np.random.Generator) -> list[int]:
    """So many clients, one after the other without replacement, each in proportion to its weight among the rest.

    Exponential times with the weights as rates come in such an order; those of weight 0 come last.
    """
    units = draws.exponential(size=len(clients))
    rates: npt.NDArray[np.float64] = np.asarray(weights, dtype=np.float64)
    times = np.divide(units, rates, out=np.full(len(clients), np.inf), where=rates > 0)
    return [clients[int(i)] for i in np.lexsort((units, times))[:places]]
