"""The network model: bytes to seconds (section 5 of docs/decisions.md, fitted to the paper's table of IMS costs).

Objects leave the server one after another over one shared uplink. With IMS there is one object per gap between
neighbouring levels in use among the clients dispatched together, without it one per client. A client is ready when
its last object has left the server and its own downlink has carried its payload (cut-through); then it computes and
uploads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from fedgmr.exchange import ClientTask
from fedgmr.seeding import generator
from fedgmr.submodels.levels import LevelMap
from fedgmr.wire import ValueType, map_bytes, update_bytes, values_bytes

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Link:
    """A client's connection, in MiB/s."""

    down: float = field(metadata={"above": 0, "help": "download, MiB/s"})
    up: float = field(metadata={"above": 0, "help": "upload, MiB/s"})
    density: float | None = field(
        default=None,
        metadata={"above": 0, "at_most": 1, "help": "preset density; none: from fleet.densities"},
    )
    compute_seconds: float | None = field(
        default=None, metadata={"at_least": 0, "help": "local training time; none: network.compute_seconds"}
    )


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The network model's constants."""

    sizes: Literal["wire", "paper", "indexed"] = field(
        default="wire",
        metadata={
            "help": "exact encoded length; paper: the sizes of the paper (section 5.2); "
            "indexed: 8 bytes per value, which is what the paper's Transformer has (A41)"
        },
    )
    values: Literal["fp32", "fp16", "bf16"] = field(
        default="fp32", metadata={"help": "how values travel: as they are, or rounded to 16 bits (sizes: wire only)"}
    )
    server_rate: float = field(default=10.0, metadata={"above": 0, "help": "the server's shared uplink, MiB/s"})
    compute_seconds: float = field(default=0.5, metadata={"at_least": 0, "help": "local training time of a task"})
    noise: float = field(
        default=0.05,
        metadata={"at_least": 0, "at_most": 10, "help": "sigma of the mean-one lognormal on every client transfer"},
    )
    cut_through: bool = field(
        default=True,
        metadata={"help": "false: a client's download starts when the server has sent its last object"},
    )


class Sizes(Protocol):
    """Bytes of the objects that cross the network."""

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        """Object with the values of levels first..last, as the server sends it."""
        ...

    def level_map(self, levels: LevelMap, first: int, last: int) -> int:
        """The level map's part for levels first..last."""
        ...

    def download(self, levels: LevelMap, cuts: Sequence[int]) -> int:
        """Values on a client's downlink when they come as one object per entry of `cuts`, the objects' last levels."""
        ...

    def update(self, levels: LevelMap, level: int) -> int:
        """What a client at `level` uploads."""
        ...


@dataclass(frozen=True, kw_only=True)
class WireSizes:
    """The exact encoded length of `fedgmr.wire`."""

    buffers: int
    per_width: bool = False  # the model's buffers travel once per level
    value_type: ValueType = ValueType.FP32

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        """Values of the increments; model buffers travel with level 0."""
        count = sum(levels.increments[first : last + 1])
        blocks = len(levels.ladder) if self.per_width else 1
        return values_bytes(count, blocks * self.buffers if first == 0 else 0, self.value_type)

    def level_map(self, levels: LevelMap, first: int, last: int) -> int:
        """Entropy-coded membership; nothing where a client can work it out."""
        if levels.implied:
            return 0
        return map_bytes(levels.increments, total=len(levels), first=first, last=last)

    def download(self, levels: LevelMap, cuts: Sequence[int]) -> int:
        """All objects."""
        firsts = [0, *(cut + 1 for cut in cuts[:-1])]
        return sum(self.values(levels, first, last) for first, last in zip(firsts, cuts, strict=True))

    def update(self, levels: LevelMap, level: int) -> int:
        """Values only."""
        blocks = level + 1 if self.per_width else 1
        return update_bytes(levels.sizes[level], blocks * self.buffers, self.value_type)


@dataclass(frozen=True, kw_only=True)
class PaperSizes:
    """Section 5.2: values + one bit per weight + dense parameters on the server's link, density × full on others."""

    weights: int  # prunable coordinates
    dense: int  # always-kept coordinates

    @property
    def full(self) -> float:
        """Bytes of the full model in the paper's sparse format."""
        return 4 * self.weights + self.weights / 8 + 4 * self.dense

    def _density(self, levels: LevelMap, first: int, last: int) -> float:
        kept = levels.sizes[last] - (levels.sizes[first - 1] if first else 0)
        # Rankings without always-kept coordinates count densities on everything.
        return min(1.0, (kept - (self.dense if first == 0 else 0)) / self.weights)

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        """Every object carries its own bitmap and the dense parameters."""
        return round(4 * self._density(levels, first, last) * self.weights + self.weights / 8 + 4 * self.dense)

    def level_map(self, levels: LevelMap, first: int, last: int) -> int:
        """In the object already."""
        return 0

    def download(self, levels: LevelMap, cuts: Sequence[int]) -> int:
        """Density × full size, however many objects."""
        return self.update(levels, cuts[-1])

    def update(self, levels: LevelMap, level: int) -> int:
        """Density × full size."""
        return round(self._density(levels, 0, level) * self.full)


@dataclass(frozen=True, kw_only=True)
class IndexedSizes:
    """A41: a 4-byte value and a 4-byte index per coordinate, on every link."""

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        """The coordinates of the increments."""
        return 8 * sum(levels.increments[first : last + 1])

    def level_map(self, levels: LevelMap, first: int, last: int) -> int:
        """In the indices already."""
        return 0

    def download(self, levels: LevelMap, cuts: Sequence[int]) -> int:
        """The sub-model, however many objects."""
        return self.update(levels, cuts[-1])

    def update(self, levels: LevelMap, level: int) -> int:
        """The sub-model."""
        return 8 * levels.sizes[level]


@dataclass(frozen=True, kw_only=True)
class Trip:
    """One task's way through the network."""

    client: int
    arrival: float  # when the update is at the server
    down: int
    up: int


class Network:
    """Links, the shared uplink and its queue; arrival times depend on sizes and named noise, never on training."""

    def __init__(
        self,
        settings: NetworkSettings,
        links: Sequence[Link],
        sizes: Sizes,
        *,
        ims: bool,
        seed: int,
        scale: float = 1.0,
    ) -> None:
        """`scale` multiplies every rate, the server's too."""
        self.settings, self.links, self.sizes = settings, links, sizes
        self.ims, self.seed, self.scale = ims, seed, scale
        self.uplink_free = 0.0
        self.server_bytes = 0
        # By client: the level map it holds, as (version, highest level known).
        self.known_maps: dict[int, tuple[int, int]] = {}

    def send(self, tasks: Sequence[ClientTask], now: float) -> list[Trip]:
        """Send the tasks dispatched together at `now`."""
        tasks = sorted(tasks, key=lambda task: (task.level, task.client))
        begin = max(now, self.uplink_free)
        departures = self._multicast(tasks, begin) if self.ims else self._unicast(tasks, begin)
        trips = [self._trip(task, *departure) for task, departure in zip(tasks, departures, strict=True)]
        for task in tasks:
            self.known_maps[task.client] = (task.map_version, task.level)
        return trips

    def training_seconds(self, client: int) -> float:
        """What a task's local training takes."""
        own = self.links[client].compute_seconds
        return self.settings.compute_seconds if own is None else own

    def _multicast(self, tasks: Sequence[ClientTask], begin: float) -> list[tuple[float, float, int]]:
        """(first byte leaves, last has left, bytes to download) per task; one object per gap between levels in use."""
        cuts = sorted({task.level for task in tasks})
        gaps = list(zip([0, *(cut + 1 for cut in cuts[:-1])], cuts, strict=True)) if cuts else []
        left: dict[int, float] = {}
        clock = begin
        for first, level in gaps:
            receivers = [task for task in tasks if task.level >= level]
            level_map = max(self._map_needed(task, first, level) for task in receivers)
            clock = self._transmit(clock, self.sizes.values(receivers[0].levels, first, level) + level_map)
            left[level] = clock
        departures = []
        for task in tasks:
            values = self.sizes.download(task.levels, [cut for cut in cuts if cut <= task.level])
            level_map = sum(self._map_needed(task, first, last) for first, last in gaps if last <= task.level)
            departures.append((begin, left[task.level], values + level_map))
        return departures

    def _unicast(self, tasks: Sequence[ClientTask], begin: float) -> list[tuple[float, float, int]]:
        departures, clock = [], begin
        for task in tasks:
            start, level_map = clock, self._map_needed(task, 0, task.level)
            clock = self._transmit(clock, self.sizes.values(task.levels, 0, task.level) + level_map)
            departures.append((start, clock, self.sizes.download(task.levels, [task.level]) + level_map))
        return departures

    def _transmit(self, start: float, size: int) -> float:
        self.server_bytes += size
        self.uplink_free = start + size / (self.settings.server_rate * MIB * self.scale)
        return self.uplink_free

    def _map_needed(self, task: ClientTask, first: int, last: int) -> int:
        """Bytes of level map the client lacks among the parts first..last."""
        version, known = self.known_maps.get(task.client, (-1, -1))
        if version == task.map_version:
            first = max(first, known + 1)
        return self.sizes.level_map(task.levels, first, last) if first <= last else 0

    def _trip(self, task: ClientTask, first_byte: float, last_byte: float, down: int) -> Trip:
        link = self.links[task.client]
        up = self.sizes.update(task.levels, task.level)
        noise_down, noise_up = self._noise(task)
        download = down / (link.down * MIB * self.scale) * noise_down
        ready = max(last_byte, first_byte + download) if self.settings.cut_through else last_byte + download
        arrival = ready + self.training_seconds(task.client) + up / (link.up * MIB * self.scale) * noise_up
        return Trip(client=task.client, arrival=arrival, down=down, up=up)

    def _noise(self, task: ClientTask) -> tuple[float, float]:
        sigma = self.settings.noise
        if sigma == 0:
            return 1.0, 1.0
        draws = generator(self.seed, "network", task.client, task.first_batch).standard_normal(2)
        down, up = np.exp(sigma * draws - sigma**2 / 2)
        return float(down), float(up)
