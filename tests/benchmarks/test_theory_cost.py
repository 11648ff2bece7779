import theory_cost


def test_a_short_quickstart_taken_apart() -> None:
    watch = theory_cost.take_apart("quickstart", 40)
    # Row 0 measures three things (weight, norm, and the distance not yet), later rows four; `_inside` once for each.
    assert watch.calls[theory_cost.RECORDING] >= 2 * (1 + 2)
    assert watch.calls[theory_cost.REST] == 1
    assert 0 < theory_cost.share(watch) < 1
