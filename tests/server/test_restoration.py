"""When clients move up: exact sequences."""

import math

import pytest

from fedgmr.server.restoration import Check, FixedTime, Saturation, SaturationDetector

PAPER = (0.05, 0.1, 0.2, 0.5, 1.0)


def fired(patience: int, metrics: list[float]) -> list[int]:
    """At which observations (counted from 1) the detector fires."""
    detector = SaturationDetector(patience)
    return [i for i, metric in enumerate(metrics, start=1) if detector.observe(metric)]


@pytest.mark.parametrize(
    ("patience", "metrics", "at"),
    [
        (1, [0.0], []),  # the first observation is always an improvement
        (1, [0.5, 0.4], [2]),
        (1, [0.5, 0.5], [2]),  # equal is no improvement
        (1, [0.5, 0.6, 0.7], []),
        (3, [0.5, 0.4, 0.4, 0.4], [4]),
        (3, [0.5, 0.4, 0.4, 0.6, 0.5, 0.5, 0.6], [7]),  # an improvement starts the count again
        (2, [0.5, 0.4, 0.45, 0.6], [3]),  # better than before but not than the best
        (2, [0.9, 0.1, 0.1, 0.2, 0.1, 0.1], [3, 6]),  # after firing, 0.2 is a new best
        (1, [0.9, 0.1, 0.1, 0.1, 0.1], [2, 4]),  # after firing, the next is a first one
    ],
)
def test_detector(patience: int, metrics: list[float], at: list[int]) -> None:
    assert fired(patience, metrics) == at


def test_detector_state() -> None:
    detector = SaturationDetector(3)
    assert (detector.best, detector.waited) == (-math.inf, 0)
    detector.observe(0.5)
    detector.observe(0.2)
    assert (detector.best, detector.waited) == (0.5, 1)
    detector.observe(0.2)
    detector.observe(0.2)
    assert (detector.best, detector.waited) == (-math.inf, 0)


def test_impatience() -> None:
    with pytest.raises(ValueError, match="patience is 0: give at least 1"):
        SaturationDetector(0)


class Fleet:
    """Clients under a saturation rule, checked with one metric per level."""

    def __init__(self, rule: Saturation, levels: list[int]) -> None:
        self.rule, self.levels = rule, dict(enumerate(levels))
        self.detectors: dict[int, SaturationDetector] = {}

    def check(self, metrics: dict[int, float]) -> dict[int, int]:
        moved = self.rule.restore(
            Check(ladder=PAPER, levels=self.levels, detectors=self.detectors, metrics=metrics, progress=0.0)
        )
        self.levels.update(moved)
        return moved


def test_each_client_climbs_when_its_own_level_saturates() -> None:
    fleet = Fleet(Saturation(patience=2), [4, 1, 0, 0])
    assert fleet.check({0: 0.1, 1: 0.5}) == {}
    assert fleet.check({0: 0.2, 1: 0.5}) == {}
    assert fleet.check({0: 0.3, 1: 0.5}) == {1: 2}
    assert fleet.check({0: 0.3, 2: 0.1}) == {}  # a new level is a new start
    assert fleet.check({0: 0.3, 2: 0.1}) == {2: 1, 3: 1}
    assert fleet.levels == {0: 4, 1: 2, 2: 1, 3: 1}
    assert set(fleet.detectors) == {1, 2, 3}, "a client at the top is not watched"


def test_nobody_climbs_past_the_top_or_without_a_metric() -> None:
    fleet = Fleet(Saturation(patience=1), [4, 3, 2])
    for _ in range(2):
        assert fleet.check({4: 0.5}) == {}
    assert fleet.check({3: 0.5}) == {}
    assert fleet.check({3: 0.5}) == {1: 4}
    for _ in range(3):
        assert fleet.check({4: 0.5, 3: 0.5}) == {}
    assert fleet.levels == {0: 4, 1: 4, 2: 2}


def test_under_the_global_scope_all_climb_together() -> None:
    fleet = Fleet(Saturation(patience=2, scope="global"), [4, 3, 0])
    # What is measured of the small sub-models does not count.
    assert fleet.check({4: 0.5, 0: 0.1, 3: 0.1}) == {}
    assert fleet.check({4: 0.5, 0: 0.2, 3: 0.2}) == {}
    assert fleet.check({4: 0.4, 0: 0.3, 3: 0.3}) == {1: 4, 2: 1}
    assert fleet.check({4: 0.4}) == {}
    assert fleet.check({4: 0.4}) == {}
    assert fleet.check({4: 0.4}) == {2: 2}


def test_which_levels_are_measured() -> None:
    levels = {0: 4, 1: 2, 2: 0, 3: 0}
    assert Saturation().wanted(levels, 4) == {0, 2}
    assert Saturation(scope="global").wanted(levels, 4) == {4}
    for scope in ("client", "global"):
        assert Saturation(scope=scope).wanted({0: 4, 1: 4}, 4) == set()  # type: ignore[arg-type]
    assert FixedTime().wanted(levels, 4) == set()


@pytest.mark.parametrize(
    ("progress", "floor"),
    [
        (0.0, 0.05),
        (0.1999, 0.05),
        (0.2, 0.1),
        (0.3999, 0.1),
        (0.4, 0.2),
        (0.5999, 0.2),
        (0.6, 0.5),
        (0.7999, 0.5),
        (0.8, 1.0),
        (1.0, 1.0),
        (1.5, 1.0),
        (math.nextafter(0.6, 0), 0.5),  # 0.6 less a rounding error
        (math.nextafter(0.6, 1), 0.5),
    ],
)
def test_the_fixed_time_floor(progress: float, floor: float) -> None:
    levels = dict(enumerate(range(5)))
    check = Check(ladder=PAPER, levels=levels, detectors={}, metrics={}, progress=progress)
    after = levels | FixedTime().restore(check)
    assert [PAPER[after[client]] for client in levels] == [max(preset, floor) for preset in PAPER]
    # Only those that move are named.
    assert set(FixedTime().restore(check)) == {client for client, preset in enumerate(PAPER) if preset < floor}
