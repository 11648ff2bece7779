"""Fleets by name: the paper's classes in its High, Medium and Low compositions, other spreads; or any list of links.

Client 0 is the fastest (A31). The preset densities are in proportion to the bandwidth, so that every class needs
the same time for its preset sub-model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedgmr.fleets.availability import Absence, Availability, DayNight, FileAvailability, make_presence
from fedgmr.fleets.drive import COMMUTE_REST, Drive
from fedgmr.fleets.links import TRACES, Link
from fedgmr.fleets.presence import Presence
from fedgmr.fleets.simulated import OnLeaving
from fedgmr.fleets.spread import spread_links
from fedgmr.fleets.traces import Trace
from fedgmr.settings.build import settle

CLASSES = (
    Link(down=20.0, up=5.0, density=1.0),
    Link(down=10.0, up=2.5, density=0.5),
    Link(down=4.0, up=1.0, density=0.2),
    Link(down=2.0, up=0.5, density=0.1),
    Link(down=1.0, up=0.25, density=0.05),
)
COMPOSITIONS: Mapping[str, tuple[int, ...]] = {
    "high": (1, 1, 1, 1, 6),
    "medium": (1, 1, 2, 3, 3),
    "low": (2, 2, 2, 2, 2),
}
# A37: what the paper's five-client rows are made of; medium is not among them and follows the same idea.
_OF_FIVE: Mapping[str, tuple[int, ...]] = {
    "high": (1, 0, 0, 0, 4),
    "medium": (1, 0, 1, 1, 2),
    "low": (1, 1, 1, 1, 1),
}
# Fleets with the links of `spread.py`: how their rates vary.
_VARYING: Mapping[str, Drive | None] = {"lte": Drive(), "commute": Drive(rest=COMMUTE_REST), "day_night": None}
_SHORT_DAYS = DayNight(day=0.4, night=0.15, spread=0.2)  # hours: 24 minutes, 9 and 12
CONV2_PARAMETERS = 6_603_710  # what the paper's bandwidths were chosen for


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """The clients of a run and their links."""

    name: Literal["high", "medium", "low", "lte", "commute", "day_night", "custom"] = field(
        default="high",
        metadata={
            "help": (
                "`high`, `medium`, `low`: the paper's bandwidth classes; `lte`, `commute`, `day_night`: a "
                "lognormal spread of links with rates or clients that [come and "
                "go](links.md#generated-traces-and-fleets); `custom`: the list in `fleet.links`"
            )
        },
    )
    clients: int | None = field(
        default=None,
        metadata={
            "at_least": 1,
            "help": "number of clients; `null`: 10, or one per link. Compositions are scaled to other numbers",
        },
    )
    links: tuple[Link, ...] | None = field(
        default=None, metadata={"help": "for `custom`: one entry per client, by convention the fastest first"}
    )
    densities: tuple[float, ...] | Literal["measured"] | None = field(
        default=None,
        metadata={
            "above": 0,
            "at_most": 1,
            "help": (
                "one preset density per client; `null`: by bandwidth class, or as the links say; `measured`: see below"
            ),
        },
    )
    scale: float | Literal["model"] = field(
        default=1.0,
        metadata={
            "above": 0,
            "help": (
                "multiplies every rate, the server's too; `model`: model size / 6,603,710, so that a small model "
                "takes as long as Conv-2"
            ),
        },
    )
    pace: float = field(
        default=1.0,
        metadata={"above": 0, "help": "traces and availability run so many times faster; 24 makes a day an hour"},
    )
    trace: Trace | None = field(
        default=None,
        metadata={
            "kinds": TRACES,
            "help": "the same for all links that have no trace of their own, each at its own mean rates",
        },
    )
    availability: Availability | None = field(
        default=None,
        metadata={
            "kinds": (FileAvailability, DayNight),
            "help": (
                "when clients are there: `file` or `day_night`; `none`: always. See [links.md](links.md#availability)"
            ),
        },
    )
    absences: tuple[Absence, ...] = field(
        default=(),
        metadata={
            "help": "times in which clients take no new task, in seconds of the run, in addition to `availability`"
        },
    )
    on_leaving: OnLeaving = field(
        default="finish",
        metadata={
            "help": (
                "the task of a client that leaves is finished as if it were there; `resume`: transfers and "
                "training stand still until it is back; `lose`: the task is lost. See "
                "[links.md](links.md#clients-that-leave)"
            )
        },
    )

    def __post_init__(self) -> None:
        settle(self)
        if self.links is not None and not self.links:
            raise ValueError("links is []: give at least one client.")
        if (self.links is not None) != (self.name == "custom"):
            raise ValueError(
                f"name is {self.name!r} and links are {'given' if self.links else 'not given'}: "
                "links go with name: custom."
            )
        if self.links is not None and self.clients not in (None, len(self.links)):
            raise ValueError(
                f"clients is {self.clients} and there are {len(self.links)} links: give one link per client."
            )

    @property
    def measured(self) -> bool:
        """Whether clients get their densities by measurement."""
        return self.densities == "measured"

    def resolved_links(self) -> list[Link]:
        """One link per client, each with its preset density; where they are measured, that of its class."""
        links = list(self.links) if self.links is not None else self._named_links()
        if (trace := self._trace) is not None:
            links = [replace(link, trace=link.trace or trace) for link in links]
        absent = max((client for absence in self.absences for client in absence.clients), default=0)
        if absent >= len(links):
            raise ValueError(f"fleet.absences names client {absent}: give numbers from 0 to {len(links) - 1}.")
        if self.densities is None or isinstance(self.densities, str):
            return [replace(link, density=1.0 if link.density is None else link.density) for link in links]
        if len(self.densities) != len(links):
            raise ValueError(f"fleet.densities has {len(self.densities)} entries: give one per client, {len(links)}.")
        return [replace(link, density=density) for link, density in zip(links, self.densities, strict=True)]

    @property
    def _trace(self) -> Trace | None:
        return _VARYING.get(self.name) if self.trace is None else self.trace

    @property
    def _availability(self) -> Availability | None:
        return _SHORT_DAYS if self.availability is None and self.name == "day_night" else self.availability

    def _named_links(self) -> list[Link]:
        """The links of the composition, fastest first."""
        clients = self.clients or 10
        if self.name in _VARYING:
            return spread_links(clients)
        counts = _OF_FIVE[self.name] if clients == 5 else _scaled(COMPOSITIONS[self.name], clients)
        return [link for link, count in zip(CLASSES, counts, strict=True) for _ in range(count)]

    def presence(self, seed: int, stops: Mapping[int, float] | None = None) -> Presence:
        """Who is there when; `stops` are the moments from which on clients have no link any more."""
        count = len(self.resolved_links())
        return make_presence(self._availability, self.absences, count, seed=seed, pace=self.pace, stops=stops)

    def sealed(self) -> "FleetSettings":
        """The fleet with what its name means, bound to the content of the files that describe it."""
        own = {trace: trace.sealed() for trace in dict.fromkeys(link.trace for link in self.links or ()) if trace}
        links = self.links and tuple(
            replace(link, trace=own[link.trace]) if link.trace else link for link in self.links
        )
        trace = self._trace and self._trace.sealed()
        return replace(self, links=links, trace=trace, availability=self._availability and self._availability.sealed())

    def rate_scale(self, parameters: int) -> float:
        """The factor on every rate for a model of this size."""
        return parameters / CONV2_PARAMETERS if self.scale == "model" else self.scale


def _scaled(counts: Sequence[int], clients: int) -> list[int]:
    """`counts` in proportion for another number of clients: largest remainder, the faster class first."""
    quotas = [count * clients / sum(counts) for count in counts]
    whole = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(counts)), key=lambda i: (whole[i] - quotas[i], i))
    for i in by_remainder[: clients - sum(whole)]:
        whole[i] += 1
    return whole
