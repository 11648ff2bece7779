"""The server: versions and staleness, the buffer, restoration checks, level maps of busy clients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientProfile, ClientTask, Diverged, Report, Update
from fedgmr.server import Server, ServerRules
from fedgmr.server.aggregation import GradientAverage, MaskAware, Mixing, ZeroPadded
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Asynchronous
from fedgmr.server.participation import Participation
from fedgmr.server.recovery import RecoveryRule
from fedgmr.server.restoration import Check, FixedTime, Restoration, Saturation
from fedgmr.staleness import Constant, Polynomial
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import Ladder, LevelMap
from fedgmr.submodels.rankings import Magnitude, RankingInputs


def server(
    rules: ServerRules,
    model: Sequence[float] = (0.0,),
    *,
    densities: Sequence[float] = (1.0, 1.0),
    samples: Sequence[int] = (),
    buffers: Sequence[float] = (),
    validate: Callable[[Tensor, Tensor], float] | None = None,
    **more: Any,
) -> Server:
    return Server(
        rules=rules,
        layout=Layout.of(nn.Linear(len(model), 1, bias=False)),
        model=torch.tensor(model),
        buffers=torch.tensor(buffers),
        clients=[
            ClientProfile(density=density, samples=n)
            for density, n in zip(densities, samples or [1] * len(densities), strict=True)
        ],
        steps=5,
        learning_rate=lambda tick: 1.0 / (1 + tick),
        seconds=100.0,
        validate=None if validate is None else partial(partial, validate),
        **more,
    )


def answer(task: ClientTask, *values: float, report: Report | None = None, loss: float = 0.0) -> Update:
    return Update(
        client=task.client,
        version=task.version,
        values=torch.tensor(values),
        buffers=task.buffers,
        loss=loss,
        report=report,
    )


ALPHA_1 = ServerRules(staleness=Polynomial(alpha=1.0))


def three_merges(rules: ServerRules, **more: Any) -> tuple[Server, list[float]]:
    """Client 0 answers at once, twice; client 1's first answer comes with the second merge; the third has none."""
    at = server(rules, **more)
    first, slow = at.tasks([0, 1], 0.0)
    models = []
    at.merge([answer(first, 2.0)], 1.0)
    models.append(at.model.item())
    (second,) = at.tasks([0], 1.0)
    at.merge([answer(slow, 10.0), answer(second, 4.0)], 2.0)
    models.append(at.model.item())
    at.merge([], 3.0)
    models.append(at.model.item())
    return at, models


def test_tasks_say_what_to_do() -> None:
    at = server(ServerRules(ladder=(0.5, 1.0), ranking=Magnitude(), interval=100), (1.0, 2.0), densities=(1.0, 0.5))
    one, two = at.tasks([0, 1], 0.0)
    assert [(t.client, t.version, t.level, t.first_batch, t.learning_rate) for t in (one, two)] == [
        (0, 0, 1, 0, 1.0),
        (1, 0, 0, 0, 1.0),
    ]
    assert one.model is two.model is at.model
    at.merge([answer(one, 1.0, 2.0)], 1.0)
    (three,) = at.tasks([0], 1.0)
    assert (three.version, three.first_batch, three.learning_rate) == (1, 5, 0.5)
    assert at.batches == [10, 5]
    assert at.updates == [1, 0]
    assert at.dispatched == {0: three, 1: two}


def test_the_learning_rate_follows_the_schedule_of_the_coordination() -> None:
    at = server(ServerRules(coordination=Asynchronous(period=2.0)))
    assert at.tasks([0], 6.0)[0].learning_rate == 0.25


def test_an_update_merged_at_the_next_merge_is_fresh() -> None:
    at, models = three_merges(ALPHA_1)
    # 2; (4 + 10/2) / (1 + 1/2); (4/2 + 10/3) / (1/2 + 1/3)
    assert models == pytest.approx([2.0, 6.0, 6.4])
    assert at.staleness == [1, 2]
    assert at.tick == 3

    fresh = server(ALPHA_1)
    tasks = fresh.tasks([0, 1], 0.0)
    fresh.merge([answer(task, 1.0) for task in tasks], 1.0)
    assert fresh.staleness == [0, 0]


def test_staleness_is_unknown_before_the_first_update() -> None:
    at = server(ALPHA_1)
    (task,) = at.tasks([1], 0.0)
    at.merge([answer(task, 1.0)], 1.0)
    assert at.staleness == [None, 0]


def test_the_buffer_keeps_the_newest_update_of_each_client() -> None:
    at = server(ServerRules(staleness=Constant()))
    for value in (2.0, 8.0):
        (task,) = at.tasks([0], 0.0)
        at.merge([answer(task, value)], 0.0)
    assert at.model.item() == 8.0
    assert list(at.buffer) == [0]
    assert at.buffer[0].version == 1


def test_old_updates_leave_the_buffer() -> None:
    at, models = three_merges(replace(ALPHA_1, buffer=BufferRule(max_staleness=1)))
    assert models == pytest.approx([2.0, 6.0, 4.0])
    assert list(at.buffer) == [0]
    assert at.staleness == [1, 1], "as it was when last merged"
    _, models = three_merges(replace(ALPHA_1, buffer=BufferRule(max_staleness=0)))
    assert models == [2.0, 4.0, 4.0]


def test_without_a_buffer_every_update_counts_once() -> None:
    at, models = three_merges(replace(ALPHA_1, buffer=BufferRule(keep=False)))
    assert models == pytest.approx([2.0, 6.0, 6.0])
    (task,) = at.tasks([0], 3.0)
    at.merge([answer(task, 9.0)], 4.0)
    assert at.model.item() == 9.0
    assert list(at.buffer) == [0], "the last merge's own, for the padded model"


def test_a_waiting_update_can_keep_its_weight() -> None:
    # Client 1's 10 was one merge old when it came, and weighs a half; client 0's 4 came at once.
    at, models = three_merges(replace(ALPHA_1, buffer=BufferRule(aging=False)))
    assert models == pytest.approx([2.0, 6.0, 6.0])
    assert padded(at) == pytest.approx([6.0])
    (task,) = at.tasks([0], 3.0)
    at.merge([], 4.0)
    at.merge([answer(task, 7.0)], 5.0)
    # Now client 0's is one merge old too.
    assert at.model.item() == pytest.approx(8.5)
    assert at.staleness == [1, 4], "the record has the age, whatever the weight"


def test_arrivals_alone_beside_a_buffer() -> None:
    rules = replace(ALPHA_1, aggregation=MaskAware(over="arrivals"))
    at, models = three_merges(rules)
    assert models == pytest.approx([2.0, 6.0, 6.0]), "nothing arrives at the third merge"
    assert at.staleness == [0, 1], "as at the second merge: the third merged nothing"
    (task,) = at.tasks([0], 3.0)
    at.merge([answer(task, 9.0)], 4.0)
    assert at.model.item() == 9.0
    # The padded model is still over both: 9, and 10 that is three merges old.
    assert padded(at) == pytest.approx([(9.0 + 10.0 / 4) / (1 + 1 / 4)])


def test_the_share_of_the_arrivals_in_the_weight_of_the_fleet() -> None:
    rules = replace(ALPHA_1, aggregation=MaskAware(over="arrivals", mix=True), buffer=BufferRule(keep=False))
    at, models = three_merges(rules)
    # Client 1 is not heard of yet and weighs 1: half of 2. Then both: 1.5 of 1.5. Then nobody.
    assert models == pytest.approx([1.0, 6.0, 6.0])
    (task,) = at.tasks([0], 3.0)
    at.merge([answer(task, 9.0)], 4.0)
    # Client 0 weighs 1, client 1 weighed 1/2 when it was last heard of: two thirds of the way.
    assert at.model.item() == pytest.approx(8.0)
    weighted = server(replace(rules, weighting="samples"), samples=(30, 10))
    (first, _) = weighted.tasks([0, 1], 0.0)
    weighted.merge([answer(first, 4.0)], 1.0)
    assert weighted.model.item() == pytest.approx(3.0), "30 of 40 samples"


def padded(at: Server) -> list[float]:
    found = at.padded()
    assert found is not None
    return [*found[0].tolist(), *found[1].tolist()]


def test_the_padded_model_has_zeros_where_a_client_holds_nothing() -> None:
    rules = replace(ALPHA_1, ladder=(0.5, 1.0), ranking=Magnitude(), interval=100)
    at = server(rules, (1.0, 2.0), densities=(1.0, 0.5), buffers=(0.0,))
    assert at.padded() is None
    whole, half = at.tasks([0, 1], 0.0)
    at.merge([replace(answer(whole, 8.0, 4.0), buffers=torch.tensor([2.0]))], 1.0)
    assert padded(at) == [4.0, 8.0, 2.0], "in level order the second coordinate is the first"
    at.merge([replace(answer(half, 2.0), buffers=torch.tensor([6.0]))], 2.0)
    # Both are one merge old: they weigh the same, though only client 0 holds the first coordinate.
    assert padded(at) == [2.0, 5.0, 4.0]
    assert at.model.tolist() == [4.0, 5.0]
    (again,) = at.tasks([0], 2.0)
    at.merge([replace(answer(again, 9.0, 3.0), buffers=torch.tensor([0.0]))], 3.0)
    # Now client 1's is two merges old and weighs a third.
    assert padded(at) == pytest.approx([3.0 / (4 / 3), (9.0 + 2.0 / 3) / (4 / 3), 2.0 / (4 / 3)])


def test_without_a_buffer_the_padded_model_is_of_the_last_updates() -> None:
    rules = replace(ALPHA_1, buffer=BufferRule(keep=False), aggregation=Mixing(rate=0.5))
    at, _ = three_merges(rules)
    assert padded(at) == [6.0], "(4 + 10/2) / (1 + 1/2): a merge without updates changes nothing"
    (task,) = at.tasks([1], 3.0)
    at.merge([answer(task, 7.0)], 4.0)
    assert padded(at) == [7.0]
    assert list(at.buffer) == [1]
    (late,) = at.tasks([1], 4.0)
    limited = replace(rules, buffer=BufferRule(keep=False, max_staleness=0))
    at.rules = limited
    at.merge([], 5.0)
    at.merge([answer(late, 1.0)], 6.0)
    assert padded(at) == [7.0], "an update that is too old is not merged"


def test_changes_are_taken_from_the_model_the_client_started_from() -> None:
    rules = replace(ALPHA_1, aggregation=GradientAverage())
    # 0 + 2/2; 1 + ((4 - 1) + (10 - 0)/2)/2; nothing fresh
    at, models = three_merges(rules)
    assert models == [1.0, 5.0, 5.0]
    assert at.staleness == [0, 1], "what is kept for the padded model is not merged again"


def test_other_aggregations_in_the_server() -> None:
    # halves of fresh updates, a quarter of the one that is one merge old; in the order of the clients
    at, models = three_merges(replace(ALPHA_1, aggregation=Mixing(rate=0.5)))
    assert models == [1.0, 2.5 * 0.75 + 2.5, 4.375]
    assert at.staleness == [0, 1]
    assert three_merges(replace(ALPHA_1, aggregation=ZeroPadded()))[1] == pytest.approx([2.0, 6.0, 6.4])


def test_weighting_by_samples() -> None:
    def merged(weighting: str) -> float:
        at = server(ServerRules(weighting=weighting), samples=(1, 3))  # type: ignore[arg-type]
        one, two = at.tasks([0, 1], 0.0)
        at.merge([answer(one, 0.0), answer(two, 4.0)], 1.0)
        return at.model.item()

    assert merged("uniform") == 2.0
    assert merged("samples") == 3.0
    # The mean weight is 1, so that rules that do not normalise keep their scale: weights 1/2 and 3/2 over 2 clients.
    at = server(ServerRules(weighting="samples", aggregation=GradientAverage()), samples=(1, 3))
    one, two = at.tasks([0, 1], 0.0)
    at.merge([answer(one, 8.0), answer(two, 4.0)], 1.0)
    assert at.model.item() == (8 / 2 + 4 * 3 / 2) / 2


def test_the_previous_model_is_one_merge_old() -> None:
    at = server(ALPHA_1, (3.0,))
    assert at.previous is None
    (task,) = at.tasks([0], 0.0)
    at.merge([answer(task, 5.0)], 1.0)
    assert at.previous is not None
    assert (at.previous.item(), at.model.item()) == (3.0, 5.0)


def test_buffers_are_averaged_with_the_weights() -> None:
    at = server(ALPHA_1, buffers=(7.0,))
    one, two = at.tasks([0, 1], 0.0)
    at.merge([replace(answer(one, 0.0), buffers=torch.tensor([1.0]))], 1.0)
    assert at.buffers.tolist() == [1.0]
    at.merge([replace(answer(two, 0.0), buffers=torch.tensor([4.0]))], 2.0)
    assert at.buffers.tolist() == [2.5], "both are one merge old"


def test_where_all_diverge_the_run_ends() -> None:
    for value in (math.nan, math.inf):
        at = server(ALPHA_1)
        one, two = at.tasks([0, 1], 0.0)
        assert [verdict.reason for verdict in at.merge([answer(two, 0.0, loss=value)], 1.0)] == ["client-diverged"]
        with pytest.raises(Diverged, match=r"diverged .* at tick 2: lower training\.learning_rate") as error:
            at.merge([answer(one, 0.0, loss=value)], 2.0)
        assert error.value.tick == 2


def test_losses_on_a_device_are_looked_at_later() -> None:
    at = server(replace(ALPHA_1, recovery=RecoveryRule(times=0)), densities=[1.0] * 5)

    def tick(broken: set[int]) -> None:
        losses = {client: math.nan if client in broken else 0.5 for client in range(5)}
        at.merge([replace(answer(t, 0.0), loss=torch.tensor(losses[t.client])) for t in at.tasks(range(5), 0.0)], 1.0)

    tick({3})
    assert [(v.client, v.reason, v.merged) for v in at.settle()] == [(3, "client-diverged", True)]
    assert (at.settle(), at.losses.lost) == ([], {3})
    tick({0, 1})  # client 3 is back
    assert len(at.settle()) == 2
    assert at.losses.lost == {0, 1}
    tick({0, 1, 2})
    assert (at.tick, at.diverged) == (3, False), "nobody has looked"
    with pytest.raises(Diverged, match=r"client 0 diverged \(loss or weights not finite\) at tick 3") as error:
        at.end()
    assert [verdict.client for verdict in error.value.verdicts] == [0, 1, 2]


def test_losses_that_nobody_waits_for_are_looked_at_the_next_time() -> None:
    at = server(ALPHA_1, densities=[1.0] * 5)

    def tick(broken: int) -> None:
        losses = [math.nan if client == broken else 0.5 for client in range(5)]
        at.merge([replace(answer(t, 0.0), loss=torch.tensor(losses[t.client])) for t in at.tasks(range(5), 0.0)], 1.0)

    tick(3)
    at.losses.look(wait=False)
    assert at.losses.verdicts() == []
    tick(1)
    at.losses.look(wait=False)
    assert [verdict.client for verdict in at.losses.verdicts()] == [3]
    assert at.losses.known == dict.fromkeys((0, 1, 2, 4), 0.5)
    assert [verdict.client for verdict in at.settle()] == [1], "with those that were on their way"
    tick(2)
    tick(4)
    assert [verdict.client for verdict in at.settle()] == [2, 4]
    assert at.losses.lost == {4}


def test_participation_counts_the_tasks_in_flight() -> None:
    at = server(ALPHA_1, densities=[1.0] * 6, participation=Participation(count=3), seed=4)
    first = at.tasks(range(6), 0.0)
    assert len(first) == 3
    busy = {task.client for task in first}
    assert at.tasks([c for c in range(6) if c not in busy], 0.0) == []
    at.merge([answer(first[0], 1.0)], 1.0)
    free = [c for c in range(6) if c not in busy or c == first[0].client]
    assert len(at.tasks(free, 1.0)) == 1


def test_densities_off_the_ladder() -> None:
    rules = ServerRules(ladder=(0.5, 1.0), ranking=Magnitude())
    assert [rules.level_of(d) for d in (0.5, 1.0, 0.5 + 1e-12)] == [0, 1, 0]
    with pytest.raises(ValueError, match=r"density 0\.3 is not on the ladder \[0\.5, 1\.0\]"):
        server(rules, densities=(0.3,))
    assert ServerRules().level_of(0.3) == 0, "without sub-models every density is the whole model"
    with pytest.raises(ValueError, match="not increasing"):
        ServerRules(ladder=(1.0, 0.5))


class Validator:
    """A validation metric that is the same for every model, and the models it was asked for."""

    def __init__(self, metric: float = 0.5) -> None:
        self.metric, self.models, self.buffers = metric, list[list[float]](), list[list[float]]()

    def __call__(self, model: Tensor, buffers: Tensor) -> float:
        self.models.append(model.tolist())
        self.buffers.append(buffers.tolist())
        return self.metric


CLIMBING = ServerRules(
    ladder=(0.25, 0.5, 1.0), ranking=Magnitude(), restoration=Saturation(patience=1), interval=2, staleness=Constant()
)
MODEL = (1.0, 4.0, 2.0, 3.0)


def test_checks_come_every_interval_and_measure_each_level_once() -> None:
    validate = Validator()
    at = server(CLIMBING, MODEL, densities=(0.25, 0.25, 0.5, 1.0), validate=validate)
    at.merge([], 1.0)
    assert (validate.models, at.map_version) == ([], 0)
    at.merge([], 2.0)
    # Levels 0 and 1 are in use below the top: one and two of four weights.
    assert validate.models == [[0, 4, 0, 0], [0, 4, 0, 3]]
    assert at.client_levels == [0, 0, 1, 2], "a first observation moves nobody"
    assert at.map_version == 1
    at.merge([], 3.0)
    assert len(validate.models) == 2
    at.merge([], 4.0)
    assert len(validate.models) == 4
    assert at.client_levels == [1, 1, 2, 2]
    assert [at.density(c) for c in range(4)] == [0.5, 0.5, 1.0, 1.0]
    assert at.map_version == 2
    at.merge([], 5.0)
    at.merge([], 6.0)
    assert validate.models[4:] == [[0, 4, 0, 3]], "only level 1 is left"
    for now in range(7, 13):
        at.merge([], float(now))
    assert at.client_levels == [2, 2, 2, 2]
    assert len(validate.models) == 6, "nobody is left to restore"


def test_the_global_scope_measures_the_whole_model() -> None:
    validate = Validator()
    rules = replace(CLIMBING, restoration=Saturation(patience=1, scope="global"))
    at = server(rules, MODEL, densities=(0.25, 0.5), validate=validate)
    for now in range(4):
        at.merge([], float(now))
    assert validate.models == [list(MODEL), list(MODEL)]
    assert at.client_levels == [1, 2]


def test_own_updates_are_measured_on_arrival() -> None:
    validate = Validator()
    rules = replace(CLIMBING, restoration=Saturation(patience=9, metric="own_update"), buffer=BufferRule(keep=False))
    at = server(rules, MODEL, densities=(0.25, 0.5, 1.0), buffers=(7.0,), validate=validate)
    assert at.levels.order_of(4).tolist() == [1, 3, 0, 2]
    small, middle, whole = at.tasks(range(3), 0.0)
    updates = [answer(small, 9.0), answer(middle, 6.0, 5.0), answer(whole, 1.0, 1.0, 1.0, 1.0)]
    at.merge(updates, 1.0)
    # The first of each below the top: zero outside its sub-model, with its own buffers.
    assert validate.models == [[0, 9, 0, 0], [0, 6, 0, 5]]
    assert at.own_metrics == {0: 0.5, 1: 0.5}
    validate.metric = 0.6
    (again,) = at.tasks([0], 1.0)
    statistics = torch.tensor([3.0])
    at.merge([replace(answer(again, 8.0), buffers=statistics)], 2.0)
    assert validate.models[2:] == [[0, 8, 0, 0]], "client 0's second, after an interval of two"
    assert validate.buffers[-1] == [3.0]
    assert at.own_metrics == {0: 0.6, 1: 0.5}
    assert {client: watcher.best for client, watcher in at.memory.clients.items()} == {0: 0.6, 1: 0.5}
    (third,) = at.tasks([0], 2.0)
    at.merge([answer(third, 7.0)], 3.0)
    at.merge([], 4.0)
    assert len(validate.models) == 3, "nothing of its own level either"
    assert [watcher.waited for watcher in at.memory.clients.values()] == [1, 1], "the last values again"


def test_statistics_kept_per_width_are_measured_with_their_own_last() -> None:
    """The evaluator takes the last ones it is given: those of the width that is measured, as for a level's view."""
    validate = Validator()
    rules = replace(CLIMBING, restoration=Saturation(metric="own_update"))
    at = server(rules, MODEL, densities=(0.25,), buffers=(7.0, 8.0), validate=validate)
    (task,) = at.tasks([0], 0.0)
    at.merge([replace(answer(task, 9.0), buffers=torch.tensor([3.0]))], 1.0)
    assert validate.buffers == [[3.0]]

    validate = Validator()
    at = server(CLIMBING, MODEL, densities=(0.25, 0.5), buffers=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), validate=validate)
    at.layout = Layout.of(nn.Sequential(nn.Linear(4, 1, bias=False), nn.BatchNorm1d(1, affine=False)))
    assert at.layout.buffer_size == 2
    at.merge([], 1.0), at.merge([], 2.0)
    assert validate.buffers == [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]


def test_the_servers_watcher_measures_the_padded_model() -> None:
    validate = Validator()
    rules = replace(CLIMBING, restoration=Saturation(patience=1, metric="own_update", server=True), interval=1)
    at = server(rules, MODEL, densities=(0.25, 0.5), validate=validate)
    small, middle = at.tasks(range(2), 0.0)
    at.merge([answer(small, 8.0), answer(middle, 6.0, 4.0)], 1.0)
    assert validate.models[2:] == [[0, 7, 0, 2]], "the mean of both, zero where the first holds nothing"
    assert at.memory.seen == 0.5
    for now, metric in enumerate((0.4, 0.3, 0.2, 0.1), start=2):
        validate.metric = metric
        at.merge([], float(now))
    # Own values stay the same: at the second check both move, and the server's watcher is armed. At the fourth it
    # raises its floor, before client 0 moves again, and the fifth is a pause.
    assert at.client_levels == [1, 2]
    assert (at.memory.armed, at.memory.floor, at.memory.seen, at.memory.pause) == (True, 0, 0.2, 0)


def test_without_a_restoration_rule_nothing_is_measured() -> None:
    validate = Validator()
    at = server(replace(CLIMBING, restoration=None), MODEL, densities=(0.25, 0.5), validate=validate)
    for now in range(4):
        at.merge([], float(now))
    assert validate.models == []
    assert at.client_levels == [0, 1]
    assert at.map_version == 2


def test_fixed_time_goes_by_the_share_of_the_budget() -> None:
    at = server(replace(CLIMBING, restoration=FixedTime()), MODEL, densities=(0.25, 0.5))
    at.merge([], 34.0)
    assert at.client_levels == [0, 1], "no check at an odd tick"
    at.merge([], 35.0)
    assert at.client_levels == [1, 1]
    at.merge([], 70.0)
    at.merge([], 71.0)
    assert at.client_levels == [2, 2]


@dataclass(frozen=True, kw_only=True)
class Watching(Restoration):
    """A restoration rule that moves those it is told to, and remembers what it saw."""

    kind: ClassVar[str] = "watching"
    move: dict[int, int] = field(default_factory=dict)
    seen: list[Check] = field(default_factory=list)
    metrics: list[list[float | None]] = field(default_factory=list)

    def restore(self, check: Check) -> dict[int, int]:
        self.seen.append(check)
        self.metrics.append([check.metrics.of_level(level) for level in (0, 1)])
        return self.move


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """A ranking that returns the maps of a list, one after the other, and remembers where it stood."""

    kind: ClassVar[str] = "scripted"
    maps: list[LevelMap]
    seen: list[RankingInputs] = field(default_factory=list)

    def rank(self, inputs: RankingInputs) -> LevelMap:
        self.seen.append(inputs)
        return self.maps[len(self.seen) - 1]

    def due(self, tick: int, interval: int) -> bool:
        return tick % interval == 0

    def ladder(self, ladder: Ladder) -> Ladder:
        return ladder


def level_map(*levels: int) -> LevelMap:
    return LevelMap(torch.tensor(levels, dtype=torch.uint8), (0.5, 1.0))


def test_reported_metrics_are_averaged_by_samples() -> None:
    rule = Watching()
    rules = replace(CLIMBING, restoration=rule)
    at = server(rules, MODEL, densities=(0.25, 0.25, 0.5, 1.0))
    tasks = at.tasks(range(4), 0.0)

    def reports(task: ClientTask, metric: float, n: int) -> Update:
        return answer(task, *[0.0] * at.levels.sizes[task.level], report=Report(metric=metric, samples=n))

    at.merge([reports(tasks[0], 0.2, 10), reports(tasks[3], 0.9, 5)], 1.0)
    at.merge([reports(tasks[1], 0.8, 30), answer(tasks[2], 0.0, 0.0)], 2.0)
    # (0.2 * 10 + 0.8 * 30) / 40; level 1 said nothing
    assert rule.metrics[0] == [pytest.approx(0.65), None]
    assert (rule.seen[0].now, rule.seen[0].seconds) == (2.0, 100.0)
    assert [rule.seen[0].metrics.of_update(0), rule.seen[0].metrics.of_padded()] == [None, None]
    assert rule.seen[0].levels == {0: 0, 1: 0, 2: 1, 3: 2}
    at.merge([], 3.0)
    at.merge([], 4.0)
    assert rule.metrics[1] == [None, None], "a report counts for one check"


def test_the_level_map_is_made_anew_after_restoration() -> None:
    ranking = Scripted(maps=[level_map(0, 0, 1, 1), level_map(1, 1, 0, 0)])
    validate = Validator()
    rules = ServerRules(ladder=(0.5, 1.0), ranking=ranking, restoration=Watching(move={1: 1}), interval=1)
    at = server(rules, MODEL, densities=(0.5, 0.5), validate=validate, seed=3)
    assert ranking.seen[0].current is None
    assert ranking.seen[0].previous is None
    assert (ranking.seen[0].tick, ranking.seen[0].seed) == (0, 3)
    at.merge([], 1.0)
    assert validate.models[0] == [1, 4, 0, 0], "measured by the map that clients hold"
    inputs = ranking.seen[1]
    assert inputs.current is ranking.maps[0]
    assert inputs.held == {0}, "the levels held before the restoration"
    assert inputs.tick == 1
    assert inputs.previous is not None
    assert at.levels is ranking.maps[1]
    one, two = at.tasks([0, 1], 1.0)
    assert [(t.level, t.map_version) for t in (one, two)] == [(0, 1), (1, 1)]
    assert one.levels is two.levels is ranking.maps[1]


def test_a_busy_client_keeps_its_old_level_map_and_level() -> None:
    ranking = Scripted(maps=[level_map(0, 0, 1, 1), level_map(1, 1, 0, 0)])
    rules = ServerRules(
        ladder=(0.5, 1.0), ranking=ranking, restoration=Watching(move={1: 1}), interval=1, staleness=Constant()
    )
    at = server(rules, MODEL, densities=(0.5, 0.5), validate=Validator())
    quick, slow = at.tasks([0, 1], 0.0)
    at.merge([answer(quick, 10.0, 20.0)], 1.0)
    assert at.model.tolist() == [10, 20, 2, 3]
    assert at.client_levels == [0, 1]
    assert at.dispatched[1] is slow
    assert (slow.levels, slow.level, slow.map_version) == (ranking.maps[0], 0, 0)
    (quick,) = at.tasks([0], 1.0)
    ranking.maps.append(level_map(0, 1, 0, 1))
    at.merge([answer(slow, 30.0, 40.0), answer(quick, 50.0, 60.0)], 2.0)
    # The slow client trained coordinates 0 and 1 of the old map, the quick one 2 and 3 of the new.
    assert at.model.tolist() == [30, 40, 50, 60]
    assert at.staleness == [0, 1]
    assert (at.buffer[1].level, at.buffer[1].map_version) == (0, 0)
