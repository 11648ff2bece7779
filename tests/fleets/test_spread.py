"""Mean rates by quantiles of a lognormal distribution, and their densities, computed by hand."""

from collections import Counter

import pytest

from fedgmr.fleets.spread import spread_links


def test_ten_clients_by_hand() -> None:
    """Sigma is ln 20 / (2 x 1.6449) = 0.9106; the quantiles 95 % to 5 % are at +-1.645, 1.036, 0.674, 0.385, 0.126."""
    links = spread_links(10)
    rates = [13.416, 7.709, 5.545, 4.261, 3.364, 2.676, 2.112, 1.623, 1.167, 0.671]
    assert [link.down for link in links] == pytest.approx(rates, abs=1e-3)
    assert [link.up for link in links] == pytest.approx([rate / 4 for rate in rates], abs=1e-3)
    # By the fastest: 1, 0.575, 0.413, 0.318, 0.251, 0.199, 0.157, 0.121, 0.087, 0.05
    assert [link.density for link in links] == [1.0, 0.5, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05]
    assert links[0].down / links[-1].down == pytest.approx(20)
    assert sum(link.down for link in links) / 10 == pytest.approx(4.2, rel=0.02), "the paper's High fleet has 4.2"


def test_other_numbers_of_clients() -> None:
    densities = Counter(link.density for link in spread_links(10_000))
    assert densities == {1.0: 1000, 0.5: 1000, 0.2: 3000, 0.1: 3000, 0.05: 2000}
    ten = spread_links(10)
    assert spread_links(12) == [ten[i] for i in (0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9)]
    assert spread_links(5) == [ten[i] for i in (0, 2, 4, 7, 9)]  # 2.25, 4.5 (to even) and 6.75 between the ends
    assert spread_links(2) == [ten[0], ten[9]]
    assert spread_links(1) == [ten[0]]
