"""The server beside a fleet of real nodes: tasks that never come back, clients that join, levels from outside."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedgmr.exchange import ClientProfile, ClientTask, News, Update
from fedgmr.methods import named_method
from fedgmr.server import Server
from fedgmr.server.label_aware import Labels
from fedgmr.submodels.layout import Layout

RULES = named_method("fedgmr", {"interval": 1, "restoration": {"patience": 1}, "coordination": {"period": 1.0}})


def make_server(samples: Sequence[int] = (0, 0, 0), *, weighting: str = "uniform") -> Server:
    layout = Layout.of(nn.Linear(10, 10))
    owned = torch.zeros(len(samples), 4, dtype=torch.bool)
    return Server(
        rules=replace(RULES, weighting=weighting),
        layout=layout,
        model=torch.linspace(-1, 1, layout.size),
        buffers=torch.empty(0),
        clients=[ClientProfile(density=0.1, samples=count) for count in samples],
        steps=5,
        learning_rate=lambda tick: 0.1,
        seconds=100.0,
        validate=lambda model, buffers: lambda: 0.5,
        labels=Labels(owned=owned, coordinates=torch.arange(4), classes=torch.arange(4)),
    )


def update_for(task: ClientTask) -> Update:
    values = task.levels.pack(task.model, task.level)
    return Update(client=task.client, version=task.version, values=values, buffers=task.buffers, loss=0.1)


def test_a_task_given_up_is_handed_out_again_with_the_same_mini_batches() -> None:
    server = make_server()
    first = server.tasks([0, 1, 2], now=0.0)
    server.merge([update_for(first[1])], now=1.0)
    server.learn([News(client=0, lost=True), News(client=1, lost=True)])  # 1 has no task in flight: nothing to give up
    assert sorted(server.dispatched) == [2]
    again = server.tasks([0, 1], now=1.0)
    assert [(task.client, task.first_batch, task.version) for task in again] == [(0, 0, 1), (1, 5, 1)]
    assert server.batches == [5, 10, 5]


def test_a_lost_task_does_not_count_as_taking_part() -> None:
    server = make_server()
    server.participation = replace(server.participation, count=2)
    assert [task.client for task in server.tasks([0, 1], now=0.0)] == [0, 1]
    assert server.tasks([2], now=0.0) == []
    server.learn([News(client=0, lost=True)])
    assert [task.client for task in server.tasks([2], now=0.0)] == [2]


def test_clients_weigh_by_what_they_say_and_as_the_average_before() -> None:
    server = make_server(weighting="samples")
    assert server.weights.clients == [1.0, 1.0, 1.0]
    server.learn([News(client=0, samples=30)])
    assert server.weights.clients == [1.0, 1.0, 1.0]
    server.learn([News(client=2, samples=10)])
    assert server.weights.clients == [1.5, 1.0, 0.5]
    server.learn([News(client=2, samples=90)])
    assert server.weights.clients == [0.5, 1.0, 1.5]
    assert make_server((30, 0, 10), weighting="samples").weights.clients == [1.5, 1.0, 0.5]
    assert make_server((30, 20, 10)).weights.clients == [1.0, 1.0, 1.0]


def test_classes_are_the_ones_said_last() -> None:
    server = make_server()
    server.learn([News(client=1, samples=5, classes=(0, 3))])
    server.learn([News(client=1, samples=5, classes=(2,))])
    assert server.labels is not None
    assert server.labels.owned.tolist() == [[False] * 4, [False, False, True, False], [False] * 4]


def test_a_level_from_outside_moves_a_client_both_ways_until_restoration_has_moved_it() -> None:
    server = make_server()
    assert server.client_levels == [1, 1, 1]
    server.learn([News(client=0, level=3)])
    server.learn([News(client=1, level=0)])
    assert server.client_levels == [3, 0, 1]
    for now in (1.0, 2.0):  # a constant metric saturates at the second check
        server.merge([], now=now)
    assert server.client_levels == [4, 1, 2]
    assert server.restored == {0: 4, 1: 1, 2: 2}
    server.learn([News(client=0, level=2)])
    server.learn([News(client=1, level=3)])
    assert server.client_levels == [4, 3, 2]
    server.learn([News(client=1, level=2)])
    server.learn([News(client=2, level=0)])
    assert server.client_levels == [4, 2, 2], "a link has given what is above that, and takes it back"
    server.learn([News(client=1, level=0)])
    assert server.client_levels == [4, 1, 2]


@pytest.mark.parametrize("level", [1, 2])
def test_a_new_level_is_watched_afresh(level: int) -> None:
    server = make_server()
    server.merge([], now=1.0)
    server.learn([News(client=0, level=level)])
    server.merge([], now=2.0)
    # Client 0 moves only if it stayed on the level that was checked before.
    assert server.client_levels == [2, 2, 2]
    assert (0 in server.restored) == (level == 1)
