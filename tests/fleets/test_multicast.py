"""Which objects leave for whom, and which parts of the level map a client lacks."""

from dataclasses import replace

import pytest
import torch

from fedgmr.exchange import Shipment
from fedgmr.fleets.multicast import Transmission, plan_transmissions
from fedgmr.submodels.levels import LevelMap

LEVELS = LevelMap(torch.tensor([0, 1, 2, 3], dtype=torch.uint8), (0.25, 0.5, 0.75, 1.0))


def shipment(client: int, level: int) -> Shipment:
    return Shipment(client=client, level=level, levels=LEVELS, map_version=4, first_batch=0)


def plan(*levels: int, ims: bool, shared: bool = False) -> list[tuple[tuple[int, int], list[int]]]:
    planned = plan_transmissions([shipment(*pair) for pair in enumerate(levels)], ims=ims, shared=shared)
    return [(item.span, [receiver.client for receiver in item.receivers]) for item in planned]


def test_with_ims_every_gap_between_levels_in_use_leaves_once() -> None:
    assert plan(1, 3, 1, 0, ims=True) == [((0, 0), [0, 1, 2, 3]), ((1, 1), [0, 1, 2]), ((2, 3), [1])]
    assert plan(2, 2, ims=True) == [((0, 2), [0, 1])]
    assert plan(ims=True) == []


def test_without_ims_every_client_has_an_object_of_its_own() -> None:
    assert plan(1, 3, 1, ims=False) == [((0, 1), [0]), ((0, 3), [1]), ((0, 1), [2])]


def test_clients_at_one_level_share_an_object() -> None:
    assert plan(1, 3, 1, 0, ims=False, shared=True) == [((0, 0), [3]), ((0, 1), [0, 2]), ((0, 3), [1])]
    assert plan(1, 3, 1, 0, ims=True, shared=True) == plan(1, 3, 1, 0, ims=True)
    assert plan(ims=False, shared=True) == []


@pytest.mark.parametrize(
    ("known", "part"),
    [({}, (1, 3)), ({7: (4, 0)}, (1, 3)), ({7: (4, 1)}, (2, 3)), ({7: (4, 3)}, None), ({7: (3, 3)}, (1, 3))],
)
def test_a_client_lacks_what_is_above_the_map_it_holds(
    known: dict[int, tuple[int, int]], part: tuple[int, int] | None
) -> None:
    receiver = shipment(7, 3)
    assert Transmission(span=(1, 3), receivers=[receiver]).lacking(receiver, known) == part


def test_a_part_begins_with_its_object() -> None:
    receiver = shipment(7, 3)
    assert Transmission(span=(2, 3), receivers=[receiver]).lacking(receiver, {7: (4, 0)}) == (2, 3)


def test_nobody_lacks_a_map_that_follows_from_the_recipe() -> None:
    receiver = replace(shipment(7, 0), levels=LevelMap.full(4))
    assert Transmission(span=(0, 0), receivers=[receiver]).lacking(receiver, {}) is None
