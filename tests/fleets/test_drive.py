"""Generated drives: the figures they are fitted to, over many draws, and the steady part of a commute."""

import numpy as np
import pytest

from fedgmr.fleets.drive import Drive, drive_rates, good_rates, state_shares

MBIT = 8 * 2**20 / 1e6  # Mbit/s of 1 MiB/s
SECONDS = 1020


@pytest.fixture(scope="module")
def drives() -> list[tuple[np.ndarray, np.ndarray]]:
    return [drive_rates(SECONDS, seed=seed) for seed in range(200)]


def test_shares_of_time_by_hand() -> None:
    """Of 100 stays in weak 58 lead to 4 silent seconds and 42 to 30 good ones: 1,260, 1,000 and 232 seconds."""
    assert state_shares() == pytest.approx((1260 / 2492, 1000 / 2492, 232 / 2492))
    assert SECONDS * state_shares()[2] == pytest.approx(95, abs=0.1)
    # 5.2 = good x (0.5056 + 0.4013 x 0.15) in Mbit/s
    assert [rate * MBIT for rate in good_rates()] == pytest.approx([9.190, 1.414], abs=1e-3)


def test_means_of_many_drives_are_the_measured_ones(drives: list[tuple[np.ndarray, np.ndarray]]) -> None:
    means = np.array([(down.mean() * MBIT, up.mean() * MBIT) for down, up in drives])
    assert means.mean(axis=0) == pytest.approx([5.2, 0.8], rel=0.04)
    assert 0.05 < means.std(axis=0)[0] / 5.2 < 0.25, "one drive differs from the next"


def test_silent_seconds_of_many_drives_are_the_measured_ones(drives: list[tuple[np.ndarray, np.ndarray]]) -> None:
    silent = np.array([(down == 0).sum() for down, _ in drives])
    assert silent.mean() == pytest.approx(94 / 1012 * SECONDS, rel=0.08)
    assert 40 < np.percentile(silent, 5) < np.percentile(silent, 95) < 160
    assert all(((down == 0) == (up == 0)).all() for down, up in drives), "a tunnel silences both directions"


def test_the_fifth_percentile_is_near_zero(drives: list[tuple[np.ndarray, np.ndarray]]) -> None:
    fifth = np.array([np.percentile(down, 5) * MBIT for down, _ in drives])
    assert np.median(fifth) == 0
    assert np.percentile(fifth, 95) < 0.1 * 5.2


def test_stays_and_correlation() -> None:
    """Silences of 4 s on average. The state cancels in down/up: sigma is 0.5 x sqrt(2), and 0.8 of it stays."""
    down, up = drive_rates(100_000, seed=1)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], down == 0, [0]])))
    assert (edges[1::2] - edges[::2]).mean() == pytest.approx(4, rel=0.1)
    heard = (down[:-1] > 0) & (down[1:] > 0)
    ratios = [np.log(down[part][heard] / up[part][heard]) for part in (slice(None, -1), slice(1, None))]
    assert np.corrcoef(ratios)[0, 1] == pytest.approx(0.8, abs=0.01)
    assert np.std(ratios) == pytest.approx(0.7071, abs=0.015)


def test_a_draw_has_a_name() -> None:
    again, other, another = (drive_rates(60, seed=s, number=n)[0] for s, n in ((3, 0), (4, 0), (3, 1)))
    assert (drive_rates(60, seed=3)[0] == again).all()
    assert (again != other).any()
    assert (again != another).any()


def test_a_rest_is_steady_at_the_mean_of_good_seconds() -> None:
    down, up = drive_rates(60, seed=3, rest=120)
    assert len(down) == len(up) == 180
    assert (down[:60] == drive_rates(60, seed=3)[0]).all(), "the same drive before it"
    assert set(down[60:]) == {good_rates()[0]}
    assert set(up[60:]) == {good_rates()[1]}


def test_a_pool_of_drives_for_links() -> None:
    pairs = Drive(seconds=100, rest=50, pool=3).load(7)
    assert len(pairs) == 3
    down, up = drive_rates(100, seed=7, number=2, rest=50)
    assert [list(curve.rates) for curve in pairs[2]] == [down.tolist(), up.tolist()]
    assert {(curve.starts[0], curve.starts[-1], curve.end) for pair in pairs for curve in pair} == {(0, 149, 150)}
    assert pairs[2][0].carried(100, 300) == pytest.approx(down.sum() + 50 * good_rates()[0])  # rest, drive, rest


@pytest.mark.parametrize(
    ("given", "sentence"),
    [({"seconds": 99}, "seconds is 99"), ({"pool": 33}, "pool is 33"), ({"shift": -1.0}, "shift is -1")],
)
def test_drives_that_cannot_be(given: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Drive(**given)  # type: ignore[arg-type]
