"""The network model: bytes to seconds (section 5 of docs/decisions.md, fitted to the paper's table of IMS costs).

Objects leave the server one after another over one shared uplink; `multicast.py` says which. A client is ready when
its last object has left the server and its own downlink has carried its payload (cut-through); then it computes and
uploads. The network asks only for what decides bytes and noise, a `Shipment`, so times need no task. Rates that vary
are in `traces.py`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from fedgmr.exchange import Shipment
from fedgmr.fleets.links import Link
from fedgmr.fleets.multicast import plan_transmissions
from fedgmr.fleets.presence import Presence
from fedgmr.fleets.sizes import Sizes
from fedgmr.fleets.traces import deal_traces, fit_curves
from fedgmr.seeding import generator

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The network model's constants."""

    sizes: Literal["wire", "paper", "indexed", "linear"] = field(
        default="wire",
        metadata={
            "help": (
                "the exact encoded length of every object; `paper`: the sizes the paper computes with; `indexed`: "
                "8 bytes per value, as its Transformer has them (A41); `linear`: nominal density x `full_size` on "
                "every link, an increment the difference of two densities, no level map"
            )
        },
    )
    full_size: float | None = field(
        default=None,
        metadata={"above": 0, "help": "for `linear`: MiB of the whole model; `null`: 4 bytes per coordinate"},
    )
    sends: Literal["each", "shared"] = field(
        default="each",
        metadata={
            "help": (
                "without IMS every client is sent an object of its own; `shared`: clients that are dispatched "
                "together at one level share one"
            )
        },
    )
    values: Literal["fp32", "fp16", "bf16"] = field(
        default="fp32",
        metadata={
            "help": (
                "format of values in both directions: unchanged, or rounded to `fp16` or `bf16`, in a simulation too"
            )
        },
    )
    server_rate: float = field(
        default=10.0, metadata={"above": 0, "help": "the server's uplink, shared by all downloads, MiB/s"}
    )
    compute_seconds: float = field(
        default=0.5, metadata={"at_least": 0, "help": "virtual seconds of local training per task"}
    )
    noise: float = field(
        default=0.05,
        metadata={
            "at_least": 0,
            "at_most": 10,
            "help": "sigma of the lognormal factor on every client transfer; 0: none",
        },
    )
    noise_on: Literal["times", "rates"] = field(
        default="times",
        metadata={
            "help": (
                "the factor, of mean one, multiplies the transfer's time; `rates`: of median one, it multiplies "
                "the link's rate"
            )
        },
    )
    noise_draws: int = field(default=1, metadata={"at_least": 1, "help": "a factor is the mean of so many draws"})
    server_noise: float = field(
        default=0.0,
        metadata={
            "at_least": 0,
            "at_most": 10,
            "help": "sigma of such a factor on the server's uplink, drawn for each dispatch",
        },
    )
    merge_seconds: float = field(
        default=0.0,
        metadata={
            "at_least": 0,
            "help": "virtual seconds between a merge and the dispatch that follows it; without meaning on real fleets",
        },
    )
    cut_through: bool = field(
        default=True,
        metadata={
            "help": "a client downloads while the server still sends; `false`: only after its last object has left"
        },
    )


@dataclass(frozen=True, kw_only=True)
class Trip:
    """One shipment's way through the network and back."""

    client: int
    ready: float  # when the model is at the client
    computed: float  # when its training is over
    arrival: float  # when the update is at the server, or where the task is lost, when that happens
    down: int
    up: int
    lost: bool = False


class _Object(NamedTuple):
    """An object on its way to a client: when it leaves the server and has left, its last level, its map's bytes."""

    begin: float
    end: float
    last: int
    map_bytes: int


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
        pace: float = 1.0,
    ) -> None:
        """`scale` multiplies every rate, the server's too; traces run `pace` times faster."""
        self.settings, self.links, self.sizes = settings, links, sizes
        self.ims, self.seed, self.scale = ims, seed, scale
        dealt = deal_traces([link.trace for link in links], seed)
        self.rates = [link.mean_rates(pair) for link, pair in zip(links, dealt, strict=True)]  # MiB/s, down and up
        self.curves = [fit_curves(*of, scale=scale, pace=pace) for of in zip(dealt, self.rates, strict=True)]
        self.presence: Presence | None = None  # where transfers and training stand still while clients are away
        self.uplink_free = 0.0
        self.server_bytes = 0
        # By client: the level map it holds, as (version, highest level known).
        self.known_maps: dict[int, tuple[int, int]] = {}
        self.lost: Counter[int] = Counter()  # by client: tasks that were lost, each of which comes again

    def send(self, shipments: Sequence[Shipment], now: float) -> list[Trip]:
        """Send what is dispatched together at `now`."""
        if not shipments:
            return []
        shipments = sorted(shipments, key=lambda shipment: (shipment.level, shipment.client))
        clock = max(now, self.uplink_free)
        rate = self._server_rate(shipments)
        downloads: dict[int, list[_Object]] = {shipment.client: [] for shipment in shipments}
        for transmission in plan_transmissions(shipments, ims=self.ims, shared=self.settings.sends == "shared"):
            receivers, levels = transmission.receivers, transmission.receivers[0].levels
            lacking = [transmission.lacking(receiver, self.known_maps) for receiver in receivers]
            maps = {part: self.sizes.level_map(levels, *part) for part in lacking if part}  # each leaves once
            size = self.sizes.values(levels, *transmission.span) + sum(maps.values())
            self.server_bytes += size
            begin, clock = clock, clock + size / rate
            self.uplink_free = clock
            for receiver, part in zip(receivers, lacking, strict=True):
                sent = _Object(begin, clock, transmission.span[1], maps[part] if part else 0)
                downloads[receiver.client].append(sent)
        trips = [self._trip(shipment, downloads[shipment.client]) for shipment in shipments]
        for shipment in shipments:
            self.known_maps[shipment.client] = (shipment.map_version, shipment.level)
        return trips

    @property
    def varies(self) -> bool:
        """Whether the rate of some link varies in time."""
        return any(curve is not None for pair in self.curves for curve in pair)

    def mean_rates(self, client: int, begin: float, end: float, count: int) -> list[list[float]]:
        """Rates of a link down and up in MiB/s, on average over each of `count` equal parts of a time."""
        step = (end - begin) / count
        parts = [(begin + part * step, begin + (part + 1) * step) for part in range(count)]
        both = zip(self.curves[client], self.rates[client], strict=True)
        return [
            [rate * self.scale if curve is None else curve.carried(*part) / step for part in parts]
            for curve, rate in both
        ]

    @property
    def stops(self) -> dict[int, float]:
        """By client: the moment from which on its link carries nothing any more, one way or the other."""
        ends = [min((curve.over for curve in pair if curve), default=math.inf) for pair in self.curves]
        return {client: end for client, end in enumerate(ends) if end < math.inf}

    def training_seconds(self, client: int) -> float:
        """Seconds that the local training of a task takes."""
        own = self.links[client].compute_seconds
        return self.settings.compute_seconds if own is None else own

    def _trip(self, shipment: Shipment, download: Sequence[_Object]) -> Trip:
        client, left = shipment.client, download[-1].end
        cuts = [sent.last for sent in download]
        down = self.sizes.download(shipment.levels, cuts) + sum(sent.map_bytes for sent in download)
        up = self.sizes.update(shipment.levels, shipment.level)
        noise_down, noise_up = self._factors("network", shipment, self.settings.noise, 2)
        begin = download[0].begin if self.settings.cut_through else left
        ready = max(left, self._carried(client, 0, begin, down, noise_down))
        computed = self._passed(client, ready, self.training_seconds(client))
        arrival = self._carried(client, 1, computed, up, noise_up)
        return Trip(client=client, ready=ready, computed=computed, arrival=arrival, down=down, up=up)

    def _carried(self, client: int, direction: int, begin: float, size: int, noise: float) -> float:
        """The moment at which a client's link has carried so many bytes from `begin` on; direction 0 is down, 1 up."""
        curve = self.curves[client][direction]
        if curve is None:
            return self._passed(client, begin, size / (self.rates[client][direction] * MIB * self.scale) * noise)
        if self.presence is None:
            return curve.finish(begin, size * noise / MIB)
        return self.presence.finish(client, begin, size * noise / MIB, curve)

    def _passed(self, client: int, begin: float, seconds: float) -> float:
        """The moment at which so many seconds of a client's time have passed."""
        return begin + seconds if self.presence is None else self.presence.finish(client, begin, seconds)

    def _server_rate(self, shipments: Sequence[Shipment]) -> float:
        """Bytes per second of the uplink; its noise has the name of a shipment of the dispatch."""
        named = min(shipments, key=lambda shipment: shipment.client)
        (factor,) = self._factors("uplink", named, self.settings.server_noise, 1)
        return self.settings.server_rate * MIB * self.scale / factor

    def _factors(self, purpose: str, shipment: Shipment, sigma: float, count: int) -> list[float]:
        """Factors on times; with the same ones a task that was lost would take as long again, and be lost again."""
        if sigma == 0:
            return [1.0] * count
        lost = self.lost[shipment.client]
        generated = generator(self.seed, purpose, shipment.client, shipment.first_batch, *([lost] if lost else []))
        draws = sigma * generated.standard_normal((count, self.settings.noise_draws))
        on_rates = self.settings.noise_on == "rates"
        factors = 1 / np.exp(draws).mean(axis=1) if on_rates else np.exp(draws - sigma**2 / 2).mean(axis=1)
        return [float(factor) for factor in factors]
