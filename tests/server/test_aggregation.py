"""Aggregation: the equations by hand, and the level-ordered rules against them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedgmr.server.aggregation import (
    Aggregation,
    GradientAverage,
    MaskAware,
    Merge,
    Mixing,
    ZeroPadded,
)
from fedgmr.server.buffer import Contribution
from fedgmr.submodels.levels import LevelMap
from server.dense import gradient_average, mask_aware_mean, zero_padded_mean

VALUES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 6.0, 9.0]])
MASKS = torch.tensor([[True, True, False], [True, False, False]])
WEIGHTS = torch.tensor([1.0, 0.5])
PREVIOUS = torch.tensor([7.0, 7.0, 7.0])


def contribution(
    client: int,
    values: list[float],
    *,
    level: int = 0,
    levels: LevelMap,
    buffers: Sequence[float] = (),
    version: int = 0,
) -> Contribution:
    return Contribution(
        client=client,
        version=version,
        level=level,
        levels=levels,
        map_version=0,
        values=torch.tensor(values),
        buffers=torch.tensor(buffers),
    )


def merge_of(
    model: list[float],
    contributions: Sequence[Contribution],
    weights: Sequence[float],
    *,
    buffers: Sequence[float] = (),
    starts: dict[int, Tensor] | None = None,
    clients: int = 4,
    fleet_weight: float = 3.0,
) -> Merge:
    return Merge(
        model=torch.tensor(model),
        buffers=torch.tensor(buffers),
        fresh=contributions,
        held=contributions,
        starts=starts or {},
        weights={c.client: w for c, w in zip(contributions, weights, strict=True)},
        clients=clients,
        fleet_weight=lambda: fleet_weight,
    )


def test_mask_aware_mean_by_hand() -> None:
    # (1 + 0.5 * 4) / 1.5, only the first client, nobody
    assert mask_aware_mean(VALUES, MASKS, WEIGHTS, PREVIOUS).tolist() == [2, 2, 7]


def test_zero_padded_mean_by_hand() -> None:
    assert zero_padded_mean(VALUES, MASKS, WEIGHTS).tolist() == pytest.approx([2, 2 / 1.5, 0])


def test_gradient_average_by_hand() -> None:
    # 7 + (1 + 0.5 * 4) / 4, 7 + 2 / 4, unchanged
    assert gradient_average(VALUES, MASKS, WEIGHTS, PREVIOUS, clients=4).tolist() == [7.75, 7.5, 7]


def test_a_weight_of_zero_covers_nothing() -> None:
    assert mask_aware_mean(VALUES, MASKS, torch.tensor([1.0, 0.0]), PREVIOUS).tolist() == [1, 2, 7]
    assert mask_aware_mean(VALUES, MASKS, torch.tensor([0.0, 1.0]), PREVIOUS).tolist() == [4, 7, 7]


# Level order of this map is 2, 0, 3, 1.
LEVELS = LevelMap(torch.tensor([1, 2, 0, 1], dtype=torch.uint8), (0.25, 0.75, 1.0))


@pytest.fixture
def merge() -> Merge:
    """Client 0 (weight 1) holds coordinate 2; client 1 (weight 1/2) holds 2, 0, 3."""
    return merge_of(
        [10.0, 20.0, 30.0, 40.0],
        [
            contribution(0, [3.0], levels=LEVELS, buffers=[1.0, 0.0]),
            contribution(1, [6.0, 8.0, 2.0], level=1, levels=LEVELS, buffers=[4.0, 3.0]),
        ],
        [1.0, 0.5],
        buffers=[9.0, 9.0],
        starts={0: torch.tensor([0.0, 0.0, 1.0, 0.0]), 1: torch.tensor([4.0, 0.0, 4.0, 6.0])},
    )


def test_the_mask_aware_rule_by_hand(merge: Merge) -> None:
    model, buffers = MaskAware().merge(merge)
    assert model.tolist() == [8, 20, 4, 2]  # (3 + 0.5 * 6) / 1.5 at coordinate 2
    assert buffers.tolist() == [2, 1]  # (1 + 0.5 * 4) / 1.5, (0 + 0.5 * 3) / 1.5


def test_the_zero_padded_rule_by_hand(merge: Merge) -> None:
    model, buffers = ZeroPadded().merge(merge)
    assert model.tolist() == pytest.approx([4 / 1.5, 0, 4, 1 / 1.5])
    assert buffers.tolist() == [2, 1]


def test_the_gradient_rule_by_hand(merge: Merge) -> None:
    # Client 0 moved coordinate 2 by +2; client 1 moved 2 by +2, 0 by +4, 3 by -4; all over four clients.
    model, buffers = GradientAverage().merge(merge)
    assert model.tolist() == [10 + 0.5 * 4 / 4, 20, 30 + (2 + 0.5 * 2) / 4, 40 - 0.5 * 4 / 4]
    assert buffers.tolist() == [2, 1]


def test_a_share_of_the_mean_by_hand(merge: Merge) -> None:
    # The arrivals weigh 1.5 of 3: half of the way from W to the mean, which is 8, 20, 4, 2.
    model, buffers = MaskAware(mix=True).merge(merge)
    assert model.tolist() == [9, 20, 17, 21]
    assert buffers.tolist() == [5.5, 5]
    alone = replace(merge, fresh=merge.fresh[1:])
    # 0.5 / 3 of the way to client 1's own values.
    model, buffers = MaskAware(over="arrivals", mix=True).merge(alone)
    assert model.tolist() == pytest.approx([10 - 2 / 6, 20, 30 - 24 / 6, 40 - 38 / 6])
    assert buffers.tolist() == pytest.approx([9 - 5 / 6, 9 - 6 / 6])
    everybody = replace(merge, fleet_weight=lambda: 1.5)
    assert torch.equal(MaskAware(mix=True).merge(everybody)[0], MaskAware().merge(everybody)[0])


def test_means_over_the_arrivals(merge: Merge) -> None:
    first = replace(merge, fresh=merge.fresh[:1])
    model, buffers = MaskAware(over="arrivals").merge(first)
    assert model.tolist() == [10, 20, 3, 40]
    assert buffers.tolist() == [1, 0]
    model, buffers = ZeroPadded(over="arrivals").merge(first)
    assert model.tolist() == [0, 0, 3, 0]
    assert buffers.tolist() == [1, 0]


def test_the_gradient_rule_from_the_current_model_over_the_arrivals(merge: Merge) -> None:
    # From W, client 0 is at -27 in coordinate 2; client 1 at -24 there, at -2 in 0 and at -38 in 3.
    model, buffers = GradientAverage(reference="current", over="arrivals").merge(merge)
    assert model.tolist() == pytest.approx([10 - 1 / 1.5, 20, 30 - (27 + 12) / 1.5, 40 - 19 / 1.5])
    assert buffers.tolist() == [2, 1]
    model, _ = GradientAverage(reference="current").merge(merge)
    assert model.tolist() == [10 - 1 / 4, 20, 30 - (27 + 12) / 4, 40 - 19 / 4]
    model, _ = GradientAverage(over="arrivals").merge(merge)
    assert model.tolist() == pytest.approx([10 + 2 / 1.5, 20, 30 + 3 / 1.5, 40 - 2 / 1.5])


def test_mixing_by_hand(merge: Merge) -> None:
    # Shares 1/2 and 1/4, one after the other: 30 -> 16.5 -> 16.5 - 10.5/4
    model, buffers = Mixing(rate=0.5).merge(merge)
    assert model.tolist() == [10 - 2 / 4, 20, 16.5 - 10.5 / 4, 40 - 38 / 4]
    assert buffers.tolist() == [5 - 1 / 4, 4.5 - 1.5 / 4]


def test_mixing_full_models() -> None:
    whole = LevelMap.full(2)
    merge = merge_of([0.0, 8.0], [contribution(3, [4.0, 4.0], levels=whole)], [0.5])
    assert Mixing(rate=0.5).merge(merge)[0].tolist() == [1, 7]
    heavy = replace(merge, weights={3: 40.0})
    assert Mixing(rate=0.5).merge(heavy)[0].tolist() == [4, 4], "never past the client's model"


RULES = (
    MaskAware(),
    MaskAware(over="arrivals", mix=True),
    ZeroPadded(),
    ZeroPadded(over="arrivals"),
    GradientAverage(),
    GradientAverage(reference="current", over="arrivals"),
    Mixing(),
)


@pytest.mark.parametrize("rule", RULES)
def test_a_merge_leaves_its_inputs_alone(merge: Merge, rule: Aggregation) -> None:
    before = (merge.model.clone(), merge.buffers.clone(), *(c.values.clone() for c in merge.held))
    model, buffers = rule.merge(merge)
    assert model.data_ptr() != merge.model.data_ptr()
    assert buffers.data_ptr() != merge.buffers.data_ptr()
    after = (merge.model, merge.buffers, *(c.values for c in merge.held))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_nothing_to_merge(rule: Aggregation) -> None:
    model, buffers = rule.merge(merge_of([1.0, 2.0], [], [], buffers=[3.0]))
    assert model.tolist() == [1, 2]
    assert buffers.tolist() == [3]


def test_means_use_what_is_held_and_changes_what_is_fresh(merge: Merge) -> None:
    first = [merge.held[0]]
    assert MaskAware().merge(replace(merge, fresh=[], held=first))[0].tolist() == [10, 20, 3, 40]
    assert ZeroPadded().merge(replace(merge, fresh=[], held=first))[0].tolist() == [0, 0, 3, 0]
    assert GradientAverage().merge(replace(merge, fresh=first))[0].tolist() == [10, 20, 30.5, 40]
    assert Mixing(rate=0.5).merge(replace(merge, fresh=first))[0].tolist() == [10, 20, 16.5, 40]


def test_at_full_density_and_no_staleness_the_three_coincide() -> None:
    whole = LevelMap.full(3)
    values = [[1.0, 2.0, 6.0], [3.0, 6.0, 0.0]]
    start = torch.tensor([5.0, 5.0, 5.0])
    merge = merge_of(
        start.tolist(),
        [contribution(i, v, levels=whole) for i, v in enumerate(values)],
        [1.0, 1.0],
        starts={0: start, 1: start},
        clients=2,
    )
    for rule in (MaskAware(), ZeroPadded(), GradientAverage()):
        assert rule.merge(merge)[0].tolist() == [2, 4, 3]


@st.composite
def merges(draw: st.DrawFn) -> tuple[Merge, Tensor, Tensor, Tensor, Tensor]:
    """A merge of several level maps, levels and weights; and the same as dense values, masks, weights, starts."""
    size = draw(st.integers(1, 12))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    maps = []
    for version in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            maps.append((version, LevelMap.full(size)))
        else:
            raw = numbers.integers(0, 4, size).astype(np.uint8)
            ladder = (0.2, 0.5, 0.8, 1.0) if draw(st.booleans()) else (0.2, 0.5, 0.8)  # the top holds all, or not
            maps.append((version, LevelMap(torch.from_numpy(raw), ladder)))
    contributions, dense, masks, starts, weights = [], [], [], [], []
    for client in range(draw(st.integers(1, 6))):
        version, levels = draw(st.sampled_from(maps))
        level = draw(st.integers(0, levels.top))
        mask = levels.mask(level)
        values = torch.from_numpy(numbers.standard_normal(size))
        natural = levels.whole(level) and draw(st.booleans())
        contributions.append(
            Contribution(
                client=client,
                version=0,
                level=level,
                levels=None if natural else levels,
                map_version=version,
                values=values if natural else levels.pack(values, level),
                buffers=torch.from_numpy(numbers.standard_normal(2)),
            )
        )
        dense.append(values)
        masks.append(mask)
        starts.append(torch.from_numpy(numbers.standard_normal(size)))
        weights.append(draw(st.sampled_from([0.1, 0.25, 1.0, 3.0])))
    merge = Merge(
        model=torch.from_numpy(numbers.standard_normal(size)),
        buffers=torch.zeros(2, dtype=torch.float64),
        fresh=contributions,
        held=contributions,
        starts=dict(enumerate(starts)),
        weights=dict(enumerate(weights)),
        clients=draw(st.integers(len(contributions), 10)),
        fleet_weight=lambda: 2 * sum(weights),
    )
    return (
        merge,
        torch.stack(dense),
        torch.stack(masks),
        torch.tensor(weights, dtype=torch.float64),
        torch.stack(starts),
    )


@settings(deadline=None, max_examples=100)
@given(merges())
def test_the_rules_equal_the_equations(case: tuple[Merge, Tensor, Tensor, Tensor, Tensor]) -> None:
    merge, values, masks, weights, starts = case
    expected = {
        MaskAware(): mask_aware_mean(values, masks, weights, merge.model),
        ZeroPadded(): zero_padded_mean(values, masks, weights),
        GradientAverage(reference="current", over="arrivals"): merge.model
        + torch.where(masks, values - merge.model, 0).mul(weights[:, None]).sum(0) / weights.sum(),
        GradientAverage(): gradient_average(values - starts, masks, weights, merge.model, merge.clients),
    }
    stacked = torch.stack([c.buffers for c in merge.held])
    mean = (stacked * weights[:, None]).sum(0) / weights.sum()
    for rule, model in expected.items():
        merged, buffers = rule.merge(merge)
        torch.testing.assert_close(merged, model, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(buffers, mean, rtol=1e-9, atol=1e-12)
    uncovered = ~masks.any(0)
    mixed, _ = MaskAware(mix=True).merge(merge)
    torch.testing.assert_close(mixed, (merge.model + expected[MaskAware()]) / 2, rtol=1e-9, atol=1e-12)
    for found in (MaskAware().merge(merge)[0], mixed):
        assert torch.equal(found[uncovered], merge.model[uncovered])


@pytest.mark.parametrize("levels", [(3, 9, 20, 26), (11, 10, 9, 8, 7, 6, 5)])
def test_every_client_of_another_level_map(levels: tuple[int, ...]) -> None:
    # The second: each covers less than half the model, and together they are longer than it.
    draw, count = torch.Generator().manual_seed(0), len(levels)
    ladder = tuple((step + 1) / 30 for step in range(30))
    maps = [LevelMap.from_scores(torch.randn(200, generator=draw), ladder) for _ in levels]
    models, model = torch.randn(count, 200, generator=draw), torch.randn(200, generator=draw)
    held = [
        contribution(client, maps[client].pack(models[client], level).tolist(), level=level, levels=maps[client])
        for client, level in enumerate(levels)
    ]
    held = [replace(c, map_version=c.client) for c in held]
    weights = [1.0, 0.5, 0.25, 2.0, 0.3, 0.7, 1.1][:count]
    masks = torch.stack([maps[client].mask(level) for client, level in enumerate(levels)])
    assert not masks.any(0).all()
    merged, _ = MaskAware().merge(merge_of(model.tolist(), held, weights))
    expected = mask_aware_mean(models, masks, torch.tensor(weights), model)
    torch.testing.assert_close(merged, expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(merged[~masks.any(0)], model[~masks.any(0)])


def test_half_precision_is_added_in_full() -> None:
    # 2048 + 1 is no float16, nor is the sum 2 * 60000.
    whole = [
        Contribution(
            client=client,
            version=0,
            level=0,
            levels=None,
            map_version=0,
            values=torch.tensor(values, dtype=torch.float16),
            buffers=torch.empty(0),
        )
        for client, values in enumerate([[2048.0, 60000.0], [1.0, 60000.0]])
    ]
    model, _ = MaskAware().merge(merge_of([0.0, 0.0], whole, [1.0, 1.0]))
    assert model.dtype == torch.float32
    assert model.tolist() == [1024.5, 60000.0]
