"""Bytes to seconds: trips by hand, the queue on the uplink, and the sizes of what travels."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmr.exchange import Shipment
from fedgmr.fleets.curves import Curve
from fedgmr.fleets.links import Link, steady_links
from fedgmr.fleets.network import MIB, Network, NetworkSettings, Trip
from fedgmr.fleets.presence import Gaps, Presence
from fedgmr.fleets.sizes import IndexedSizes, LinearSizes, PaperSizes, WireSizes
from fedgmr.seeding import generator
from fedgmr.submodels.levels import LevelMap
from fedgmr.wire import Stamp, ValueType, encode_map, encode_update, encode_values

LADDER = (0.25, 0.5, 1.0)
LEVELS = LevelMap(torch.tensor([0, 1, 2], dtype=torch.uint8), LADDER)


class RoundSizes:
    """Increments of 2, 4 and 8 MiB; a part of a level map is 1 MiB; an update is as long as its values."""

    INCREMENTS = (2, 4, 8)

    def values(self, levels: LevelMap, first: int, last: int) -> int:
        return MIB * sum(self.INCREMENTS[first : last + 1])

    def level_map(self, levels: LevelMap, first: int, last: int) -> int:
        return MIB * (last - first + 1)

    def download(self, levels: LevelMap, cuts: Sequence[int]) -> int:
        return self.values(levels, 0, cuts[-1])

    def update(self, levels: LevelMap, level: int) -> int:
        return self.values(levels, 0, level)


def task(client: int, level: int, *, map_version: int = 0, first_batch: int = 0) -> Shipment:
    return Shipment(client=client, level=level, levels=LEVELS, map_version=map_version, first_batch=first_batch)


LINKS = (
    Link(down=1.0, up=4.0),
    Link(down=4.0, up=3.0, compute_seconds=1.0),
    Link(down=0.5, up=6.0),
)
TASKS = (task(0, 0), task(1, 1), task(2, 1))


def network(
    *,
    ims: bool,
    cut_through: bool = True,
    noise: float = 0.0,
    scale: float = 1.0,
    links: Sequence[Link] = LINKS,
    known: bool = True,
    seed: int = 0,
    **settings: Any,
) -> Network:
    """A server that sends 2 MiB/s; clients that know the level map already unless told otherwise."""
    settings = {"server_rate": 2.0, "compute_seconds": 0.5, "noise": noise, "cut_through": cut_through, **settings}
    made = Network(NetworkSettings(**settings), links, RoundSizes(), ims=ims, seed=seed, scale=scale)
    if known:
        made.known_maps = dict.fromkeys(range(len(links)), (0, 2))
    return made


def arrivals(trips: Sequence[Trip]) -> list[float]:
    return [trip.arrival for trip in sorted(trips, key=lambda trip: trip.client)]


def test_with_ims_each_increment_leaves_once() -> None:
    net = network(ims=True)
    trips = net.send(TASKS, 0.0)
    # Increment 0 has left at 1 s, increment 1 at 3 s.
    # client 0: 2 MiB at 1 MiB/s until 2; 0.5 s of training; 2 MiB up at 4 MiB/s
    # client 1: 6 MiB at 4 MiB/s until 1.5, but the last object leaves at 3; 1 s; 6 MiB up at 3 MiB/s
    # client 2: 6 MiB at 0.5 MiB/s until 12; 0.5 s; 6 MiB up at 6 MiB/s
    assert arrivals(trips) == [2 + 0.5 + 0.5, 3 + 1 + 2, 12 + 0.5 + 1]
    assert net.server_bytes == 6 * MIB
    assert net.uplink_free == 3.0
    assert {(t.client, t.down, t.up) for t in trips} == {
        (0, 2 * MIB, 2 * MIB),
        (1, 6 * MIB, 6 * MIB),
        (2, 6 * MIB, 6 * MIB),
    }


def test_without_ims_each_client_is_sent_its_own() -> None:
    net = network(ims=False)
    trips = net.send(TASKS[::-1], 0.0)
    assert [trip.client for trip in trips] == [0, 1, 2], "small ones first, then by number"
    # 2 MiB leave until 1, 6 MiB until 4, 6 MiB until 7; client 2's download runs from 4 to 16.
    assert arrivals(trips) == [2 + 0.5 + 0.5, 4 + 1 + 2, 16 + 0.5 + 1]
    assert net.server_bytes == 14 * MIB
    assert net.uplink_free == 7.0


def test_a_shared_send_reaches_all_clients_of_a_level() -> None:
    net = network(ims=False, sends="shared")
    # 2 MiB leave until 1, 6 MiB for clients 1 and 2 until 4; client 2's download runs from 1 to 13.
    assert arrivals(net.send(TASKS, 0.0)) == [2 + 0.5 + 0.5, 4 + 1 + 2, 13 + 0.5 + 1]
    assert net.server_bytes == 8 * MIB


def test_store_and_forward_downloads_after_the_last_object_has_left() -> None:
    assert arrivals(network(ims=True, cut_through=False).send(TASKS, 0.0)) == [
        1 + 2 + 0.5 + 0.5,
        3 + 1.5 + 1 + 2,
        3 + 12 + 0.5 + 1,
    ]
    assert arrivals(network(ims=False, cut_through=False).send(TASKS, 0.0)) == [
        1 + 2 + 0.5 + 0.5,
        4 + 1.5 + 1 + 2,
        7 + 12 + 0.5 + 1,
    ]


def test_ims_sends_one_object_per_gap_between_levels_in_use() -> None:
    net = network(ims=True, links=[Link(down=100.0, up=100.0, compute_seconds=0.0)] * 2)
    trips = net.send([task(0, 0), task(1, 2)], 0.0)
    # 2 MiB, then 4 + 8 MiB in one object; uploads of 2 and 14 MiB at 100 MiB/s
    assert arrivals(trips) == [1 + 0.02, 7 + 0.14]


@pytest.mark.parametrize("ims", [True, False])
def test_a_later_dispatch_queues_behind_the_first(ims: bool) -> None:
    net = network(ims=ims)
    net.send([task(1, 1)], 0.0)
    assert net.uplink_free == 3.0
    # Dispatched at 1, it begins to leave at 3, has left at 4; downloaded from 3 to 5.
    assert arrivals(net.send([task(0, 0)], 1.0)) == [5 + 0.5 + 0.5]
    assert net.uplink_free == 4.0
    # After a pause there is no queue.
    assert arrivals(net.send([task(0, 0)], 10.0)) == [12 + 0.5 + 0.5]
    assert net.uplink_free == 11.0
    assert net.send([], 20.0) == []
    assert net.uplink_free == 11.0


def bytes_down(net: Network, *tasks: Shipment) -> list[int]:
    """MiB on each client's downlink, and on the server's uplink at last."""
    before = net.server_bytes
    down = [trip.down for trip in sorted(net.send(tasks, 0.0), key=lambda trip: trip.client)]
    return [n // MIB for n in (*down, net.server_bytes - before)]


@pytest.mark.parametrize("ims", [True, False])
def test_the_level_map_is_charged_when_it_is_new(ims: bool) -> None:
    net = network(ims=ims, known=False)
    assert bytes_down(net, task(0, 0)) == [2 + 1, 2 + 1]
    assert bytes_down(net, task(0, 0)) == [2, 2], "known already"
    assert bytes_down(net, task(0, 2)) == [14 + 2, 14 + 2], "two levels up: two parts"
    assert bytes_down(net, task(0, 2)) == [14, 14]
    assert bytes_down(net, task(0, 2, map_version=1)) == [14 + 3, 14 + 3], "a new map: all parts"
    assert bytes_down(net, task(0, 2, map_version=1)) == [14, 14]


def test_with_ims_the_map_travels_if_anybody_lacks_it() -> None:
    net = network(ims=True, known=False)
    net.send([task(0, 1)], 0.0)
    # Client 0 knows parts 0 and 1, client 1 nothing: only the latter downloads them, the server sends each once.
    assert bytes_down(net, task(0, 1), task(1, 1)) == [6, 6 + 2, 6 + 2]
    assert bytes_down(net, task(0, 1), task(1, 2)) == [6, 14 + 1, 14 + 1]


def test_different_parts_of_a_map_are_different_objects() -> None:
    net = network(ims=True, known=False, links=[LINKS[0]] * 3)
    net.known_maps = {0: (0, 0), 1: (0, 1)}
    # Client 0 lacks parts 1 and 2, client 1 part 2, client 2 all three: 2, 1 and 3 MiB leave beside the 14 of values.
    assert bytes_down(net, task(0, 2), task(1, 2), task(2, 2)) == [14 + 2, 14 + 1, 14 + 3, 14 + 6]
    assert net.uplink_free == 10.0


def test_map_bytes_take_time() -> None:
    net = network(ims=False, known=False)
    # 3 MiB leave until 1.5 and are downloaded at 1 MiB/s until 3.
    assert arrivals(net.send([task(0, 0)], 0.0)) == [3 + 0.5 + 0.5]


def test_scale_multiplies_every_rate_but_not_the_training() -> None:
    fast = arrivals(network(ims=True, scale=2.0).send(TASKS, 0.0))
    assert fast == [(2 + 0.5) / 2 + 0.5, (3 + 2) / 2 + 1, (12 + 1) / 2 + 0.5]


def test_noise_belongs_to_client_and_batch() -> None:
    def arrival(client: int, first_batch: int, seed: int = 0) -> float:
        net = network(ims=False, noise=0.5, links=[LINKS[0]] * 3, seed=seed)
        return net.send([task(client, 0, first_batch=first_batch)], 0.0)[0].arrival

    assert arrival(1, 10) == arrival(1, 10)
    assert len({arrival(1, 10), arrival(2, 10), arrival(1, 15), arrival(1, 10, seed=1)}) == 4

    def together(*clients: int) -> dict[int, float]:
        net = network(ims=True, noise=0.5, links=[LINKS[0]] * 3)
        return {trip.client: trip.arrival for trip in net.send([task(c, 0) for c in clients], 0.0)}

    assert together(0, 1, 2)[1] == together(1)[1], "whoever else is sent something"


def test_noise_has_mean_one_on_download_and_upload() -> None:
    net = network(ims=False, noise=0.5, cut_through=False, links=[Link(down=1.0, up=1.0, compute_seconds=0.0)])
    ups, downs = [], []
    for n in range(3000):
        begin = net.uplink_free
        (trip,) = net.send([task(0, 0, first_batch=n)], 0.0)
        both = (trip.arrival - begin - 1.0) / 2.0  # 1 s on the uplink, then 2 MiB each way at 1 MiB/s
        down, up = net._factors("network", task(0, 0, first_batch=n), 0.5, 2)
        assert both == pytest.approx(down + up)
        downs.append(down)
        ups.append(up)
    for noise in (np.array(downs), np.array(ups)):
        assert noise.mean() == pytest.approx(1.0, abs=0.03)  # without its correction the mean would be 1.133
        assert np.log(noise).std() == pytest.approx(0.5, abs=0.03)
    assert abs(np.corrcoef(downs, ups)[0, 1]) < 0.06


def test_noise_on_rates_is_the_mean_of_draws() -> None:
    net = network(ims=False, noise=0.3, noise_on="rates", noise_draws=20)
    factors = 1 / np.array([net._factors("network", task(0, 0, first_batch=n), 0.3, 2) for n in range(3000)])
    # exp(0.3^2 / 2) = 1.046; a draw deviates by 1.046 x sqrt(exp(0.09) - 1) = 0.321, the mean of twenty by 0.072.
    assert factors.mean() == pytest.approx(1.046, abs=0.003)
    assert factors.std() == pytest.approx(0.072, abs=0.002)
    single = network(ims=False, noise_on="rates")._factors("network", task(0, 0), 0.3, 2)
    timed = network(ims=False)._factors("network", task(0, 0), 0.3, 2)  # the same normal draw z: exp(0.3 z - 0.045)
    assert np.multiply(single, timed) == pytest.approx(np.exp(-0.045))  # and exp(-0.3 z) is of the other sign


def test_the_servers_noise_belongs_to_a_dispatch() -> None:
    def busy(*tasks: Shipment, **settings: Any) -> float:
        net = network(ims=True, server_noise=0.1, noise_on="rates", **settings)
        net.send(tasks, 0.0)
        return net.uplink_free

    assert busy(task(0, 0)) != 1.0, "2 MiB at 2 MiB/s and noise"
    assert busy(task(0, 1)) == pytest.approx(3 * busy(task(0, 0))), "one factor for all objects of a dispatch"
    assert busy(task(0, 0), task(1, 0)) == busy(task(0, 0)) != busy(task(1, 0))
    assert busy(task(0, 0, first_batch=5)) != busy(task(0, 0))
    rates = [1 / busy(task(0, 0, first_batch=n), noise_draws=20) for n in range(1000)]
    assert np.mean(rates) == pytest.approx(np.exp(0.005), abs=0.002)
    assert np.std(rates) == pytest.approx(0.1008 / np.sqrt(20), rel=0.1)


def test_a_transfer_that_is_repeated_has_noise_of_its_own() -> None:
    def sent(lost: int, client: int = 0) -> tuple[float, float]:
        net = network(ims=True, noise=0.3, server_noise=0.1)
        net.lost[0] = lost
        return net.send([task(client, 0, first_batch=5)], 0.0)[0].arrival, net.uplink_free

    assert len({moment for lost in range(3) for moment in sent(lost)}) == 6
    assert sent(1) == sent(1)
    assert sent(1, client=1) == sent(0, client=1), "the other clients' stays"


WEIGHTS, DENSE = 6_601_504, 2_206
PAPER = (0.05, 0.1, 0.2, 0.5, 1.0)


@pytest.fixture(scope="module")
def conv2() -> LevelMap:
    counts = [DENSE + int(density * WEIGHTS + 0.5) for density in PAPER]
    levels = np.searchsorted(counts, np.arange(WEIGHTS + DENSE), side="right").astype(np.uint8)
    return LevelMap(torch.from_numpy(levels), PAPER)


def test_paper_sizes_of_conv2(conv2: LevelMap) -> None:
    sizes = PaperSizes(weights=WEIGHTS, dense=DENSE)
    assert sizes.full / MIB == pytest.approx(25.98, rel=1e-3)
    assert sizes.full == 26_406_016 + 825_188 + 8_824  # values, one bit per weight, biases
    for last, density in enumerate(PAPER):
        assert sizes.values(conv2, 0, last) / MIB == pytest.approx(25.183 * density + 0.795, rel=1e-3)
        assert sizes.update(conv2, last) / MIB == pytest.approx(density * 25.98, rel=1e-3)
        assert sizes.download(conv2, [0, last]) == sizes.update(conv2, last)
        assert sizes.level_map(conv2, 0, last) == 0
    for first, last in itertools.combinations(range(1, 5), 2):
        gap = PAPER[last] - PAPER[first - 1]
        assert sizes.values(conv2, first, last) / MIB == pytest.approx(25.183 * gap + 0.795, rel=1e-3)


def test_paper_sizes_of_a_full_model() -> None:
    sizes = PaperSizes(weights=800, dense=20)
    levels = LevelMap.full(820)
    assert sizes.values(levels, 0, 0) == sizes.update(levels, 0) == 3200 + 100 + 80


def test_paper_sizes_where_parameters_that_are_always_kept_come_late() -> None:
    # 10 of 820 coordinates, then the other 810, of which no more than 800 are weights.
    sizes = PaperSizes(weights=800, dense=20)
    levels = LevelMap(torch.tensor([0] * 10 + [1] * 810, dtype=torch.uint8), (0.01, 1.0))
    assert sizes.values(levels, 1, 1) == 3200 + 100 + 80


def test_values_with_indices() -> None:
    # Increments of 3, 2 and 5 coordinates, 8 bytes each.
    levels = LevelMap(torch.tensor([0, 1, 2, 0, 2, 2, 1, 0, 2, 2], dtype=torch.uint8), (0.2, 0.5, 1.0))
    sizes = IndexedSizes()
    assert [sizes.values(levels, first, last) for first, last in ((0, 0), (1, 1), (2, 2), (0, 2))] == [24, 16, 40, 80]
    assert sizes.level_map(levels, 0, 2) == 0
    assert sizes.download(levels, [0, 1]) == sizes.update(levels, 1) == 40
    # The paper's 17.26 MB.
    whole = IndexedSizes().update(LevelMap.full(2_156_928), 0)
    assert whole == 17_255_424


def test_linear_sizes_are_shares_of_the_full_size(conv2: LevelMap) -> None:
    sizes = LinearSizes(full=1000.0)
    assert [sizes.update(conv2, level) for level in range(5)] == [50, 100, 200, 500, 1000]
    assert [sizes.values(conv2, *span) for span in ((0, 0), (1, 1), (1, 3), (0, 4))] == [50, 50, 450, 1000]
    assert sizes.download(conv2, [0, 2]) == 200
    assert sizes.level_map(conv2, 0, 4) == 0


def test_the_round_of_the_papers_table(conv2: LevelMap) -> None:
    """Section 5.2 without noise: High with ten clients, one multicast; then one send per client."""
    links = [Link(down=20 * d, up=5 * d) for d in (1, 0.5, 0.2, 0.1, *[0.05] * 6)]
    settings = NetworkSettings(noise=0.0, sizes="paper")
    tasks = [
        Shipment(
            client=client,
            level=level,
            levels=conv2,
            map_version=0,
            first_batch=0,
        )
        for client, level in enumerate([4, 3, 2, 1, *[0] * 6])
    ]
    seconds = {}
    for ims in (True, False):
        net = Network(settings, links, PaperSizes(weights=WEIGHTS, dense=DENSE), ims=ims, seed=0)
        seconds[ims] = max(trip.arrival for trip in net.send(tasks, 0.0))
    upload = 25.978 / 5
    # Every client needs 25.978/5 s to upload; the full client is served last: five objects, or ten.
    assert seconds[True] == pytest.approx((25.183 + 5 * 0.795) / 10 + 0.5 + upload, rel=1e-3)
    assert seconds[False] == pytest.approx((25.183 * 2.1 + 10 * 0.795) / 10 + 0.5 + upload, rel=1e-3)


@pytest.mark.parametrize("value_type", list(ValueType))
@pytest.mark.parametrize("buffers", [0, 3])
def test_wire_sizes_are_encoded_lengths(value_type: ValueType, buffers: int) -> None:
    scores = torch.sin(torch.arange(500.0))
    always = torch.zeros(500, dtype=torch.bool)
    always[::50] = True
    levels = LevelMap.from_scores(scores, PAPER, always)
    sizes = WireSizes(buffers=buffers, value_type=value_type)
    packed = levels.pack(torch.linspace(-1, 1, 500), 4).numpy()
    extra = np.ones(buffers, np.float32)
    stamp = Stamp(run=1, client=0, version=2, map_version=3)
    starts = [0, *levels.sizes]
    for first, last in itertools.combinations_with_replacement(range(5), 2):
        values = encode_values(
            packed[starts[first] : starts[last + 1]],
            stamp=stamp,
            first=first,
            last=last,
            value_type=value_type,
            buffers=extra if first == 0 and buffers else None,
        )
        assert sizes.values(levels, first, last) == len(values)
        part = encode_map(levels.levels.numpy(), stamp=stamp, first=first, last=last)
        assert sizes.level_map(levels, first, last) == len(part)
    for level in range(5):
        update = encode_update(
            packed[: levels.sizes[level]],
            stamp=stamp,
            last=level,
            value_type=value_type,
            buffers=extra if buffers else None,
        )
        assert sizes.update(levels, level) == len(update)
    # In one object, or in three: each has its own header.
    assert sizes.download(levels, [4]) == sizes.values(levels, 0, 4)
    split = sizes.values(levels, 0, 1) + sizes.values(levels, 2, 2) + sizes.values(levels, 3, 4)
    assert sizes.download(levels, [1, 2, 4]) == split == sizes.download(levels, [4]) + 2 * 56


def test_buffers_of_every_width_go_down_and_those_of_its_own_widths_come_up(conv2: LevelMap) -> None:
    shared, own = WireSizes(buffers=7), WireSizes(buffers=7, per_width=True)
    assert own.values(conv2, 0, 2) - shared.values(conv2, 0, 2) == 4 * 7 * 4, "five blocks instead of one"
    assert own.values(conv2, 1, 2) == shared.values(conv2, 1, 2), "they travel with level 0"
    assert [own.update(conv2, level) - shared.update(conv2, level) for level in range(3)] == [0, 4 * 7, 4 * 7 * 2]


def test_a_full_model_needs_no_level_map() -> None:
    sizes = WireSizes(buffers=2)
    levels = LevelMap.full(10)
    net = Network(NetworkSettings(), [Link(down=1.0, up=1.0)], sizes, ims=True, seed=0)
    (trip,) = net.send([Shipment(client=0, level=0, levels=levels, map_version=0, first_batch=0)], 0.0)
    assert (trip.down, trip.up) == (sizes.values(levels, 0, 0), sizes.update(levels, 0))
    assert sizes.values(levels, 0, 0) == 56 + 8 + 40
    assert sizes.update(levels, 0) == 56 + 16 + 8 + 40


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """A trace of given curves."""

    kind: ClassVar[str] = "given"
    down: Curve
    up: Curve
    shift: float = 0.0

    def load(self, seed: int) -> list[tuple[Curve, Curve]]:
        return [(self.down, self.up)]

    def sealed(self) -> "Given":
        return self


# 0.5 MiB/s for 2 s, 3 s of silence, 4 MiB/s for 5 s: 2.1 MiB/s on average; 1 MiB/s for 6 s, 2 s of silence, 2 MiB/s.
DOWN = Curve(starts=(0, 2, 5), rates=(0.5, 0, 4), end=10)
UP = Curve(starts=(0, 6, 8), rates=(1, 0, 2), end=10)
TRACED = Link(trace=Given(down=DOWN, up=UP))


def test_a_transfer_across_rates_and_silence() -> None:
    # 1 MiB until 2, nothing until 5, 1 MiB at 4 MiB/s until 5.25; training until 5.75; 0.25 MiB up until 6, nothing
    # until 8, 1.75 MiB at 2 MiB/s.
    assert arrivals(network(ims=True, links=[TRACED]).send([task(0, 0)], 0.0)) == [8.875]


def test_the_end_of_a_trace() -> None:
    # From 9 its own link is done at 9.5, the server at 10; then 1 MiB/s in the next repetition, from 10.5 on.
    assert arrivals(network(ims=True, links=[TRACED]).send([task(0, 0)], 9.0)) == [12.5]
    once = Link(trace=Given(down=replace(DOWN, repeats=False), up=replace(UP, repeats=False)))
    assert arrivals(network(ims=True, links=[once]).send([task(0, 0)], 0.0)) == [8.875]
    assert arrivals(network(ims=True, links=[once]).send([task(0, 0)], 9.0)) == [math.inf]


def test_two_clients_behind_one_uplink() -> None:
    shipments = [task(0, 0), task(1, 1)]
    # Increment 0 has left at 1, increment 1 at 3. Client 1: 1 MiB until 2, 5 MiB at 4 MiB/s from 5 to 6.25; training
    # until 6.75; nothing until 8, 4 MiB until 10, 2 MiB at 1 MiB/s.
    net = network(ims=True, links=[TRACED, TRACED])
    assert arrivals(net.send(shipments, 0.0)) == [8.875, 12.0]
    assert net.uplink_free == 3.0
    # Downloads begin when all has left: client 0 at 1, 0.5 MiB until 2, 1.5 MiB until 5.375, trained at 5.875; client 1
    # at 3, 6 MiB until 6.5, trained at 7.
    stored = network(ims=True, cut_through=False, links=[TRACED, TRACED])
    assert arrivals(stored.send(shipments, 0.0)) == [8 + 1.875 / 2, 12.0]


def test_rates_of_a_link_are_the_means_of_its_trace() -> None:
    twice = replace(TRACED, down=4.2, up=2.0)  # up has 1 MiB/s on average, so both are doubled
    # 2 MiB at 1 MiB/s until 2; training until 2.5; 2 MiB at 2 MiB/s.
    assert arrivals(network(ims=True, links=[twice]).send([task(0, 0)], 0.0)) == [3.5]
    assert arrivals(network(ims=True, links=[TRACED], scale=2.0).send([task(0, 0)], 0.0)) == [3.5]
    assert steady_links([TRACED, twice], 0) == [Link(down=2.1, up=1.0), Link(down=4.2, up=2.0)]
    fast = Network(NetworkSettings(noise=0.0), [TRACED], RoundSizes(), ims=True, seed=0, pace=2.0)
    fast.known_maps = {0: (0, 2)}
    # 0.5 MiB until 1, nothing until 2.5, 1.5 MiB at 4 MiB/s until 2.875; training until 3.375; nothing until 4, then
    # 2 MiB at 2 MiB/s.
    assert arrivals(fast.send([task(0, 0)], 0.0)) == [5.0]


def test_noise_multiplies_the_bytes_that_a_trace_carries() -> None:
    net = network(ims=True, noise=0.3, links=[TRACED])
    down, up = np.exp(0.3 * generator(0, "network", 0, 0).standard_normal((2, 1)) - 0.045).ravel()
    ready = max(1.0, DOWN.finish(0.0, 2 * float(down)))
    assert arrivals(net.send([task(0, 0)], 0.0)) == [UP.finish(ready + 0.5, 2 * float(up))]


def test_a_trace_of_one_rate_is_a_constant_link() -> None:
    def of(rate: float) -> Curve:
        return Curve(starts=(0, 0.3, 1.1), rates=(rate, rate, rate), end=1.7)

    flat = [replace(link, trace=Given(down=of(0.7), up=of(0.3), shift=0.9)) for link in LINKS]
    own = [
        replace(link, down=None, up=None, trace=Given(down=of(link.down or 0), up=of(link.up or 0))) for link in LINKS
    ]
    rest: dict[str, Any] = {"ims": True, "noise": 0.3, "server_rate": 0.7, "scale": 0.13}
    constant, traced, untold = (network(links=links, **rest) for links in (LINKS, flat, own))
    for batch in range(20):
        shipments = [replace(shipment, first_batch=batch) for shipment in TASKS]
        expected = constant.send(shipments, 3.1 * batch)
        assert traced.send(shipments, 3.1 * batch) == expected
        assert untold.send(shipments, 3.1 * batch) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.3, 1.0, 7.0]), min_size=1, max_size=6), st.floats(0, 40), st.floats(0, 15))
def test_a_later_start_never_arrives_earlier(rates: list[float], now: float, later: float) -> None:
    curve = Curve(starts=range(len(rates)), rates=[*rates[:-1], 2.0], end=len(rates))
    link = Link(trace=Given(down=curve, up=curve.shifted(0.4)))
    early, late = (network(ims=True, links=[link]).send([task(0, 1)], at)[0].arrival for at in (now, now + later))
    assert late >= early - 1e-9
    # 6 MiB each way, and half a second of training in between; the server has sent its 6 MiB after 3 s.
    ready = max(curve.finish(now, 6.0), now + 3.0)
    assert curve.shifted(0.4).carried(ready + 0.5, early) == pytest.approx(6.0)


def test_a_client_that_is_away_goes_on_where_it_was() -> None:
    net = network(ims=True)
    net.presence = Presence({0: [Gaps(edges=(1.0, 4.0, 5.2, 6.0))]})
    first, second, _ = net.send(TASKS, 0.0)
    # client 0: a MiB until 1 and another from 4 on; 0.2 s of its training until 5.2, 0.3 from 6 on; 0.5 s up
    assert (first.ready, first.computed, first.arrival) == pytest.approx((5, 6.3, 6.8))
    assert (second.ready, second.computed, second.arrival) == (3, 4, 6), "always there"


def test_noise_is_the_same_for_a_client_that_may_leave() -> None:
    links = [TRACED, LINKS[1]]
    stays, leaves = (network(ims=True, noise=0.3, links=links) for _ in range(2))
    leaves.presence = Presence({client: [Gaps(edges=(900.0, 950.0))] for client in (0, 1)})
    assert leaves.send(TASKS[:2], 0.0) == stays.send(TASKS[:2], 0.0)


def test_a_link_that_stops_or_stands_still_with_its_client() -> None:
    once = Link(trace=Given(down=replace(DOWN, repeats=False), up=replace(UP, repeats=False), shift=1.0))
    net = network(ims=True, links=[TRACED, once])
    assert (net.varies, net.stops) == (True, {1: 9.0})
    # In the first and the other 4 s: down 1 MiB and, from 5 on, 12; up 4 MiB and 2.
    assert net.mean_rates(0, 0.0, 8.0, 2) == [[1 / 4, 12 / 4], [1.0, 0.5]]
    net.presence = Presence({0: [Gaps(edges=(5.125, 6.0))]})
    # 1 MiB until 2, 0.5 from 5 to 5.125, 0.5 from 6 to 6.125; training until 6.625; up as before, from 8 on.
    (trip,) = net.send([task(0, 0)], 0.0)
    assert (trip.ready, trip.computed, trip.arrival) == pytest.approx((6.125, 6.625, 9.0))
