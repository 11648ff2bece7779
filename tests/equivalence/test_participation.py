"""Who takes part: never more clients at work than asked for, and no task for a client that is away."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e import tiny

from equivalence.runs import BRISK, drive, objects, same
from fedgmr.experiments.assembly import Assembly
from fedgmr.experiments.checkpoint import Checkpoint, load_checkpoint
from fedgmr.experiments.run import run_recipe
from fedgmr.federation import federate
from fedgmr.recipe import load_recipe
from fedgmr.server.state import save_state

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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("policy", ["fastest", "round_robin", "by_data", "oort"])
def test_every_policy_runs_with_every_coordination(method: str, policy: str) -> None:
    settings = {"seconds": 300.0, "participation": {"count": 2, "policy": policy}}
    run = objects(tiny.dense(), method, METHODS[method], **settings)  # type: ignore[arg-type]
    tasks, crowd = _watched(run)
    moments = drive(run)
    assert max(crowd) == 2
    asked = {client for _, client in tasks}
    if policy != "fastest":
        assert asked == set(range(CLIENTS))
    elif method == "fedavg":
        assert asked == {0, 1}, "with whole models the best links"
    again = drive(objects(tiny.dense(), method, METHODS[method], **settings))  # type: ignore[arg-type]
    assert [moment.whole() for moment in moments] == [moment.whole() for moment in again]


@pytest.mark.parametrize("policy", ["uniform", "fastest", "round_robin", "by_data", "oort"])
def test_quickstart_with_every_policy(policy: str, tmp_path: Path) -> None:
    words = [
        "task=e2e.tiny:dense",
        "partition.min_samples=5",
        "seconds=2000",
        "device=cpu",
        f"participation={{fraction: 0.3, policy: {policy}}}",
    ]
    result = run_recipe(load_recipe("quickstart", words), tmp_path / "run")
    first, *_, last = result.history
    assert sum(last["updates"]) >= 150
    assert max(row["in_flight"] for row in result.history) == 3
    assert last["accuracy"] > first["accuracy"]
    if policy == "round_robin":
        assert max(last["updates"]) - min(last["updates"]) <= 2, "one for a task that is under way"


@pytest.mark.parametrize("densities", [None, "measured"])
@pytest.mark.parametrize("method", METHODS)
def test_a_cut_run_asks_the_same_clients(method: str, densities: str | None, tmp_path: Path) -> None:
    def run() -> Assembly:
        participation = {"fraction": 0.5, "policy": {"kind": "oort", "explore": 0.5}}
        if densities is None:
            return objects(tiny.normed(), method, METHODS[method], participation=participation)
        fleet = {"name": "low", "clients": 5, "scale": 1e-4, "densities": densities}
        return objects(tiny.normed(), method, METHODS[method], participation=participation, fleet=fleet)

    whole, cut, rest = run(), run(), run()
    expected = drive(whole, ticks=24)[-1]
    drive(cut, ticks=12)
    Checkpoint.of(cut.server, cut.fleet, recorded=0).write(tmp_path, keep=1)
    load_checkpoint(tmp_path, rest.server, rest.fleet)
    assert list(rest.server.asked.items()) == list(cut.server.asked.items())
    federate(rest.server, rest.fleet, seconds=1e9, stop=lambda: rest.server.tick == 24, resumed=True)
    assert same(rest.server.model, expected.model)
    (_, one), (_, other) = save_state(whole.server), save_state(rest.server)
    assert one == other
    assert rest.fleet.state() == whole.fleet.state()
    assert len(whole.server.losses.known) == len(whole.server.seconds_of) == CLIENTS


@pytest.mark.parametrize(
    ("method", "seconds"),
    [
        # 1 MiB over the server's 0.001 MiB/s takes 1000 s, longer than client 0's 500 s at 0.002 MiB/s; training
        # 0.5 s; up at 0.0005 MiB/s 2000 s. The others' own links are the slower ones: 1000 + 0.5 + 4000, and so on.
        ("fedavg", [3000.5, 5000.5, 12500.5, 25000.5, 50000.5]),
        # Densities are in proportion to rates, so on its own link each takes 500 + 0.5 + 2000.
        ("fedgmr", [3000.5, 2500.5, 2500.5, 2500.5, 2500.5]),
    ],
)
def test_links_promise_the_time_of_a_task(method: str, seconds: list[float]) -> None:
    network = {"sizes": "linear", "full_size": 1, "noise": 0.05}
    sections = {"network": network, "participation": {"count": 2, "policy": "fastest"}}
    run = objects(tiny.dense(), method, **sections)
    assert [run.server.seconds_of[client] for client in range(CLIENTS)] == pytest.approx(seconds, rel=1e-5)
    assert objects(tiny.dense(), method, network=network).server.seconds_of == {}, "nobody asks"


def test_a_simulation_tells_how_long_tasks_took() -> None:
    network = {"sizes": "linear", "full_size": 1, "noise": 0}
    sections = {"network": network, "participation": {"count": 2, "policy": "fastest"}}
    run = objects(tiny.dense(), "fedavg", seconds=1e4, **sections)
    drive(run, ticks=1)
    # As above, but client 1's object leaves the server after client 0's, between 1000 s and 2000 s.
    assert [run.server.seconds_of[client] for client in (0, 1)] == pytest.approx([3000.5, 6000.5])
    assert [run.server.seconds_of[client] for client in (2, 3, 4)] == pytest.approx([12500.5, 25000.5, 50000.5])


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
