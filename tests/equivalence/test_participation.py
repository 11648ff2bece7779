"""Who takes part: never more clients at work than asked for, and no task for a client that is away."""

from collections.abc import Callable
from typing import Any

import pytest
from e2e import tiny

from equivalence.runs import BRISK, drive, objects
from fedgmr.experiments.assembly import Assembly

CLIENTS = 5
METHODS: dict[str, dict[str, Any]] = {"fedgmr": BRISK, "fedavg": {}, "fedasync": {}}


def _watched(run: Assembly) -> tuple[list[tuple[float, int]], list[int]]:
    """(time, client) of every task, and how many are in flight after each dispatch; filled while the run goes."""
    tasks: list[tuple[float, int]] = []
    crowd: list[int] = []
    send = run.fleet.dispatch

    def dispatch(given: Any, *, tick: int) -> None:
        send(given, tick=tick)
        tasks.extend((run.fleet.now, task.client) for task in given)
        crowd.append(run.fleet.in_flight)
        assert run.fleet.in_flight == len(run.server.dispatched)

    run.fleet.dispatch = dispatch  # type: ignore[method-assign]
    return tasks, crowd


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("participation", "most"), [({"count": 2}, 2), ({"fraction": 0.5}, 3), ({}, CLIENTS)])
def test_never_more_at_work_than_asked(method: str, participation: dict[str, Any], most: int) -> None:
    run = objects(tiny.dense(), method, METHODS[method], seconds=600.0, participation=participation)
    tasks, crowd = _watched(run)
    drive(run)
    assert max(crowd) == most
    assert {client for _, client in tasks} == set(range(CLIENTS))  # the draw leaves nobody out


def test_a_count_above_the_fleet_means_everyone() -> None:
    whole, more = (
        drive(objects(tiny.dense(), "fedgmr", BRISK, seconds=100.0, participation={"count": count}))
        for count in (CLIENTS, CLIENTS + 7)
    )
    assert [moment.whole() for moment in whole] == [moment.whole() for moment in more]


@pytest.mark.parametrize("method", METHODS)
def test_absent_clients_get_no_task(method: str) -> None:
    absences = [
        {"clients": [0, 3], "start": 20.0, "end": 120.0},
        {"clients": [1], "start": 0.0, "end": 10.0, "every": 50.0},
    ]
    run = objects(tiny.dense(), method, METHODS[method], seconds=400.0, absences=absences)
    tasks, _ = _watched(run)
    drive(run)
    assert all(not 20.0 <= time < 120.0 for time, client in tasks if client in (0, 3))
    assert all(time % 50.0 >= 10.0 - 1e-6 for time, client in tasks if client == 1)
    assert {client for time, client in tasks if time >= 120.0} == set(range(CLIENTS))  # they are back
    assert {client for time, client in tasks if 20.0 <= time < 120.0} >= {1, 2}


@pytest.mark.parametrize("method", METHODS)
def test_the_run_goes_on_when_everyone_was_away(method: str) -> None:
    away: Callable[[float, float], list[dict[str, Any]]] = lambda start, end: [  # noqa: E731
        {"clients": list(range(CLIENTS)), "start": start, "end": end}
    ]
    for start, end in ((0.0, 30.0), (1.0, 200.0)):
        run = objects(tiny.dense(), method, METHODS[method], seconds=600.0, absences=away(start, end))
        tasks, _ = _watched(run)
        drive(run)
        assert all(not start <= time < end for time, _ in tasks)
        assert {client for time, client in tasks if time >= end} == set(range(CLIENTS))
        assert run.fleet.now == pytest.approx(600.0)
