"""When the server merges, and who takes part."""

import math

import pytest

from fedgmr.server.coordination import Asynchronous, Fastest, SemiAsynchronous, Synchronous, Wait


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
