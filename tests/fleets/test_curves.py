"""Curves: amounts and moments by hand, repetitions, views, and the laws that hold for every curve."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmr.fleets.curves import Curve

# 10 s at 2 MiB/s, 5 s of silence, 5 s at 4 MiB/s: 40 MiB in 20 s.
STEPS = Curve(starts=(0, 10, 15), rates=(2, 0, 4), end=20)
ONCE = Curve(starts=(0, 10, 15), rates=(2, 0, 4), end=20, repeats=False)


def rate(curve: Curve, now: float) -> float:
    """The rate at a moment, as it is defined."""
    seconds = now * curve.pace + curve.shift
    inside = seconds % curve.end if curve.repeats else seconds
    piece = sum(start <= inside for start in curve.starts) - 1
    return curve.scale * curve.rates[piece] if inside < curve.end else 0.0


def test_amounts_and_moments_by_hand() -> None:
    assert STEPS.carried(0, 20) == 40
    assert STEPS.carried(5, 17) == 5 * 2 + 2 * 4
    assert STEPS.carried(11, 14) == 0
    # From 5: 10 MiB until 10, nothing until 15, the other 8 MiB at 4 MiB/s.
    assert STEPS.finish(5, 18) == 17
    assert STEPS.finish(5, 10) == 10, "what is complete before a silence does not wait for its end"
    assert STEPS.finish(12, 4) == 16
    assert STEPS.finish(12, 0) == 12
    # From 1 on: 1 MiB until 2, 6 MiB until 4, the other 1 MiB at 0.5 MiB/s.
    assert Curve(starts=(0, 2, 4), rates=(1, 3, 0.5), end=8).finish(1, 8) == 6
    assert STEPS.mean == 2
    assert ONCE.mean == 2


def test_repetitions_and_the_end() -> None:
    # From 17: 12 MiB until 20, 20 MiB until 30, silence until 35, the last 3 MiB until 35.75.
    assert STEPS.finish(17, 35) == 35.75
    assert STEPS.finish(0, 40 * 7) == 140
    assert STEPS.finish(15, 40) == 35 - 5, "20 MiB until 20 and 20 MiB until 30"
    assert STEPS.carried(17, 35.75) == 35
    assert STEPS.over == math.inf
    assert ONCE.finish(17, 12) == 20
    assert ONCE.finish(17, 12.5) == math.inf
    assert ONCE.finish(25, 1) == math.inf
    assert ONCE.carried(17, 1000) == 12
    assert ONCE.over == 20
    assert ONCE.finish(math.inf, 1) == math.inf
    assert STEPS.finish(math.inf, 1) == math.inf
    silent = Curve(starts=(0,), rates=(0,), end=1)
    assert silent.finish(3, 1) == math.inf
    assert silent.mean == 0
    assert silent.carried(0, 9) == 0


def test_a_million_repetitions_lose_nothing() -> None:
    tenths = Curve(starts=(0, 0.3, 0.7), rates=(0.1, 0, 0.7), end=0.9)
    whole = tenths.carried(0, 0.9)
    assert tenths.finish(0, 1e6 * whole) == pytest.approx(0.9e6, rel=1e-15)
    late = 0.9 * 10**6 + 0.1
    assert tenths.finish(late, 0.01) - late == pytest.approx(0.1, abs=1e-9)
    assert tenths.carried(late, late + 0.2) == pytest.approx(0.02, abs=1e-10)
    assert tenths.carried(0, 0.9e6) == pytest.approx(1e6 * whole, rel=1e-14)


def test_views_share_the_pieces() -> None:
    view = STEPS.shifted(12).scaled(0.5).faster(2)
    assert view.starts is STEPS.starts
    assert view.totals is STEPS.totals
    # At 0 it is second 12 of the trace; silence lasts 3 of its seconds, which pass in 1.5; then 2 MiB/s for 2.5 s.
    assert view.finish(0, 3) == 3
    assert view.carried(0, 3) == 3
    assert view.finish(0, 6) == 4 + 1, "5 MiB until 4, then 1 MiB/s"
    assert view.mean == 1
    assert STEPS.shifted(52).shift == 12
    assert ONCE.shifted(12).over == 8
    assert ONCE.shifted(30).over == 0
    assert ONCE.shifted(12).faster(4).over == 2
    assert ONCE.shifted(30).finish(0, 1) == math.inf


def test_a_single_rate_is_its_mean() -> None:
    third = Curve(starts=(0, 0.1, 0.2), rates=(0.1, 0.1, 0.1), end=0.7)
    assert third.constant
    assert third.mean == 0.1
    assert not STEPS.constant


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"starts": (), "rates": ()}, "a rate for each"),
        ({"starts": (0, 1), "rates": (1,)}, "a rate for each"),
        ({"starts": (1,), "rates": (1,)}, "the first is 0"),
        ({"starts": (0, 5, 5), "rates": (1, 1, 1)}, "ascending"),
        ({"starts": (0, math.nan), "rates": (1, 1)}, "ascending"),
        ({"starts": (0, 9), "rates": (1, 1), "end": 9.0}, "ascending"),
        ({"starts": (0,), "rates": (1,), "end": math.inf}, "finite"),
        ({"starts": (0,), "rates": (-1,)}, "from 0 on"),
        ({"starts": (0,), "rates": (math.nan,)}, "from 0 on"),
        ({"starts": (0,), "rates": (1e308,)}, "so large"),
    ],
)
def test_what_is_no_curve(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Curve(**{"end": 20.0, **given})  # type: ignore[arg-type]


rates = st.one_of(st.just(0.0), st.floats(0.001, 100))
pieces = st.lists(st.tuples(st.floats(0.01, 50), rates), min_size=1, max_size=8)
moments = st.floats(0, 2000)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    lengths, given = zip(*draw(pieces), strict=True)
    starts = [math.fsum(lengths[:i]) for i in range(len(lengths))]
    made = Curve(starts=starts, rates=given, end=math.fsum(lengths), repeats=draw(st.booleans()))
    return made.shifted(draw(moments)).scaled(draw(st.floats(0.1, 10))).faster(draw(st.floats(0.1, 30)))


def by_pieces(curve: Curve, begin: float, end: float) -> float:
    """What the rates carry, added up piece by piece."""
    cuts = {begin, end}
    for repetition in range(int((end * curve.pace + curve.shift) // curve.end) + 1):
        at = [((repetition * curve.end + start) - curve.shift) / curve.pace for start in (*curve.starts, curve.end)]
        cuts |= {moment for moment in at if begin < moment < end}
    bounds = sorted(cuts)
    return math.fsum((b - a) * rate(curve, (a + b) / 2) for a, b in itertools.pairwise(bounds))


@settings(max_examples=150, deadline=None)
@given(curves(), st.floats(0, 200), st.floats(0, 50), st.floats(0.001, 500))
def test_laws_of_every_curve(curve: Curve, begin: float, later: float, amount: float) -> None:
    end = begin + later
    assert curve.carried(begin, end) == pytest.approx(by_pieces(curve, begin, end), rel=1e-9, abs=1e-8)
    finish = curve.finish(begin, amount)
    assert finish >= begin
    if finish < math.inf:
        assert curve.carried(begin, finish) == pytest.approx(amount, rel=1e-9, abs=1e-6)
    after = curve.finish(end, amount)
    assert after >= finish - 1e-9 * max(1.0, finish) or after == finish, "a later start never arrives earlier"
