"""The period that a deployed fleet needs, by hand."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedgmr.experiments.period import advice
from fedgmr.server.coordination import Asynchronous, Coordination, SemiAsynchronous, Synchronous


def needed(
    took: Mapping[int, float],
    *,
    clients: int = 4,
    restored: tuple[int, ...] = (),
    coordination: Coordination = SemiAsynchronous(period=10.0),  # noqa: B008 - frozen
) -> tuple[float | None, str | None]:
    server = SimpleNamespace(rules=SimpleNamespace(coordination=coordination), restored=set(restored), tick=5)
    fleet = SimpleNamespace(took=took, clients=clients, in_flight=0)
    found = advice(cast(Any, server), cast(Any, fleet))
    return found.get("period_needed"), found.get("advice")


def test_most_tasks_outlast_the_period() -> None:
    # Nine of ten of four are all four, so 1.1 x 61 s = 67.1 s, rounded up.
    period, text = needed({0: 4.0, 1: 20.0, 2: 30.0, 3: 61.0})
    assert period == 68.0
    assert text == (
        "The fleet cannot keep its period of 10 s: the last task of 3 of 4 clients took longer. "
        "method.coordination.period=68 would do."
    )
    # Of twenty the eighteenth counts: 1.1 x 30 s, not one straggler of 1,000 s.
    assert needed(dict.fromkeys(range(19), 30.0) | {19: 1000.0}, clients=20)[0] == 33.0


@pytest.mark.parametrize("took", [{}, {0: 4.0, 1: 9.0, 2: 10.0, 3: 500.0}, {0: 90.0}])
def test_half_of_the_tasks_fit_or_nobody_knows_yet(took: dict[int, float]) -> None:
    assert needed(took) == (None, None)


def test_clients_that_restoration_moved_do_not_count() -> None:
    took = {0: 5.0, 1: 50.0, 2: 50.0, 3: 5.0}
    assert needed(took | {0: 50.0}, restored=(0, 1)) == (None, None)  # 50 s and 5 s are left: half
    assert needed(took, restored=(1, 2)) == (None, None)
    assert needed(took, restored=(0,))[0] == 55.0


@pytest.mark.parametrize("coordination", [Synchronous(), Asynchronous(period=10.0)])
def test_others_have_no_period_to_keep(coordination: Coordination) -> None:
    assert needed({0: 90.0, 1: 90.0}, clients=2, coordination=coordination) == (None, None)
