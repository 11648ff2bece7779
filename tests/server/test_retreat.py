"""When clients move down again: exact sequences, and whole runs whose links become slow on the way.

The net has 100 weights and 10 biases, so its levels have 15, 20, 30, 60 and 110 coordinates. The period is 1 s.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.runs import BRISK, LINKS, Moment, drive, objects, same
from torch import nn

from fedgmr.exchange import ClientProfile, News
from fedgmr.experiments.assembly import Assembly
from fedgmr.experiments.checkpoint import Checkpoint, load_checkpoint
from fedgmr.federation import federate
from fedgmr.methods import named_method
from fedgmr.server import Server
from fedgmr.server.retreat import LastTask, Retreat
from fedgmr.server.state import save_state
from fedgmr.submodels.layout import Layout

SIZES = (15, 20, 30, 60, 110)


def make_server(density: float = 0.1, **restoration: Any) -> Server:
    """A server whose clients saturate at every second check; a task of more than 10 s is too slow."""
    layout = Layout.of(nn.Linear(10, 10))
    settings = {"kind": "saturation", "retreat": {"periods": 10.0, "tasks": 2, "back": 0.5}} | restoration
    if settings["kind"] == "saturation":
        settings["patience"] = 1
    return Server(
        rules=named_method("fedgmr", {"interval": 1, "restoration": settings, "coordination": {"period": 1.0}}),
        layout=layout,
        model=torch.linspace(-1, 1, layout.size),
        buffers=torch.empty(0),
        clients=[ClientProfile(density=density, samples=1)] * 2,
        steps=5,
        learning_rate=lambda tick: 0.1,
        seconds=100.0,
        validate=lambda model, buffers: lambda: 0.5,
    )


def took(server: Server, *seconds: float) -> list[int]:
    """The level of client 0 after tasks that took so long."""
    levels = []
    for each in seconds:
        server.learn([News(client=0, seconds=each)])
        levels.append(server.client_levels[0])
    return levels


def check(server: Server, *, times: int = 1) -> list[int]:
    """The levels after so many checks."""
    for _ in range(times):
        server.merge([], now=1.0)
    return server.client_levels


def test_a_task_is_too_slow_above_the_bound_and_only_tasks_in_a_row_count() -> None:
    rule, last, slow = Retreat(periods=10.0, tasks=2), None, []
    for seconds in (20.0, 20.1, 500.0, 3.0, 21.0):  # the period is 2 s, so the bound is 20 s
        last = rule.noted(last, level=1, seconds=seconds, period=2.0)
        slow.append(last.slow)
    assert slow == [0, 1, 2, 0, 1]
    assert last == LastTask(level=1, seconds=21.0, slow=1)


@pytest.mark.parametrize(
    ("level", "seconds", "goal", "admitted"),
    [
        (1, 3.3, 2, True),  # 3.3 x 30 / 20 = 4.95 s, and half of 10 s is the bound
        (1, 3.4, 2, False),  # 5.1 s
        (0, 1.0, 3, True),  # 1 x 60 / 15 = 4 s
        (0, 1.0, 4, False),  # 1 x 110 / 15 = 7.3 s
        (4, 9.0, 3, True),  # 9 x 60 / 110 = 4.9 s: its last task was larger than the one to come
    ],
)
def test_a_client_may_move_up_where_the_larger_task_is_well_within_the_bound(
    level: int, seconds: float, goal: int, admitted: bool
) -> None:
    last = LastTask(level=level, seconds=seconds, slow=0)
    assert Retreat(periods=10.0, back=0.5).admits(last, goal, sizes=SIZES, period=1.0) == admitted
    assert Retreat(periods=10.0, back=0.5).admits(None, goal, sizes=SIZES, period=1.0), "nothing is known against it"


def test_a_client_moves_down_level_by_level_and_never_below_its_preset() -> None:
    server = make_server()
    assert server.levels.sizes == SIZES
    assert check(server, times=4) == [3, 3]
    assert server.restored == {0: 3, 1: 3}
    # The count begins again after every move; 10 s is not too slow.
    assert took(server, 11.0, 11.0, 11.0, 10.0, 11.0, 99.0, 11.0, 11.0, 11.0) == [3, 2, 2, 2, 2, 1, 1, 1, 1]
    assert server.client_levels == [1, 3]
    assert server.restored == {1: 3}, "nothing of what restoration had added is left to client 0"


def test_the_watcher_of_a_client_that_moved_down_begins_again() -> None:
    server = make_server()
    check(server, times=3)
    server.memory.clients[0].hold = 5
    took(server, 11.0, 11.0)
    watcher = server.memory.clients[0]
    assert (watcher.best, watcher.waited, watcher.hold) == (float("-inf"), 0, 5)
    assert server.memory.clients[1].best == 0.5


def test_a_client_on_a_slow_link_waits_and_moves_up_as_soon_as_it_is_fast_enough() -> None:
    server = make_server()
    took(server, 3.4)  # level 2 would take 5.1 s
    assert check(server, times=4) == [1, 3]
    took(server, 3.3)
    assert check(server) == [2, 3], "it has been saturated for long"


def test_a_task_counts_with_the_level_that_it_was_dispatched_at() -> None:
    server = make_server()
    server.tasks([0, 1], now=0.0)
    check(server, times=2)
    assert server.client_levels == [2, 2]
    took(server, 2.0)
    assert server.memory.last[0] == LastTask(level=1, seconds=2.0, slow=0)
    # By its task of level 1, level 3 takes 2 x 60 / 20 = 6 s: too long. Of level 2 it would be 2 x 60 / 30 = 4 s.
    assert check(server, times=2) == [2, 3]


def test_a_floor_lifts_a_client_as_far_as_its_link_admits() -> None:
    server = make_server(kind="fixed_time")
    took(server, 1.5)  # level 3: 1.5 x 60 / 20 = 4.5 s; level 4: 8.25 s
    server.merge([], now=80.0)  # the floor is the top
    assert server.client_levels == [3, 4]
    took(server, 11.0, 11.0)
    server.merge([], now=81.0)
    assert server.client_levels == [2, 4], "what was taken back is not given again at the next check"


def test_measured_levels_are_the_floor_of_a_retreat_and_move_freely_below_restoration() -> None:
    server = make_server()
    assert check(server, times=4) == [3, 3]
    server.learn([News(client=0, level=2)])
    assert server.client_levels[0] == 3, "measuring alone takes nothing back"
    assert took(server, 11.0, 11.0, 11.0, 11.0) == [3, 2, 2, 2]
    server.learn([News(client=0, level=0)])
    assert server.client_levels[0] == 0


def test_without_a_retreat_nothing_is_remembered_or_taken_back() -> None:
    server = make_server(retreat=None)
    check(server, times=2)
    assert took(server, 11.0, 11.0, 11.0, 11.0) == [2, 2, 2, 2]
    assert server.memory.last == {}


@pytest.mark.parametrize("kind", ["synchronous", "fastest"])
def test_it_needs_a_period(kind: str) -> None:
    with pytest.raises(ValueError, match=f"retreat is given and coordination is {kind}, which has no period"):
        named_method("fedgmr", {"coordination": kind, "restoration": {"retreat": {}}})


# Whole runs. From tick 20 on the link of client 2 has an eighth of its rate, and it holds the whole model by then.
TIGHT = {**BRISK, "restoration": {"patience": 1, "retreat": {"periods": 5.0, "tasks": 1, "back": 0.5}}}
SLOW = [tuple(rate / (8 if i == 2 else 1) for rate in link.mean_rates(None)) for i, link in enumerate(LINKS)]


def slowed(run: Assembly, ticks: int) -> list[Moment]:
    """The run, with the link of client 2 slow from tick 20 on."""

    def watch() -> None:
        if run.server.tick == 20:
            run.fleet.network.rates = SLOW

    return drive(run, ticks=ticks, watch=watch)


def test_a_run_whose_link_becomes_slow_takes_levels_back_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole, cut, rest = (objects(tiny.normed(), "fedgmr", TIGHT) for _ in range(3))
    levels = [moment.levels[2] for moment in slowed(whole, 55)]
    assert list(dict.fromkeys(levels)) == [2, 3, 4], levels
    assert levels[-1] == 2, "its preset one"
    assert levels[20:] == sorted(levels[20:], reverse=True)
    slowed(cut, 20 + levels[20:].index(3))
    Checkpoint.of(cut.server, cut.fleet, recorded=0).write(tmp_path, keep=1)
    load_checkpoint(tmp_path, rest.server, rest.fleet)
    rest.fleet.network.rates = SLOW
    federate(rest.server, rest.fleet, seconds=1e9, stop=lambda: rest.server.tick == 55, resumed=True)
    assert same(rest.server.model, whole.server.model)
    assert save_state(rest.server)[1] == save_state(whole.server)[1]


def test_on_constant_links_the_default_bound_changes_nothing() -> None:
    """A full model takes 20 times as long as the preset one, and less than 0.7 x 30 periods."""
    plain = drive(objects(tiny.normed(), "fedgmr", BRISK), ticks=60)
    rules = {**BRISK, "restoration": {"patience": 1, "retreat": {}}}
    bound = drive(objects(tiny.normed(), "fedgmr", rules), ticks=60)
    assert plain[-1].levels == (4, 4, 4, 4, 4)
    assert [moment.whole() for moment in bound] == [moment.whole() for moment in plain]
