"""What is packed once and shared, and which parts of the map travel; sizes as a simulation charges them."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fedgmr import wire
from fedgmr.exchange import ClientTask
from fedgmr.fleets.links import Link
from fedgmr.fleets.network import Network, NetworkSettings
from fedgmr.fleets.sizes import WireSizes
from fedgmr.flower.client.node_state import HeldMap
from fedgmr.flower.messages import Order
from fedgmr.flower.server.packing import PackedTask, pack_tasks, shared_size
from fedgmr.flower.terms import Terms
from fedgmr.submodels.levels import LevelMap

SIZE = 1000
LADDER = (0.1, 0.3, 0.6, 1.0)
MODEL = torch.linspace(-1, 1, SIZE)
BUFFERS = torch.tensor([0.5, 1.5, 2.5])
LEVELS = LevelMap.from_scores(torch.arange(SIZE).float().sin(), LADDER)


def task(client: int, level: int, *, map_version: int = 4, levels: LevelMap = LEVELS) -> ClientTask:
    return ClientTask(
        client=client,
        version=9,
        level=level,
        levels=levels,
        map_version=map_version,
        model=MODEL,
        buffers=BUFFERS,
        learning_rate=0.1,
        first_batch=0,
    )


def pack(
    tasks: list[ClientTask], known: dict[int, tuple[int, int]] | None = None, *, ims: bool = True
) -> list[PackedTask]:
    return pack_tasks(tasks, known or {}, Terms(run=5, recipe="", layout="", ims=ims))


def spans(packed: PackedTask) -> tuple[list[Any], list[Any]]:
    return [piece.span for piece in packed.values], [piece.span for piece in packed.maps]


def test_one_object_per_gap_between_levels_in_use() -> None:
    low, high, same = pack([task(0, 1), task(1, 3), task(2, 3)])
    assert spans(low) == ([(0, 1)], [(0, 1)])
    assert spans(high) == ([(0, 1), (2, 3)], [(0, 1), (2, 3)])
    assert all(a.data is b.data for a, b in zip(high.values, same.values, strict=True))
    assert low.values[0].data is high.values[0].data
    # 300 values and 3 buffer entries behind 52 + 4 bytes of envelope; then the other 700 values.
    assert [len(piece.data) for piece in high.values] == [56 + 4 * 3 + 4 * 300, 56 + 4 * 700]
    maps = sum(len(piece.data) for piece in high.maps)
    assert shared_size([low, high, same]) == 56 + 12 + 1200 + 56 + 2800 + maps


def test_without_ims_one_object_per_level() -> None:
    low, high = pack([task(0, 1), task(1, 3)], ims=False)
    assert spans(low) == ([(0, 1)], [(0, 1)])
    assert spans(high) == ([(0, 3)], [(0, 3)])


def test_only_the_lacking_parts_of_the_map_travel() -> None:
    tasks = [task(0, 1), task(1, 3), task(2, 3), task(3, 3)]
    known = {0: (4, 1), 1: (4, 1), 2: (3, 3), 3: (4, 2)}  # 2 has an old map
    assert [spans(packed)[1] for packed in pack(tasks, known)] == [[], [(2, 3)], [(0, 1), (2, 3)], [(3, 3)]]


def test_an_implied_map_never_travels() -> None:
    whole = LevelMap.full(SIZE)
    assert spans(pack([task(0, 0, levels=whole)])[0]) == ([(0, 0)], [])


@pytest.mark.parametrize("ims", [True, False])
@pytest.mark.parametrize("known", [{}, {0: (4, 0), 1: (4, 1), 2: (3, 3)}, {1: (4, 2), 2: (4, 1)}])
def test_sizes_are_those_of_the_simulated_network(ims: bool, known: dict[int, tuple[int, int]]) -> None:
    tasks = [task(0, 1), task(1, 3), task(2, 3), task(3, 0)]
    links = [Link(down=1, up=1)] * 4
    network = Network(NetworkSettings(sends="shared"), links, WireSizes(buffers=3), ims=ims, seed=0)
    network.known_maps = dict(known)
    trips = {trip.client: trip.down for trip in network.send(tasks, 0.0)}
    packed = pack(tasks, known, ims=ims)
    assert {one.task.client: one.size for one in packed} == trips
    assert shared_size(packed) == network.server_bytes


def test_shared_objects_are_shared_arrays() -> None:
    packed = pack([task(0, 1), task(1, 3), task(2, 3)])
    contents = [Order.of(one.task, "recipe").content(one.values, one.maps) for one in packed]
    arrays = [content.array_records["objects"] for content in contents]
    assert arrays[0]["values.0.1"] is arrays[1]["values.0.1"] is arrays[2]["values.0.1"]
    assert set(arrays[1]) == {"values.0.1", "values.2.3", "map.0.1", "map.2.3"}


def order(packed: PackedTask) -> Order:
    return Order.of(packed.task, "")


def test_a_map_is_completed_part_by_part() -> None:
    (first,), (second,) = pack([task(0, 1)]), pack([task(0, 3)], {0: (4, 1)})
    held = HeldMap.completed(None, order(first), first.maps, run=5, total=SIZE)
    assert held is not None
    assert held.last == 1
    assert HeldMap.completed(held, order(first), [], run=5, total=SIZE) is held
    whole = HeldMap.completed(held, order(second), second.maps, run=5, total=SIZE)
    assert whole is not None
    assert np.array_equal(whole.levels, LEVELS.levels.numpy())


def test_what_is_missing_is_noticed() -> None:
    (first,), (second,) = pack([task(0, 1)]), pack([task(0, 3)], {0: (4, 1)})
    held = HeldMap.completed(None, order(first), first.maps, run=5, total=SIZE)
    (newer,) = pack([task(0, 1, map_version=5)], {0: (5, 1)})
    assert HeldMap.completed(None, order(first), [], run=5, total=SIZE) is None, "nothing held, nothing sent"
    assert HeldMap.completed(None, order(second), second.maps, run=5, total=SIZE) is None, "the part before is lost"
    assert HeldMap.completed(held, order(second), [], run=5, total=SIZE) is None, "held up to level 1 only"
    assert HeldMap.completed(held, order(newer), newer.maps, run=5, total=SIZE) is None, "held is old"
    with pytest.raises(wire.Refused, match="run"):
        HeldMap.completed(None, order(first), first.maps, run=6, total=SIZE)
