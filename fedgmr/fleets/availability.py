"""Availability: when clients are there, from a file, by day and night, and without the absences of the recipe.

Each kind deals gaps to clients by the seed; clients with the same device share its gaps. A client that is away takes no
new task. Read next: `presence.py`, which keeps who is there; `availability_files.py`, which reads the files.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from fedgmr.fleets.availability_files import read_devices
from fedgmr.fleets.given_files import digest_content, read_given
from fedgmr.fleets.presence import Gaps, Presence
from fedgmr.seeding import generator
from fedgmr.settings.build import settle

_HOUR = 3600.0
_KEY = "fleet.availability.path"


class Availability(Protocol):
    """When each client of a fleet is there."""

    kind: ClassVar[str]

    def gaps(self, clients: int, *, seed: int, pace: float) -> Mapping[int, Gaps]:
        """The gaps of every client that has any, `pace` times as fast."""

    def sealed(self) -> "Availability":
        """The same, bound to the content of the files that it needs."""
        return self


@dataclass(frozen=True, kw_only=True)
class Absence:
    """Clients that are away between two moments."""

    clients: tuple[int, ...] = field(metadata={"at_least": 0, "help": "client numbers, from 0"})
    start: float = field(metadata={"at_least": 0, "help": "from this second on"})
    end: float = field(metadata={"above": 0, "help": "until this second"})
    every: float | None = field(
        default=None, metadata={"above": 0, "help": "repeats with this period in seconds, at least `end`; `null`: once"}
    )

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ValueError(f"end is {self.end}: give a moment after start ({self.start}).")
        if self.every is not None and self.every < self.end:
            raise ValueError(f"every is {self.every}: give a period of at least end ({self.end}).")

    @property
    def gaps(self) -> Gaps:
        """The absence, for every one of its clients."""
        return Gaps(edges=(self.start, self.end), period=math.inf if self.every is None else self.every)


@dataclass(frozen=True, kw_only=True)
class FileAvailability(Availability):
    """Devices of a file, which says when they are there."""

    kind: ClassVar[str] = "file"
    path: str = field(
        metadata={
            "help": (
                "lines `client on off` in seconds, the same as CSV with this header, or FedScale's devices as "
                "JSON; looked for under `FEDGMR_DATA`, then from the working directory"
            )
        }
    )
    every: float | None = field(
        default=None,
        metadata={
            "above": 0,
            "help": (
                "seconds after which the times come again; `null`: a device's `finish_time`, or else never, and "
                "it is away after its last line"
            ),
        },
    )
    digest: str | None = field(
        default=None,
        metadata={
            "help": "checksum of the file's content; a run fills it in, and a resume with another content is refused"
        },
    )

    def sealed(self) -> "FileAvailability":
        """The same with the digest of the file."""
        return self if self.digest is not None else replace(self, digest=digest_content(read_given(self.path, _KEY)))

    def gaps(self, clients: int, *, seed: int, pace: float) -> Mapping[int, Gaps]:
        """Client n has device n where the devices have these numbers; else each is dealt once before any comes twice.

        Raises:
            SettingError: the file cannot be read or understood, or is not the one that the run began with.
        """
        devices = read_devices(read_given(self.path, _KEY, self.digest), f"{_KEY} is {self.path!r}", self.every)
        shared = {
            name: Gaps(edges=tuple(edge / pace for edge in found.edges), period=found.period / pace)
            for name, found in devices.items()
        }
        names = [str(client) for client in range(clients)]
        if devices.keys() != set(names):
            rounds = range(math.ceil(clients / len(devices)))
            turns = [generator(seed, "availability", number).permutation(len(devices)) for number in rounds]
            known = list(devices)
            names = [known[int(index)] for turn in turns for index in turn][:clients]
        return {client: shared[name] for client, name in enumerate(names) if shared[name].edges}


@dataclass(frozen=True, kw_only=True)
class DayNight(Availability):
    """Everybody is away at night; nights begin at different hours."""

    kind: ClassVar[str] = "day_night"
    night: float = field(default=8.0, metadata={"above": 0, "help": "hours of a day in which a client is away"})
    spread: float = field(
        default=4.0,
        metadata={"at_least": 0, "help": "hours over which the clients' nights begin; 24: all round the clock"},
    )
    day: float = field(default=24.0, metadata={"above": 0, "help": "hours of a day"})

    def __post_init__(self) -> None:
        settle(self)
        if self.night >= self.day:
            raise ValueError(f"night is {self.night}: give less than day ({self.day}).")

    def gaps(self, clients: int, *, seed: int, pace: float) -> Mapping[int, Gaps]:
        """The run begins in the morning: nobody's first night ends later than day hours on, or sooner by `spread`."""
        hour = _HOUR / pace
        shared = Gaps(edges=(0.0, self.night * hour), period=self.day * hour)
        sooner = generator(seed, "night").random(clients) * self.spread
        begins = [(self.day - self.night - float(hours)) % self.day for hours in sooner]
        return {
            client: replace(shared, shift=(self.day - begin) * hour % shared.period)
            for client, begin in enumerate(begins)
        }


def make_presence(
    availability: Availability | None,
    absences: Sequence[Absence],
    clients: int,
    *,
    seed: int,
    pace: float = 1.0,
    stops: Mapping[int, float] | None = None,
) -> Presence:
    """Who of so many clients is there when: an absence adds to what the availability says, in its own seconds.

    A client for which `stops` has a moment is away from then on.
    """
    gaps: dict[int, list[Gaps]] = defaultdict(list)
    if availability is not None:
        for client, found in availability.gaps(clients, seed=seed, pace=pace).items():
            gaps[client].append(found)
    for absence in absences:
        own = absence.gaps
        for client in dict.fromkeys(absence.clients):
            gaps[client].append(own)
    for client, stop in (stops or {}).items():
        gaps[client].append(Gaps(edges=(stop, math.inf)))
    return Presence(gaps)
