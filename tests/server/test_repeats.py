"""Repeats: an answer that stays where an earlier one was, although the model has moved on."""

import json
import math
from collections.abc import Sequence

import pytest
import torch

from fedgmr.exchange import ClientTask, Update, Verdict
from fedgmr.server.admission import AdmissionRule
from fedgmr.server.repeats import Repeats
from fedgmr.server.rules import ServerRules
from fedgmr.staleness import Constant
from fedgmr.submodels.levels import LevelMap
from server.test_server import answer, server

SIZE = 64


def task(version: int, model: float, *, level: int = 0, levels: LevelMap | None = None) -> ClientTask:
    levels = levels or LevelMap.full(SIZE)
    return ClientTask(
        client=0,
        level=level,
        levels=levels,
        map_version=0,
        first_batch=0,
        version=version,
        model=torch.full((len(levels),), model),
        buffers=torch.zeros(0),
        learning_rate=0.1,
    )


def sent(to: ClientTask, values: Sequence[float] | float) -> Update:
    whole = [values] * to.levels.sizes[to.level] if isinstance(values, float) else values
    return Update(client=0, version=to.version, values=torch.tensor(whole), buffers=to.buffers, loss=0.0)


def near(repeats: Repeats, to: ClientTask, values: Sequence[float] | float) -> float:
    return repeats.nearness(repeats.sample(sent(to, values), to))


def keep(repeats: Repeats, to: ClientTask, values: Sequence[float] | float) -> None:
    repeats.remember(repeats.sample(sent(to, values), to))


@pytest.mark.parametrize(
    ("model", "value", "expected"),
    [
        (2.0, 1.5, 0.0),  # the model has moved by 1, the answer is the same
        (2.0, 1.6, 0.25),  # 0.1 from the earlier answer, a change of 0.4
        (2.0, 2.5, 2.0),  # an honest step: 1 from the earlier answer, a change of 0.5
        (1.16, 1.5, math.inf),  # the model has moved by 0.16, less than half of the change, 0.34
        (1.18, 1.5, 0.0),  # 0.18 against half of 0.32
        (1.0, 1.5, math.inf),  # nothing moves any more, so an honest client repeats itself
    ],
)
def test_nearness_to_an_earlier_answer(model: float, value: float, expected: float) -> None:
    repeats = Repeats(SIZE)
    first = task(0, 1.0)
    assert near(repeats, first, 1.5) == math.inf
    keep(repeats, first, 1.5)
    second = task(1, model)
    assert near(repeats, second, value) == pytest.approx(expected, abs=1e-4)


def test_sub_models_are_compared_where_they_overlap() -> None:
    # Level order of the first map: the even coordinates, then the odd ones; of the second: from 64 on, then before.
    even = LevelMap((torch.arange(128) % 2).to(torch.uint8), (0.5, 1.0))
    upper = LevelMap((torch.arange(128) < 64).to(torch.uint8), (0.5, 1.0))
    repeats = Repeats(128)
    first = task(0, 1.0, levels=even)
    keep(repeats, first, [float(2 * i) for i in range(64)])
    ((_, kept),) = repeats.answers[0]
    assert kept[::2].tolist() == [float(i) for i in range(0, 128, 2)]
    assert torch.isnan(kept[1::2]).all()
    second = task(1, 500.0, levels=upper)
    assert near(repeats, second, [float(i) for i in range(64, 128)]) == 0.0
    one_off = [float(i) + (i == 64) for i in range(64, 128)]
    change = math.sqrt(sum((500 - value) ** 2 for value in one_off[::2]))
    assert near(repeats, second, one_off) == pytest.approx(1 / change)
    whole = task(2, 500.0, level=1, levels=even)
    again = [*(float(2 * i) for i in range(64)), *[0.0] * 64]
    assert near(repeats, whole, again) == 0.0


def test_few_coordinates_tell_nothing() -> None:
    levels = LevelMap((torch.arange(SIZE) >= 31).to(torch.uint8), (0.5, 1.0))
    repeats = Repeats(SIZE)
    first, second = task(0, 1.0, levels=levels), task(1, 2.0, levels=levels)
    keep(repeats, first, 1.5)
    assert near(repeats, second, 1.5) == math.inf, "31 of them"
    whole = task(0, 1.0)
    repeats = Repeats(SIZE)
    keep(repeats, whole, 1.5)
    still = [1.5] * 31 + [2.0] * 33
    assert near(repeats, task(1, 2.0), still) == math.inf, "31 of them have changed"
    small = Repeats(31)
    tiny = task(0, 1.0, levels=LevelMap.full(31))
    keep(small, tiny, 1.5)
    assert small.answers == {}


def test_answers_are_thinned_out_over_the_run() -> None:
    repeats = Repeats(SIZE)
    for version in range(11):
        at = task(version, float(version))
        keep(repeats, at, version + 0.5)
    assert [version for version, _ in repeats.answers[0]] == [0, 2, 4, 6, 8, 9, 10]
    assert sorted(repeats.models) == [0, 2, 4, 6, 8, 9, 10]
    twin = Repeats(SIZE)
    tensors, data = repeats.state()
    twin.restore(tensors, json.loads(json.dumps(data)))
    assert [version for version, _ in twin.answers[0]] == [0, 2, 4, 6, 8, 9, 10]
    assert all(torch.equal(twin.models[v], repeats.models[v]) for v in repeats.models)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(twin.answers[0], repeats.answers[0], strict=True))
    empty = Repeats(SIZE)
    twin.restore(*empty.state())
    assert twin.answers == {}


@pytest.mark.parametrize(("repeat", "value", "refused"), [(0.05, 1.114, True), (0.05, 1.115, False), (0.0, 1.1, False)])
def test_the_server_refuses_a_repeat(repeat: float, value: float, refused: bool) -> None:
    rules = ServerRules(staleness=Constant(), admission=AdmissionRule(repeat=repeat))
    at = server(rules, [1.0] * SIZE, densities=[1.0] * 4)
    at.merge([answer(t, *[1.5 if t.client else 1.1] * SIZE) for t in at.tasks(range(4), 0.0)], 1.0)
    assert at.model[0].item() == pytest.approx(1.4)
    # 0.014 from the earlier answer by a change of 0.286 is 0.049; 0.015 by 0.285 is 0.053.
    (again,) = at.tasks([0], 1.0)
    verdicts = at.merge([answer(again, *[value] * SIZE)], 2.0)
    assert verdicts == ([Verdict(client=0, reason="repeat")] if refused else [])
    assert at.updates[0] == 2 - refused
