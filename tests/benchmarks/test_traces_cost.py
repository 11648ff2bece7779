import pytest
import traces_cost
from crowd import Run
from stopwatch import Stopwatch


def test_ratios_are_those_of_paired_turns() -> None:
    runs = []
    for slower in (0.0, 0.2):
        turns = [
            Stopwatch(seconds={traces_cost.SGD: 9.0 * turn, "network": 0.8 + slower, traces_cost.REST: 0.2})
            for turn in (5, 1, 1, 1)
        ]
        runs.append(Run(None, turns, [100, 100, 100, 200]))  # type: ignore[arg-type]
    constant, drives = traces_cost.rows_of(10, runs)
    # 10 s in 100 updates against 10.2; the first turn does not count.
    assert (constant["everything, ms"], drives["everything, ms"]) == ("100.0000", "102.0000")
    assert (constant["everything, ratio"], drives["everything, ratio"]) == ("1.000", "1.020")
    assert drives["all but SGD, ratio"] == "1.200"
    assert drives["network, ms"] == "10.0000"


def test_a_pool_of_drives_is_held_once() -> None:
    constant, few, many = (
        traces_cost.network_mebibytes(trace, n) for trace, n in (("none", 50), ("drive", 50), ("drive", 1000))
    )
    # At most 32 drives, those that somebody has, down and up, of 1,020 seconds, with 24 bytes for each.
    pool = 32 * 2 * 1020 * 24 / 2**20
    assert 0.5 * pool < few - constant < 1.05 * pool
    assert many == pytest.approx(pool, abs=1.0)
