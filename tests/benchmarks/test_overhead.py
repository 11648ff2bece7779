import overhead
import pytest


@pytest.mark.parametrize("method", ["fedgmr", "fedasync"])
def test_a_short_quickstart_taken_apart(method: str) -> None:
    watch = overhead.take_apart(method, seconds=40)
    assert watch.calls["SGD steps"] == 5 * watch.calls["around the steps"] > 0
    assert watch.calls[overhead.REST] == 1
    assert watch.calls["evaluation"] >= 2  # before the run and at its end
    assert {"network", "merge", "record", "sample order", "final files"} <= set(watch.seconds)
    share = overhead.overhead(watch)
    assert 0 < share < overhead.overhead(watch, overhead.STRICT_WORK) < 1
    rows = overhead.rows_of(method, [watch])
    assert sum(float(str(row["share %"])) for row in rows) == pytest.approx(100, abs=0.2)
    assert {row["part"] for row in rows} == set(watch.seconds)
