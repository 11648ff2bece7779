"""Tasks: holding out, initial weights, tasks by name."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedgmr.settings.refusals import SettingError
from fedgmr.tasks.metrics import Metric, top1
from fedgmr.tasks.task import Task, named_task


def tiny(seed: int = 0, width: int = 3, holdout: float = 0.05) -> Task:
    """A task a recipe could name by import path."""
    inputs = torch.arange(40.0).view(20, 2) + seed
    return Task(
        name="tiny",
        model=lambda: nn.Linear(2, width),
        train=(inputs, torch.zeros(20, dtype=torch.int64)),
        test=(inputs[:4], torch.zeros(4, dtype=torch.int64)),
        holdout=holdout,
    )


def open_ended(**options: int) -> Task:
    return tiny(**options)


def no_task() -> int:
    return 3


def test_top1() -> None:
    outputs = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    hits, count = top1(outputs, torch.tensor([1, 1, 1]))
    assert (int(hits), count) == (2, 3)
    # Sequences: one prediction per position.
    hits, count = top1(outputs.view(1, 3, 2), torch.tensor([[1, 0, 0]]))
    assert (int(hits), count) == (2, 3)


def test_metrics_lead_and_follow() -> None:
    error = Metric(name="error", measure=top1, higher_is_better=False)
    assert [metric.name for metric in replace(tiny(), metric=error, also=(Metric(measure=top1),)).metrics] == [
        "error",
        "accuracy",
    ]
    assert tiny().metrics == (Metric(measure=top1),)
    assert (error.score(0.25), Metric(measure=top1).score(0.25)) == (-0.25, 0.25)
    with pytest.raises(ValueError, match="has the metrics error, error: give each a name of its own"):
        replace(tiny(), metric=error, also=(error,))


@pytest.mark.parametrize(("holdout", "count"), [(5, 5), (0.05, 1), (0.5, 10), (19, 19)])
def test_holding_out(holdout: float, count: int) -> None:
    task = tiny(holdout=holdout)
    clients, server = task.hold_out(1)
    assert len(server) == count
    assert sorted([*clients, *server]) == list(range(20))
    assert (np.diff(clients) > 0).all()
    again = task.hold_out(1)
    assert np.array_equal(again[0], clients)
    assert np.array_equal(again[1], server)
    if count == 10:
        assert not np.array_equal(task.hold_out(2)[1], server)


@pytest.mark.parametrize("holdout", [0, 20, 0.0, 1.0, 0.01])
def test_holding_out_all_or_nothing(holdout: float) -> None:
    with pytest.raises(ValueError, match=r"tiny\.holdout is .*: it must leave samples on both sides of 20"):
        tiny(holdout=holdout).hold_out(0)


def test_initial_weights_belong_to_the_seed_alone() -> None:
    task = tiny()
    torch.manual_seed(1)
    first = task.initial_model(5).weight
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = task.initial_model(5).weight
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state), "other draws go on undisturbed"
    assert not torch.equal(first, task.initial_model(6).weight)


def test_layout_with_the_tasks_patterns() -> None:
    layout = Task(
        name="patterns",
        model=lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)),
        train=tiny().train,
        test=tiny().test,
        keep=("1.*",),
        prune=("0.bias",),
    ).layout()
    assert [place.name for place in layout.prunable] == ["0.weight", "0.bias"]


def test_inputs_are_prepared() -> None:
    task = tiny()
    assert task.inputs(torch.tensor([4])).item() == 4
    doubled = Task(name="d", model=task.model, train=task.train, test=task.test, prepare=lambda x: x * 2)
    assert doubled.inputs(torch.tensor([4])).item() == 8


def test_a_part_of_the_test_set_is_named() -> None:
    inputs, targets = torch.arange(60.0).view(30, 2), torch.arange(30) % 5
    task = Task(
        name="t", model=lambda: nn.Linear(2, 5), train=(inputs, targets), test=(inputs, targets), title="Numbers"
    )
    part = task.tested_on(7, seed=3)
    assert part.title == "Numbers, 7 of 30 test samples"
    assert (len(part.test.inputs), len(part.test.targets)) == (7, 7)
    rows = [row.tolist() for row in task.test.inputs]
    places = [rows.index(row.tolist()) for row in part.test.inputs]
    assert places == sorted(set(places)), "distinct samples, in their order"
    assert all(
        int(task.test.targets[place]) == int(label) for place, label in zip(places, part.test.targets, strict=True)
    )
    assert torch.equal(task.tested_on(7, seed=3).test.inputs, part.test.inputs)
    assert any(not torch.equal(task.tested_on(7, seed=other).test.inputs, part.test.inputs) for other in (4, 5))
    assert task.tested_on(len(rows), seed=3) is task
    assert len(part.train.inputs) == 30


def test_contradictory_data() -> None:
    x, y = tiny().train[:]
    for train in ((x, y[:-1]), (x[:0], y[:0])):
        with pytest.raises(ValueError, match=r"bad\.train has .* inputs and .* targets: give as many of each"):
            Task(name="bad", model=nn.Module, train=train, test=(x, y))
    with pytest.raises(ValueError, match=r"bad\.test has 20 inputs and 3 targets"):
        Task(name="bad", model=nn.Module, train=(x, y), test=(x, y[:3]))
    with pytest.raises(ValueError, match=r"bad\.users has 3 entries: give one per training sample"):
        Task(name="bad", model=nn.Module, train=(x, y), test=(x, y), users=torch.arange(3))


HERE = __name__


def test_tasks_by_import_path() -> None:
    task = named_task(f"{HERE}:tiny", {"width": 4}, seed=7)
    assert task.train.inputs[0, 0] == 7
    assert task.initial_model(0).weight.shape == (4, 2)
    assert named_task(f"{HERE}:open_ended", {"width": 5}, seed=2).train.inputs[0, 0] == 2


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        (f"{HERE}:tiny", {"widht": 4}, r"widht is not a known key: did you mean task\.(options\.)?width"),
        (f"{HERE}:tiny", {"seed": 4}, r"seed is not a known key"),
        ("os:system", {}, r"^task.options.command is missing: os:system needs it\.$"),
        ("math:pi", {}, r"^task\.name is 'math:pi': give a function that returns a fedgmr Task\.$"),
        ("builtins:dict", {}, r"^task\.name is 'builtins:dict': give a function that returns a fedgmr Task\.$"),
        (f"{HERE}:no_task", {}, "which returned int: return a fedgmr Task"),
        ("mnist5", {}, "task.name is 'mnist5': .*mnist5k"),
    ],
)
def test_tasks_that_cannot_be_named(name: str, options: dict[str, int], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        named_task(name, options, seed=0)
