"""Learning-rate schedules by hand."""

import pytest

from fedgmr.training.schedules import ConstantRate, Halving, Steps, TrainingSettings


def test_constant() -> None:
    assert [ConstantRate().factor(tick) for tick in (0, 1, 1e6)] == [1, 1, 1]


def test_halving_is_continuous() -> None:
    schedule = Halving(every=10_000)
    assert schedule.factor(0) == 1.0
    assert schedule.factor(10_000) == 0.5
    assert schedule.factor(5_000) == pytest.approx(0.7071067811865476)
    assert schedule.factor(30_000) == 0.125
    assert schedule.factor(2_500.5) < schedule.factor(2_500)


def test_steps() -> None:
    # StackOverflow: halved at 2500, 5000 and 7500.
    schedule = Steps(at=(2500, 5000, 7500))
    factors = [schedule.factor(tick) for tick in (0, 2499.9, 2500, 4999, 5000, 7500, 99_999)]
    assert factors == [1, 1, 0.5, 0.5, 0.25, 0.125, 0.125]
    assert Steps(at=(3, 1), by=0.1).factor(2) == pytest.approx(0.1)
    assert Steps(at=()).factor(5) == 1.0


def test_the_rate_is_the_base_times_the_factor() -> None:
    settings = TrainingSettings(learning_rate=0.05, schedule=Halving(every=10.0))
    assert settings.rate(20) == pytest.approx(0.0125)
    assert TrainingSettings(learning_rate=0.25).rate(12_345) == 0.25
