"""When the server merges, and who takes part."""

import math

import pytest

from fedgmr.server.coordination import Asynchronous, Fastest, Participation, SemiAsynchronous, Synchronous, Wait


def test_synchronous_waits_for_all_at_work() -> None:
    assert Synchronous().wait(tick=3, in_flight=7) == Wait(until=math.inf, arrivals=7)
    assert Synchronous().wait(tick=3, in_flight=0).arrivals == 0
    assert Synchronous().schedule_tick(5, 123.0) == 5


def test_semi_asynchronous_waits_for_the_next_multiple_of_the_period() -> None:
    rule = SemiAsynchronous(period=2.5)
    assert [rule.wait(tick, 4) for tick in (0, 1, 9)] == [Wait(until=2.5), Wait(until=5.0), Wait(until=25.0)]
    assert rule.wait(0, 4).arrivals is None
    assert rule.schedule_tick(5, 123.0) == 5
    with pytest.raises(AssertionError, match="resolved before a run"):
        SemiAsynchronous().wait(0, 4)


def test_asynchronous_waits_for_one_arrival() -> None:
    assert Asynchronous().wait(3, 7) == Wait(until=math.inf, arrivals=1)
    assert Asynchronous().wait(3, 0).arrivals == 0, "nobody is at work, nobody can arrive"
    assert Asynchronous(period=4.0).schedule_tick(100, 10.0) == 2.5
    assert Asynchronous().schedule_tick(100, 10.0) == 100


def test_the_fastest_are_waited_for() -> None:
    rule = Fastest(clients=2, grace=0.25)
    assert rule.wait(3, 7) == Wait(until=math.inf, fastest=2, grace=0.25)
    assert (rule.always, rule.period, rule.schedule_tick(5, 123.0)) == (2, None, 5)
    assert [Wait(until=3.0).timed, rule.wait(0, 1).timed, Wait(arrivals=0).timed] == [True, False, False]


def draw(
    rule: Participation, free: list[int], *, in_flight: int = 0, seed: int = 0, tick: int = 0, always: int = 0
) -> list[int]:
    return rule.draw(free, clients=10, in_flight=in_flight, seed=seed, tick=tick, always=always)


FREE = list(range(10))


def test_everybody_takes_part_unless_told_otherwise() -> None:
    assert draw(Participation(), [7, 2, 5], in_flight=4) == [7, 2, 5]


@pytest.mark.parametrize(
    ("rule", "size"),
    [
        (Participation(count=3), 3),
        (Participation(count=10), 10),
        (Participation(count=99), 10),
        (Participation(fraction=0.3), 3),
        (Participation(fraction=0.31), 4),
        (Participation(fraction=0.01), 1),
        (Participation(fraction=1.0), 10),
    ],
)
def test_the_size_of_a_cohort(rule: Participation, size: int) -> None:
    chosen = draw(rule, FREE)
    assert len(chosen) == len(set(chosen)) == size
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(FREE)


@pytest.mark.parametrize(("fraction", "clients", "size"), [(0.07, 100, 7), (0.28, 25, 7), (0.55, 100, 55)])
def test_a_share_is_not_rounded_up_by_a_rounding_error(fraction: float, clients: int, size: int) -> None:
    assert fraction * clients > size
    chosen = Participation(fraction=fraction).draw(range(clients), clients=clients, in_flight=0, seed=0, tick=0)
    assert len(chosen) == size


def test_some_clients_are_in_every_cohort() -> None:
    cohorts = [draw(Participation(count=4), FREE, tick=tick, always=2) for tick in range(20)]
    assert all(cohort[:2] == [0, 1] and len(cohort) == 4 for cohort in cohorts)
    assert {client for cohort in cohorts for client in cohort} == set(FREE)
    assert draw(Participation(count=4), [1, 5, 6, 7], in_flight=3, always=2) == [1]
    assert draw(Participation(count=4), [1, 5, 6, 7], in_flight=4, always=2) == [1], "one more than the cohort"


def test_a_cohort_is_filled_up() -> None:
    rule = Participation(count=4)
    assert len(draw(rule, FREE[:7], in_flight=3)) == 1
    assert draw(rule, FREE[:6], in_flight=4) == []
    assert draw(rule, FREE[:5], in_flight=5) == [], "too many at work already"
    assert draw(rule, [8, 3], in_flight=2) == [8, 3], "as many free as places"
    # The share is of the whole fleet, not of the free clients.
    assert len(draw(Participation(fraction=0.5), FREE[:6], in_flight=4)) == 1


def test_a_cohort_belongs_to_seed_and_tick() -> None:
    rule = Participation(count=3)
    assert draw(rule, FREE, seed=1, tick=2) == draw(rule, FREE, seed=1, tick=2)
    drawn = {tuple(draw(rule, FREE, seed=seed, tick=tick)) for seed in range(4) for tick in range(5)}
    assert len(drawn) > 10
    assert {client for cohort in drawn for client in cohort} == set(FREE), "everybody's turn comes"


def test_count_or_fraction() -> None:
    with pytest.raises(ValueError, match=r"count is 3 and fraction is 0\.5: give one"):
        Participation(count=3, fraction=0.5)
