"""Robust merges: the numbers by hand, nested sub-models, one bad client."""

from dataclasses import replace

import pytest
import torch

from fedgmr.server.aggregation import MaskAware, Merge
from fedgmr.server.robust import ClippedMean, CoordinateMedian, TrimmedMean
from fedgmr.submodels.levels import LevelMap
from server.dense import mask_aware_mean
from server.test_aggregation import LEVELS, contribution, merge_of

ONE = LevelMap.full(1)
RULES = [TrimmedMean(), CoordinateMedian(), ClippedMean()]


def of_values(values: list[float], weights: list[float], model: float = 0.0) -> Merge:
    """Clients with one coordinate each, which all of them hold; the same numbers as a buffer."""
    members = [contribution(i, [value], levels=ONE, buffers=[value]) for i, value in enumerate(values)]
    return merge_of([model], members, weights, buffers=[model])


def test_the_trimmed_mean_by_hand() -> None:
    merge = of_values([100.0, 2.0, 5.0, 3.0, -50.0], [1.0, 1.0, 0.5, 0.5, 1.0])
    model, buffers = TrimmedMean().merge(merge)  # a fifth of five: one at either end
    assert model.item() == buffers.item() == pytest.approx((2 + 0.5 * 5 + 0.5 * 3) / 2)
    assert TrimmedMean(trim=0.4).merge(merge)[0].item() == 3.0, "two at either end"
    three = of_values([1.0, 9.0, 2.0], [1.0, 1.0, 1.0])
    assert TrimmedMean(trim=0.1).merge(three)[0].item() == 2.0, "of three at least one"
    ten = of_values([float(n) for n in range(10)], [1.0] * 8 + [0.5, 0.25])
    assert TrimmedMean().merge(ten)[0].item() == pytest.approx(sum(range(2, 8)) / 6)
    # Half of ten but for a millionth, and of two: somebody stays.
    assert TrimmedMean(trim=0.4999999).merge(ten)[0].item() == pytest.approx((4 + 5) / 2)
    two = of_values([1.0, 4.0], [1.0, 2.0])
    assert TrimmedMean(trim=0.4999999).merge(two)[0].item() == pytest.approx(3.0)


def test_the_median_by_hand() -> None:
    assert CoordinateMedian().merge(of_values([7.0, 1.0, 100.0], [1.0, 1.0, 1.0]))[0].item() == 7.0
    assert CoordinateMedian().merge(of_values([7.0, 1.0, 100.0, 8.0], [1.0] * 4))[0].item() == 7.5
    # Weights 1, 3, 1, in the order of the values 1, 7, 100: half of 5 is at the 7.
    assert CoordinateMedian().merge(of_values([7.0, 100.0, 1.0], [3.0, 1.0, 1.0]))[0].item() == 7.0
    # 3 of 5 at the largest.
    assert CoordinateMedian().merge(of_values([7.0, 100.0, 1.0], [1.0, 3.0, 1.0]))[0].item() == 100.0
    # 0.1 + 0.2 is not quite 0.3.
    assert CoordinateMedian().merge(of_values([1.0, 2.0, 4.0], [0.1, 0.2, 0.3]))[0].item() == 3.0


def test_the_clipped_mean_by_hand() -> None:
    # From 10: changes 1, 2, 90 by the norm 10; the median is 0.2, so 100 counts as 12.
    merge = of_values([11.0, 12.0, 100.0], [1.0, 0.5, 0.5], model=10.0)
    model, buffers = ClippedMean().merge(merge)
    assert model.item() == pytest.approx((11 + 0.5 * 12 + 0.5 * 12) / 2)
    assert buffers.item() == pytest.approx((11 + 0.5 * 12 + 0.5 * 100) / 2), "buffers are not clipped"
    # With half the radius 12 counts as 11, and so does 100.
    assert ClippedMean(radius=0.5).merge(merge)[0].item() == pytest.approx(11.0)
    assert ClippedMean().merge(of_values([0.0, 0.0], [1.0, 1.0]))[0].item() == 0.0, "nobody moved"


def test_nested_sub_models_by_hand() -> None:
    # Level order is 2, 0, 3, 1. All hold coordinate 2; clients 1 to 3 hold 0 and 3; client 3 alone holds 1.
    members = [
        contribution(0, [3.0], levels=LEVELS, buffers=[1.0]),
        contribution(1, [6.0, 8.0, 2.0], level=1, levels=LEVELS, buffers=[4.0, 3.0]),
        contribution(2, [5.0, 7.0, 9.0], level=1, levels=LEVELS, buffers=[2.0, 5.0]),
        contribution(3, [99.0, -99.0, 99.0, 99.0], level=2, levels=LEVELS, buffers=[9.0, 9.0]),
    ]
    merge = merge_of([10.0, 20.0, 30.0, 40.0], members, [1.0] * 4, buffers=[0.0, 0.0])
    model, buffers = TrimmedMean().merge(merge)
    assert model.tolist() == [7.0, 99.0, 5.5, 9.0], "a coordinate with one holder takes its value"
    assert buffers.tolist() == [3.0, 5.0]
    model, buffers = CoordinateMedian().merge(merge)
    assert model.tolist() == [7.0, 99.0, 5.5, 9.0]
    assert buffers.tolist() == [3.0, 5.0]
    two = replace(merge, held=members[:2], fresh=members[:2])
    for rule in (TrimmedMean(), CoordinateMedian()):
        model, buffers = rule.merge(two)
        assert model.tolist() == [8.0, 20.0, 4.5, 2.0], "two: their mean; nobody: as it was"
        assert buffers.tolist() == [2.5, 3.0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_maps_and_orders_mix(rule: MaskAware) -> None:
    draw = torch.Generator().manual_seed(0)
    other = LevelMap(torch.tensor([0, 1, 2, 1], dtype=torch.uint8), LEVELS.ladder)
    agreed = torch.randn(4, generator=draw)
    members = [
        replace(contribution(i, agreed.tolist(), level=2, levels=levels), map_version=version)
        for i, (levels, version) in enumerate([(LEVELS, 0), (LEVELS, 0), (other, 1), (other, 1)])
    ]
    packed = [replace(c, values=c.levels.pack(agreed, c.level)) for c in members if c.levels is not None]
    natural = replace(members[0], client=4, levels=None, values=agreed)
    merge = merge_of([0.0] * 4, [*packed, natural], [1.0, 0.5, 0.25, 1.0, 1.0])
    model, _ = rule.merge(merge)
    assert model.tolist() == pytest.approx(agreed.tolist()), "where all agree the result is theirs"


@pytest.mark.parametrize("rule", [TrimmedMean(trim=0.0), ClippedMean(radius=1e6)], ids=lambda rule: rule.kind)
def test_without_trimming_they_are_the_mask_aware_mean(rule: MaskAware) -> None:
    draw = torch.Generator().manual_seed(1)
    values = torch.randn(2, 4, generator=draw)
    members = [contribution(i, LEVELS.pack(values[i], i + 1).tolist(), level=i + 1, levels=LEVELS) for i in range(2)]
    merge = merge_of([1.0, 2.0, 3.0, 4.0], members, [1.0, 0.5])
    masks = torch.stack([LEVELS.mask(1), LEVELS.mask(2)])
    expected = mask_aware_mean(values, masks, torch.tensor([1.0, 0.5]), merge.model)
    assert rule.merge(merge)[0].tolist() == pytest.approx(expected.tolist(), rel=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_one_of_five_cannot_drag_them_away(rule: MaskAware) -> None:
    honest = [1.0, 1.1, 0.9, 1.05]
    model, _ = rule.merge(of_values([*honest, 1e30], [1.0] * 5, model=1.0))
    assert 0.9 <= model.item() <= 1.1
    assert MaskAware().merge(of_values([*honest, 1e30], [1.0] * 5))[0].item() > 1e29


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_nothing_to_merge_and_half_precision(rule: MaskAware) -> None:
    empty = merge_of([1.0, 2.0], [], [])
    assert rule.merge(empty)[0].tolist() == [1.0, 2.0]
    none = of_values([5.0, 6.0], [0.0, 0.0], model=1.0)
    assert rule.merge(none)[0].item() == 1.0, "a weight of zero covers nothing"
    half = of_values([1.5, 1.5, 1.5], [1.0] * 3, model=1.0)
    kept = [replace(c, values=c.values.half()) for c in half.held]
    model, _ = rule.merge(replace(half, held=kept))
    assert (model.item(), model.dtype) == (1.5, torch.float32)


def test_over_and_mix_are_those_of_the_mask_aware_mean() -> None:
    merge = of_values([4.0, 8.0, 6.0], [1.0] * 3, model=2.0)
    assert CoordinateMedian(mix=True).merge(replace(merge, fleet_weight=lambda: 6.0))[0].item() == 4.0
    alone = replace(merge, fresh=merge.fresh[1:2])
    assert TrimmedMean(over="arrivals").merge(alone)[0].item() == 8.0
