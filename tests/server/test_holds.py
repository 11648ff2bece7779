"""Holds: refused again and again, a client waits ever longer."""

from dataclasses import replace

import pytest

from fedgmr.exchange import News
from fedgmr.server.admission import AdmissionRule
from fedgmr.server.holds import Holds
from fedgmr.server.recovery import RecoveryRule
from server.test_admission import RULES, fleet
from server.test_server import answer


def test_three_strikes_and_a_pause_that_grows() -> None:
    holds = Holds(3, 10)
    assert [holds.strike(7, tick) for tick in (1, 2)] == [False, False]
    holds.clear(7)
    assert [holds.strike(7, tick) for tick in (4, 5, 6)] == [False, False, True]
    assert holds.until == {7: 16}
    assert (holds.allowed([6, 7], 15, idle=True), holds.allowed([6, 7], 16, idle=True)) == ([6], [6, 7])
    assert [holds.strike(7, tick) for tick in (16, 17, 18)] == [False, False, True]
    assert holds.until == {7: 58}, "40 ticks"
    holds.hold(7, 100)
    assert holds.until == {7: 260}, "160 ticks"
    assert holds.allowed([7], 200, idle=False) == []
    assert holds.allowed([7], 200, idle=True) == [7], "rather than nobody"
    twin = Holds(3, 10)
    holds.strike(2, 5)
    twin.restore(holds.state())
    assert (twin.until, twin.times, twin.strikes) == (holds.until, holds.times, holds.strikes)
    never = Holds(0, 10)
    assert not any(never.strike(1, tick) for tick in range(9))


@pytest.mark.parametrize("how", ["update", "news"])
def test_a_client_on_hold_gets_no_task(how: str) -> None:
    at = fleet()
    at.merge([answer(task, 3.5, 4.0) for task in at.tasks(range(4), 0.0)], 1.0)
    for now in (2, 3, 4):
        (task,) = at.tasks([3], now)
        if how == "update":
            at.merge([answer(task, 1e6, 0.0)], now)
        else:
            at.learn([News(client=3, lost=True, refused=True)])
            at.merge([], now)
    since = 4 if how == "update" else 3  # with the third of the merges, or before it
    assert at.recovery.events[0] == {"event": "held", "tick": since, "client": 3, "until": since + 10}
    assert 3 not in at.buffer, "what was kept of it counts no longer"
    assert [task.client for task in at.tasks(range(4), 5.0)] == [0, 1, 2]
    at.tick = 14
    assert [task.client for task in at.tasks([3], 14.0)] == [3]


def test_strikes_are_counted_in_a_row() -> None:
    at = fleet(replace(RULES, admission=AdmissionRule(strikes=2, pause=5), recovery=RecoveryRule(times=0)))
    at.merge([answer(task, 3.5, 4.0) for task in at.tasks(range(4), 0.0)], 1.0)
    for now, values in enumerate([(1e6, 0.0), (3.5, 4.0), (1e6, 0.0), (1e6, 0.0)]):
        (task,) = at.tasks([3], now)
        at.merge([answer(task, *values)], now)
    assert at.holds.until == {3: 10}
