"""When clients are there: gaps by hand, files, nights, absences, and the heap that keeps who is there now."""

import json
import math
import random
from itertools import islice, takewhile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmr.fleets.availability import Absence, DayNight, FileAvailability, make_presence
from fedgmr.fleets.availability_files import read_devices
from fedgmr.fleets.curves import Curve
from fedgmr.fleets.presence import Gaps, Presence


def test_gaps_that_come_again() -> None:
    gaps = Gaps(edges=(2.0, 3.0, 6.0, 10.0), period=10.0)
    assert [gaps.away(t) for t in (0, 1.5, 2, 2.5, 3, 5, 6, 9.5, 10, 12, 13)] == [
        *(False, False, True, True, False, False, True, True, False, True, False)
    ]
    assert [gaps.turn(t) for t in (0.0, 2.0, 3.0, 7.0, 10.0, 25.0)] == pytest.approx([2, 3, 6, 10, 12, 26])
    assert [gaps.back(t) for t in (0.0, 2.0, 3.0, 7.0, 10.0, 25.0)] == pytest.approx([3, 3, 10, 10, 13, 30])
    later = Gaps(edges=gaps.edges, period=10.0, shift=4.0)
    assert [later.away(t) for t in (0, 1.5, 2, 5.5, 6, 8, 9)] == [False, False, True, True, False, True, False]
    assert later.turn(0.0) == pytest.approx(2.0)


def test_lines_and_devices_give_the_same_gaps() -> None:
    lines = b"# a comment\nb 5 20\n\na 0 10\na 10 15\nb 30 40\n"
    table = b"\xef\xbb\xbfoff, client ,model, on\n20,b,x,5\n10,a,x,0\n15,a,x,10\n40,b,x,30\n"
    devices = {
        "b": {"duration": 3, "active": [5, 30], "inactive": [20, 40], "model": "x"},
        "a": {"active": [0, 10], "inactive": [10, 15], "finish_time": None},
    }
    for content in (lines, table, json.dumps(devices).encode()):
        found = read_devices(content, "x")
        assert list(found) == ["b", "a"]
        assert found["b"].edges == (0.0, 5.0, 20.0, 30.0, 40.0, math.inf)
        assert found["a"].edges == (15.0, math.inf), "two stretches that meet are one"
        again = read_devices(content, "x", 50.0)
        assert (again["b"].edges, again["b"].period) == ((0.0, 5.0, 20.0, 30.0, 40.0, 50.0), 50.0)
    timed = {"a": {"active": [0, 30], "inactive": [20, 60], "finish_time": 60}}
    found = read_devices(json.dumps(timed).encode(), "x")
    assert (found["a"].edges, found["a"].period) == ((20.0, 30.0), 60.0)
    whole = {"a": {"active": [0], "inactive": [60], "finish_time": 60}}
    assert read_devices(json.dumps(whole).encode(), "x")["a"].edges == (), "always there"


def test_clients_have_the_devices_of_their_numbers_or_are_dealt_them(tmp_path: Path) -> None:
    hours = tmp_path / "hours"
    hours.write_text("2 0 30\n0 0 10\n1 0 20\n")
    own = FileAvailability(path=str(hours)).gaps(3, seed=0, pace=1.0)
    assert [own[client].edges[0] for client in range(3)] == [10, 20, 30]
    fast = FileAvailability(path=str(hours)).gaps(3, seed=0, pace=4.0)
    assert [fast[client].edges[0] for client in range(3)] == [2.5, 5, 7.5]
    dealt = FileAvailability(path=str(hours)).gaps(8, seed=0, pace=1.0)
    ends = [dealt[client].edges[0] for client in range(8)]
    assert sorted(ends[:3]) == sorted(ends[3:6]) == [10, 20, 30], "each once before any comes twice"
    assert len(set(ends[6:])) == 2
    assert dealt[0].edges is dealt[3 + ends[3:6].index(ends[0])].edges, "and shared"
    others = [FileAvailability(path=str(hours)).gaps(8, seed=seed, pace=1.0) for seed in range(5)]
    assert len({tuple(other[client].edges[0] for client in range(8)) for other in others}) > 1, "by the seed"


def test_nights() -> None:
    together = DayNight(night=8, spread=0).gaps(2, seed=0, pace=24.0)
    for client in (0, 1):
        # A day is an hour, its night the last 20 minutes.
        assert [together[client].away(t) for t in (0, 2399, 2400, 3599, 3600, 5999, 6000)] == [
            *(False, False, True, True, False, False, True)
        ]
    spread = DayNight(night=8, spread=6).gaps(1000, seed=1, pace=1.0)
    begins = [gaps.turn(0.0) / 3600 for gaps in spread.values()]
    assert not any(gaps.away(0.0) for gaps in spread.values()), "the run begins in the morning"
    assert 10 <= min(begins) < 10.1
    assert 15.9 < max(begins) <= 16
    assert sum(begins) / 1000 == pytest.approx(13, abs=0.2)
    assert all(
        gaps.back(0.0) / 3600 == pytest.approx(begin + 8) for gaps, begin in zip(spread.values(), begins, strict=True)
    )


def test_absences_add_to_the_availability_in_seconds_of_their_own() -> None:
    at = make_presence(DayNight(spread=0), [Absence(clients=(1, 1), start=100, end=2500)], 2, seed=0, pace=24.0)
    assert _first(at, 0) == pytest.approx([0, 2400, 3600, 6000])
    assert _first(at, 1) == pytest.approx([0, 100, 3600, 6000])
    assert (at.leaves(1, 50.0), at.leaves(1, 100.0), at.leaves(1, 3600.0)) == pytest.approx((100, 100, 6000))
    assert at.next_return(0.0) == pytest.approx(2500), "the absence ends, whoever is away all the same"


def _first(at: Presence, client: int) -> list[float]:
    return [moment for stretch in islice(at.stretches(client, 0.0), 2) for moment in stretch]


def test_a_client_that_never_returns() -> None:
    at = Presence({0: [Gaps(edges=(5.0, math.inf))], 1: [Gaps(edges=(0.0, 10.0), period=10.0)]})
    assert list(at.stretches(0, 1.0)) == [(1.0, 5.0)]
    assert list(at.stretches(0, 6.0)) == []
    assert list(at.stretches(1, 0.0)) == [], "its gaps have no end"
    assert (at.leaves(0, 6.0), at.leaves(1, 3.0), at.leaves(2, 3.0)) == (6.0, 3.0, math.inf)


def test_the_heap_knows_who_is_there_as_the_gaps_do() -> None:
    draws = random.Random(5)
    gaps = {}
    for client in range(0, 60, 2):
        edges = sorted(draws.sample(range(1, 40), 6))
        gaps[client] = [Gaps(edges=edges, period=draws.choice([40.0, 47.3, math.inf]), shift=0.0)]
        if client % 3 == 0:
            gaps[client].append(Absence(clients=(client,), start=3, end=draws.uniform(4, 9), every=12.5).gaps)
    at, now, changes = Presence(gaps), 0.0, 0
    for _ in range(400):
        now += draws.choice([0.0, 0.1, 1.0, 7.0])
        before = set(at.away)
        changed = at.advance(now)
        assert at.away == {client for client, of in gaps.items() if any(gap.away(now) for gap in of)}
        assert before ^ at.away == set(changed)
        changes += len(changed)
    assert changes > 1000


def test_a_tick_looks_only_at_those_who_come_or_go(monkeypatch: pytest.MonkeyPatch) -> None:
    at = make_presence(DayNight(spread=24), (), 10_000, seed=0)
    asked = 0

    def counted(self: Gaps, now: float) -> bool:
        nonlocal asked
        asked += 1
        return False

    monkeypatch.setattr(Gaps, "away", counted)
    for second in range(100):
        at.advance(float(second))
    # Two changes per client and day of 86,400 seconds.
    assert asked < 60


def test_work_stands_still_while_its_client_is_away() -> None:
    at = Presence({0: [Gaps(edges=(5.0, 8.0), period=10.0)], 1: [Gaps(edges=(5.0, math.inf))]})
    assert at.finish(0, 4.0, 1.0) == 5.0, "done when it leaves"
    rounded = Presence({0: [Gaps(edges=(0.9, 20.0))]})
    assert rounded.finish(0, 0.3, 0.9 - 0.3) == 0.9, "though 0.3 + (0.9 - 0.3) is more than 0.9"
    assert at.finish(0, 4.0, 3.0) == pytest.approx(10.0), "a second, three away, two more"
    assert at.finish(0, 6.0, 15.0) == pytest.approx(29.0), "from 8 to 15 and 18 to 25 seven each, and one from 28 on"
    assert at.finish(2, 4.0, 3.0) == 7.0
    assert (at.finish(1, 4.0, 1.0), at.finish(1, 4.0, 1.5), at.finish(0, math.inf, 1.0)) == (5.0, math.inf, math.inf)
    assert (at.last_leave(1, 0.0), at.last_leave(2, 0.0)) == (5.0, math.inf)
    # 2 MiB/s for six seconds, then 4 for six: 2 until 5, and 8 of the other 16 from 8 on.
    link = Curve(starts=(0.0, 6.0), rates=(2.0, 4.0), end=12.0)
    assert at.finish(0, 4.0, 10.0, link) == pytest.approx(10.0)
    assert at.finish(2, 4.0, 10.0, link) == link.finish(4.0, 10.0)
    over = Curve(starts=(0.0,), rates=(2.0,), end=9.0, repeats=False)
    assert at.finish(0, 4.0, 4.0, over) == pytest.approx(9.0), "two until 5 and two from 8 to 9"
    assert at.finish(0, 4.0, 4.5, over) == math.inf


def test_who_was_away_between_two_moments() -> None:
    at = Presence({0: [Gaps(edges=(5.0, 8.0), period=10.0)], 1: [Gaps(edges=(12.0, math.inf))]})
    assert at.gone(0.0, 5.0) == []
    assert [[client, *map(round, moments)] for client, *moments in at.gone(6.0, 16.0)] == [
        *([0, 6, 8], [0, 15, 16], [1, 12, 16])
    ]
    assert at.gone(13.0, 14.0) == [(1, 13.0, 14.0)]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=6, unique=True),
    st.lists(st.sampled_from([0.0, 0.5, 3.0]), max_size=4),
    st.floats(0, 60),
    st.floats(0.1, 30),
    st.floats(0, 10),
)
def test_what_is_carried_while_a_client_is_there_is_the_amount(
    moments: list[int], rates: list[float], begin: float, amount: float, later: float
) -> None:
    edges = sorted(moments)[: len(moments) // 2 * 2]
    at = Presence({0: [Gaps(edges=edges, period=47.0)]})
    link = Curve(starts=range(len(rates) + 1), rates=[*rates, 1.5], end=len(rates) + 1.25)
    end = at.finish(0, begin, amount, link)
    there = takewhile(lambda stretch: stretch[0] < end, at.stretches(0, begin))
    assert sum(link.carried(start, min(until, end)) for start, until in there) == pytest.approx(amount, rel=1e-6)
    assert at.finish(0, begin + later, amount, link) >= end - 1e-6
