"""When clients move up: exact sequences."""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import pytest

from fedgmr.server.restoration import Check, FixedTime, Memory, Restoration, Saturation, Watcher
from fedgmr.tasks.metrics import mae

PAPER = (0.05, 0.1, 0.2, 0.5, 1.0)


class Measured:
    """Metrics by level, by client, and of the padded model; and the levels that were asked for."""

    def __init__(
        self, levels: Mapping[int, float] = {}, updates: Mapping[int, float] = {}, padded: float | None = None
    ) -> None:
        self.levels, self.updates, self.padded, self.asked = levels, updates, padded, set[int]()

    def of_level(self, level: int) -> float | None:
        self.asked.add(level)
        return self.levels.get(level)

    def of_update(self, client: int) -> float | None:
        return self.updates.get(client)

    def of_padded(self) -> float | None:
        return self.padded


class Fleet:
    """Clients under a rule, checked with one metric per level, or with other metrics."""

    def __init__(self, rule: Restoration, levels: list[int]) -> None:
        self.rule, self.levels = rule, dict(enumerate(levels))
        self.memory = Memory()

    def check(self, metrics: Mapping[int, float] | Measured, now: float = 0.0) -> dict[int, int]:
        found = metrics if isinstance(metrics, Measured) else Measured(metrics)
        moved = self.rule.restore(
            Check(ladder=PAPER, levels=self.levels, memory=self.memory, metrics=found, now=now, seconds=100.0)
        )
        self.levels.update(moved)
        return moved


def fired(patience: int, metrics: list[float]) -> list[int]:
    """At which checks (counted from 1) a client moves up."""
    fleet, at = Fleet(Saturation(patience=patience), [0]), []
    for i, metric in enumerate(metrics, start=1):
        if fleet.check(dict.fromkeys(range(5), metric)):
            at.append(i)
    return at


def test_an_error_saturates_when_it_stops_falling() -> None:
    """It falls at the checks 2, 3 and 6; two checks without a fall are the patience."""
    errors, metric = [5.0, 4.0, 3.5, 3.5, 3.6, 3.0, 3.2, 3.0], mae()
    assert fired(2, [metric.score(error) for error in errors]) == [5, 8]
    assert fired(2, errors)[0] == 3, "while it falls"


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
        (2, [0.9, 0.1, 0.1, 0.2, 0.1, 0.1], [3, 6]),  # after a move, 0.2 is a new best
        (1, [0.9, 0.1, 0.1, 0.1, 0.1], [2, 4]),  # after a move, the next is a first one
    ],
)
def test_patience(patience: int, metrics: list[float], at: list[int]) -> None:
    assert fired(patience, metrics) == at


def test_watcher() -> None:
    watcher = Watcher()
    assert (watcher.best, watcher.waited) == (-math.inf, 0)
    assert [watcher.observe(metric) for metric in (0.5, 0.2, 0.5)] == [0, 1, 2]
    assert (watcher.best, watcher.waited) == (0.5, 2)
    watcher.clear()
    assert (watcher.best, watcher.waited) == (-math.inf, 0)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="patience is 0: give at least 1"):
        Saturation(patience=0)
    with pytest.raises(ValueError, match="metric is own_update and scope is global"):
        Saturation(metric="own_update", scope="global")


def test_each_client_climbs_when_its_own_level_saturates() -> None:
    fleet = Fleet(Saturation(patience=2), [4, 1, 0, 0])
    assert fleet.check({0: 0.1, 1: 0.5}) == {}
    assert fleet.check({0: 0.2, 1: 0.5}) == {}
    assert fleet.check({0: 0.3, 1: 0.5}) == {1: 2}
    assert fleet.check({0: 0.3, 2: 0.1}) == {}  # a new level is a new start
    assert fleet.check({0: 0.3, 2: 0.1}) == {2: 1, 3: 1}
    assert fleet.levels == {0: 4, 1: 2, 2: 1, 3: 1}
    assert set(fleet.memory.clients) == {1, 2, 3}, "a client at the top is not watched"


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


@pytest.mark.parametrize(
    ("rule", "levels", "asked"),
    [
        (Saturation(), [4, 2, 0, 0], {0, 2}),
        (Saturation(scope="global"), [4, 2, 0, 0], {4}),
        (Saturation(), [4, 4], set()),
        (Saturation(scope="global"), [4, 4], set()),
        (Saturation(metric="own_update"), [4, 2, 0, 0], set()),
        (FixedTime(), [4, 2, 0, 0], set()),
    ],
)
def test_which_levels_are_measured(rule: Restoration, levels: list[int], asked: set[int]) -> None:
    metrics = Measured()
    Fleet(rule, levels).check(metrics)
    assert metrics.asked == asked


def test_after_a_move_a_client_holds_off() -> None:
    """Patience 2, hold-off of two patiences: a move, four checks later at the earliest the next."""
    fleet = Fleet(Saturation(patience=2, hold_off=2), [0])
    flat = dict.fromkeys(range(5), 0.5)
    moves = [number for number in range(1, 12) if fleet.check(flat)]
    assert moves == [3, 7, 11], "the count ran on: 4 sets the best, 5 and 6 fail, and 7 is the first without hold-off"

    better = Fleet(Saturation(patience=2, hold_off=2), [0])
    metrics = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.6]
    moves = [number for number, metric in enumerate(metrics, start=1) if better.check(dict.fromkeys(range(5), metric))]
    assert moves == [3, 9], "an improvement at the end of the hold-off starts the count again"


def test_checks_left_are_those_until_the_move() -> None:
    """Whatever a rule remembers: without improvement a client moves at just the check that was foretold."""
    for rule in (Saturation(patience=3), Saturation(patience=2, hold_off=3), Saturation(patience=2, server=True)):
        fleet = Fleet(rule, [0])
        for check in range(40):
            foretold = rule.checks_left(0, fleet.memory)
            trial = deepcopy(fleet)
            steady = Measured(dict.fromkeys(range(5), 0.0))  # the padded model says nothing
            moved = next(number for number in range(1, 99) if trial.check(steady))
            assert moved == foretold, (rule, check)
            padded = 0.01 * (check % 7) if rule.server else None
            fleet.check(Measured(dict.fromkeys(range(5), 0.1 * (check % 5)), padded=padded))
            if fleet.levels[0] == len(PAPER) - 1:
                fleet.levels[0] = 0
    assert FixedTime().checks_left(0, Memory()) is None
    assert Saturation(patience=5).checks_left(0, Memory()) == 6, "the first check is what others are compared with"
    assert Saturation(patience=5).checks_left(0, Memory(clients={0: Watcher(best=0.5, waited=3)})) == 2


def test_own_updates_are_each_clients_own() -> None:
    fleet = Fleet(Saturation(patience=1, metric="own_update"), [0, 0, 0, 4])
    assert fleet.check(Measured(updates={0: 0.1, 1: 0.1, 3: 0.9})) == {}
    # The same value again counts as no improvement; client 2 is not heard of yet.
    assert fleet.check(Measured(updates={0: 0.1, 1: 0.2, 3: 0.9})) == {0: 1}
    assert fleet.check(Measured(updates={0: 0.1, 1: 0.3, 2: 0.0, 3: 0.9})) == {}
    assert set(fleet.memory.clients) == {0, 1, 2}


WATCHED = Saturation(patience=2, metric="own_update", server=True)


def padded_checks(fleet: Fleet, *metrics: float) -> list[dict[int, int]]:
    return [fleet.check(Measured(padded=metric)) for metric in metrics]


def test_the_servers_watcher_raises_the_floor() -> None:
    fleet = Fleet(WATCHED, [4, 1, 0])
    memory = fleet.memory
    assert padded_checks(fleet, 0.5, 0.4, 0.3) == [{}] * 3
    assert (memory.armed, memory.floor, memory.server.best, memory.server.waited) == (True, -1, 0.5, 0)
    assert padded_checks(fleet, 0.4, 0.3) == [{}] * 2
    assert (memory.floor, memory.pause, memory.server.best) == (0, 2, -math.inf), "the lowest level: it changes nobody"
    assert padded_checks(fleet, 0.9, 0.1) == [{}] * 2, "paused for as many checks as the patience"
    assert memory.server.best == -math.inf
    assert padded_checks(fleet, 0.5, 0.4, 0.3) == [{}, {}, {2: 1}]
    padded_checks(fleet, 0.0, 0.0)
    assert padded_checks(fleet, 0.5, 0.4, 0.3) == [{}, {}, {1: 2, 2: 2}]
    assert memory.floor == 2


def test_the_server_ignores_a_value_that_it_has_just_seen() -> None:
    fleet = Fleet(WATCHED, [0])
    padded_checks(fleet, *[0.1] * 9)
    assert (fleet.memory.armed, fleet.memory.server.waited) == (False, 0)
    padded_checks(fleet, 0.05, 0.05, 0.06)
    assert fleet.memory.armed, "two that are not better"


def test_a_floor_clears_what_clients_remember_but_not_their_hold_off() -> None:
    fleet = Fleet(replace(WATCHED, patience=1, hold_off=4), [0, 0])
    memory = fleet.memory
    checks = [
        Measured(updates={0: 0.5, 1: 0.1}, padded=0.9),
        Measured(updates={0: 0.5, 1: 0.2}, padded=0.8),  # arms; client 0 moves, and clears the server's memory
    ]
    assert [fleet.check(metrics) for metrics in checks] == [{}, {0: 1}]
    assert (memory.armed, memory.server.best, memory.clients[0].hold) == (True, -math.inf, 4)
    checks = [
        Measured(updates={0: 0.5, 1: 0.3}, padded=0.7),  # a first one again
        Measured(updates={0: 0.5, 1: 0.3}, padded=0.6),  # fires before client 1 would
    ]
    assert [fleet.check(metrics) for metrics in checks] == [{}, {}]
    assert (memory.floor, memory.pause) == (0, 1)
    assert [(w.best, w.waited, w.hold) for w in memory.clients.values()] == [(-math.inf, 0, 2), (-math.inf, 0, 0)]
    assert fleet.check(Measured(updates={0: 0.5, 1: 0.3}, padded=0.9)) == {}
    assert (memory.pause, memory.clients[0].hold, memory.clients[1].best) == (0, 1, -math.inf), (
        "time goes on in a pause"
    )


def test_at_the_top_the_server_watches_no_more() -> None:
    fleet = Fleet(replace(WATCHED, patience=1), [3])
    fleet.memory.floor, fleet.memory.armed = 4, True
    padded_checks(fleet, 0.5, 0.4, 0.3)
    assert fleet.memory.seen is None


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
    for rule, total in ((FixedTime(), 100.0), (FixedTime(seconds=50.0), 50.0)):
        fleet = Fleet(rule, list(levels))
        moved = fleet.check({}, now=progress * total)
        assert [PAPER[level] for level in fleet.levels.values()] == [max(preset, floor) for preset in PAPER]
        # Only those that move are named.
        assert set(moved) == {client for client, preset in enumerate(PAPER) if preset < floor}
