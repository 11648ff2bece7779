"""Staleness rules by hand."""

import pytest

from fedgmr.staleness import Constant, Hinge, Polynomial


def test_polynomial() -> None:
    assert [Polynomial(alpha=0.5).weight(s) for s in (0, 3, 8, 15)] == [1, 0.5, pytest.approx(1 / 3), 0.25]
    assert [Polynomial(alpha=1.0).weight(s) for s in (3, 4)] == [0.25, pytest.approx(0.2)]
    assert Polynomial(alpha=0.0).weight(4) == 1.0
    assert Polynomial().alpha == 0.5


def test_constant() -> None:
    assert [Constant().weight(s) for s in (0, 1, 100)] == [1, 1, 1]


def test_hinge() -> None:
    # 1 up to 4, then 1 / (10 (s - 4) + 1)
    assert [Hinge().weight(s) for s in (0, 4, 5, 7)] == [1, 1, 1 / 11, 1 / 31]
    assert Hinge(a=2.0, b=1.0).weight(3) == 0.2
