"""Recovery: back to the last good model, without what has come since."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedgmr.exchange import Diverged, News, Report, Verdict
from fedgmr.server import Server, ServerRules
from fedgmr.server.admission import AdmissionRule, ReportRange
from fedgmr.server.buffer import BufferRule
from fedgmr.server.recovery import RecoveryRule
from fedgmr.server.restoration import Saturation
from fedgmr.server.state import restore_state, save_state
from fedgmr.staleness import Constant
from fedgmr.submodels.rankings import Magnitude
from server.test_server import answer, server

SHARE = ReportRange(lowest=0.0, highest=1.0)
RULES = ServerRules(staleness=Constant(), interval=2)


def shown(rules: ServerRules = RULES, *, clients: int = 3, start: float = 0.1, **more: Any) -> Server:
    """A server whose model is one number, which is also its metric; a check at every second tick."""
    more = {"validate": lambda model, buffers: model[0].item(), "reports": SHARE, **more}
    return server(rules, (start,), densities=[1.0] * clients, **more)


def tick(at: Server, *values: float) -> list[Verdict]:
    """One tick in which the first clients answer."""
    tasks = at.tasks(range(len(values)), float(at.tick))
    return at.merge([answer(task, value) for task, value in zip(tasks, values, strict=True)], float(at.tick + 1))


def tick_on_device(at: Server, *values: float) -> list[Verdict]:
    """The same with losses that a device computes, NaN with the value."""
    pairs = [(task, values[task.client]) for task in at.tasks(range(len(values)), float(at.tick))]  # some are on hold
    answers = [answer(t, t.model[0].item() if math.isnan(v) else v) for t, v in pairs]
    losses = [torch.tensor(math.nan if math.isnan(value) else 0.5) for _, value in pairs]
    return at.merge([replace(a, loss=loss) for a, loss in zip(answers, losses, strict=True)], float(at.tick + 1))


def taught(at: Server) -> Server:
    """Four ticks: the metric is 0.5 at the check of tick 2, and 0.9 at tick 4."""
    for value in (0.5, 0.5, 0.9, 0.9):
        tick(at, value, value, value)
    return at


def collapse(at: Server) -> None:
    """Two ticks in which client 2 pulls the mean to 0.29; 0.3 is a quarter of 0.8 above 0.1."""
    tick(at, 0.9, 0.9, 0.1)
    tick(at, 0.6, 0.6, -0.33)


def test_good_models_are_kept() -> None:
    at = taught(shown())
    assert [(good.tick, round(good.model.item(), 6)) for good in at.recovery.goods] == [(2, 0.5), (4, 0.9)]
    assert (at.recovery.first, at.recovery.best) == pytest.approx((0.1, 0.9))
    assert at.recovery.bound == pytest.approx(0.3)
    tick(at, 0.8, 0.8, 0.8)
    tick(at, 0.8, 0.8, 0.8)
    assert [good.tick for good in at.recovery.goods] == [2, 4], "0.8 is under 0.1 + 0.9 x 0.8, so neither good nor bad"
    assert at.recovery.events == []


def test_the_last_good_model_comes_back() -> None:
    at = taught(shown())
    collapse(at)
    assert at.tick == 6
    assert at.model.item() == pytest.approx(0.5), "of the older of two, because the newer may be spoilt in part"
    assert at.previous is not None
    assert (at.buffer, at.previous.item()) == ({}, 0.5), "at tick 1, for the ranking"
    held, recovered = at.recovery.events
    # Without client 2 the others make 0.6; without client 0 or 1 it is (0.6 - 0.33) / 2.
    assert held == {"event": "held", "tick": 6, "client": 2, "until": 16}
    assert recovered == {"event": "recovered", "tick": 6, "to": 2, "reason": "collapse", "clients": [0, 1, 2]}
    assert [task.client for task in at.tasks(range(3), 6.0)] == [0, 1]
    assert [good.tick for good in at.recovery.goods] == [6]


@pytest.mark.parametrize("metric", ["sub_model", "own_update"])
def test_a_recovery_is_no_saturation(metric: Any) -> None:
    """Clients 0 to 2 hold one of two coordinates, at level 0; the metric is the larger coordinate."""
    rules = replace(RULES, ladder=(0.5, 1.0), ranking=Magnitude(), restoration=Saturation(patience=1, metric=metric))
    more = {"validate": lambda model, buffers: model.max().item(), "reports": SHARE}
    at = server(rules, (0.1, 0.1), densities=[0.5, 0.5, 0.5, 1.0, 1.0], **more)

    def tick(*values: float) -> None:
        tasks = at.tasks(range(5), 0.0)
        at.merge([answer(t, *[values[t.client]] * at.levels.sizes[t.level]) for t in tasks], 1.0)

    for value in (0.5, 0.5, 0.9, 0.9):
        tick(*[value] * 5)
    assert [watcher.best for watcher in at.memory.clients.values()] == pytest.approx([0.9] * 3)
    tick(0.9, 0.9, 0.9, 0.1, 0.1)
    tick(0.6, 0.6, -0.4, -2.0, -2.0)
    assert at.model.tolist() == [0.5, 0.5]
    assert at.client_levels == [0, 0, 0, 1, 1], "less than 0.9 after a patience of one check, but of another model"
    for _ in range(2):
        tick(*[0.6] * 5)
    assert at.client_levels == [0, 0, 0, 1, 1]
    assert [watcher.best for watcher in at.memory.clients.values()] == pytest.approx([0.6] * 3)
    for _ in range(2):
        tick(*[0.6] * 5)
    assert at.client_levels == [1] * 5, "0.6 again"


def test_an_error_has_no_range_but_a_best_value() -> None:
    """Of the first error, 10, at least a quarter must be learned; then three quarters of it may be lost again."""
    at = shown(start=-10.0, reports=ReportRange(highest=0.0))
    for value in (-8.0, -8.0):
        tick(at, value, value, value)
    assert at.recovery.bound == -math.inf, "2 of 10"
    for value in (-2.0, -2.0):
        tick(at, value, value, value)
    assert at.recovery.bound == pytest.approx(-2 - 0.75 * 8)


def test_what_is_less_than_a_collapse_stays() -> None:
    at = taught(shown())
    tick(at, 0.9, 0.9, 0.1)
    tick(at, 0.6, 0.6, -0.29)
    assert at.model.item() == pytest.approx(0.91 / 3)
    assert at.recovery.events == []


@pytest.mark.parametrize(
    ("values", "rule", "more"),
    [
        ((0.3, 0.3, 0.3, 0.3, 0.1, 0.1), RecoveryRule(), {}),  # 0.2 of the range was learned, less than 0.25
        ((0.5, 0.5, 0.9, 0.9, 0.1, 0.1), RecoveryRule(times=0), {}),
        ((0.5, 0.5, 0.9, 0.9, 0.1, 0.1), RecoveryRule(every=5), {}),
        ((0.5, 0.5, 0.9, 0.9, 0.1, 0.1), RecoveryRule(), {"reports": ReportRange()}),  # a metric without a range
        ((0.5, 0.5, 0.9, 0.9, 0.1, 0.1), RecoveryRule(), {"validate": None}),
    ],
)
def test_where_nothing_is_known_to_be_lost_nothing_comes_back(
    values: Sequence[float], rule: RecoveryRule, more: dict[str, Any]
) -> None:
    at = shown(replace(RULES, recovery=rule), **more)
    for value in values:
        tick(at, value, value, value)
    assert at.model.item() == pytest.approx(values[-1])
    assert at.recovery.events == []


def test_what_was_cut_from_a_model_that_is_gone_is_undone() -> None:
    at = shown(clients=5)
    for value in (0.5, 0.5):
        tick(at, value, value, value, value)
    (early,) = at.tasks([3], 0.0)  # of the model of tick 2, which comes back
    for value in (0.9, 0.9):
        tick(at, value, value, value)
    (late,) = at.tasks([4], 4.0)
    tick(at, 0.9, 0.9, 0.1)
    tick(at, 0.3, 0.3, -0.3)  # with the 0.5 that is kept of client 3 a mean of 0.2
    assert at.recovery.events[-1]["clients"] == [0, 1, 2], "what client 3 has sent is in the model that comes back"
    assert at.recovery.undone == {4}
    verdicts = at.merge([answer(early, 0.7), answer(late, 0.2)], 7.0)
    assert verdicts == [Verdict(client=4, reason="undone")]
    assert at.updates[3:] == [3, 0]
    assert at.holds.strikes == {}, "nobody's fault"
    assert at.batches[4] == 0, "its next task has the same mini-batches"
    (again,) = at.tasks([4], 7.0)
    assert at.merge([answer(again, 0.6)], 8.0) == []


def test_a_lost_task_is_not_waited_for_as_undone() -> None:
    at = shown(clients=4)
    taught(at)
    at.tasks([3], 4.0)
    collapse(at)
    at.learn([News(client=3, lost=True)])
    (task,) = at.tasks([3], 6.0)
    assert at.merge([answer(task, 0.6)], 7.0) == []


def test_where_going_back_does_not_help_the_run_has_diverged() -> None:
    at = taught(shown(replace(RULES, recovery=RecoveryRule(times=1))))
    collapse(at)
    tick(at, 0.2, 0.2)
    with pytest.raises(Diverged, match=r"\(the model has collapsed 2 times in a row\) at tick 8"):
        tick(at, 0.2, 0.2)


def test_weights_that_leave_their_scale() -> None:
    rules = replace(RULES, admission=AdmissionRule(beyond="accept"), buffer=BufferRule(keep=False))
    at = shown(rules, start=2.0, validate=None)
    tick(at, 2.0, 2.0)
    tick(at, 200.0, 200.0)
    assert at.model.item() == 200.0, "100 times 2"
    tick(at, 2.0, 2.0)
    tick(at, 2.0, 2.0, 60000.0)  # a mean of 20001.3
    assert at.model.item() == 2.0
    assert [event["event"] for event in at.recovery.events] == ["held", "recovered"]
    assert at.recovery.events[0]["client"] == 2, "nothing can be measured; its change is the largest"
    assert at.recovery.events[1]["reason"] == "scale"


def test_the_scale_is_that_of_the_last_look() -> None:
    rules = replace(RULES, admission=AdmissionRule(beyond="accept"), buffer=BufferRule(keep=False))
    at = shown(rules, start=2.0, validate=None)
    for value in (100.0, 5000.0, 200000.0):  # 50, 50 and 40 times as long
        tick(at, value)
        tick(at, value)
    assert at.model.item() == 200000.0
    assert at.recovery.events == []
    for _ in range(2):
        (task,) = at.tasks([1], 0.0)
        at.merge([answer(task, 1e8, report=Report(metric=0.5, samples=3))], 0.0)  # 500 times
    assert (at.model.item(), at.reports) == (5000.0, {})
    for _ in range(2):
        (task,) = at.tasks([2], 0.0)
        at.merge([answer(task, 6e5)], 0.0)  # 3 times the last look, but 120 times what has come back
    assert at.model.item() == 5000.0


def test_a_client_that_waits_already_is_not_held_again() -> None:
    at = taught(shown(replace(RULES, admission=AdmissionRule(strikes=1))))
    tick(at, 0.9, 0.9, -0.05)  # a change of 0.95 at a rate of 1/5; at the next tick 0.68 at 1/6, and a refusal
    tick(at, -0.1, -0.1, 1e6)
    assert at.model.item() == 0.5
    assert [event["event"] for event in at.recovery.events] == ["held", "recovered"]
    assert at.holds.until == {2: 16}, "ten ticks, not forty more"


def test_recoveries_of_a_model_that_has_learned_little_are_in_a_row() -> None:
    at = shown(replace(RULES, recovery=RecoveryRule(times=1), admission=AdmissionRule(pause=1)), clients=4)

    def all_answer(*values: float) -> None:
        at.merge([answer(task, values[task.client]) for task in at.tasks(range(4), 0.0)], 0.0)

    all_answer(*[0.1] * 4)
    all_answer(1e6, 1e6, 1e6, 0.1)
    for _ in range(3):
        all_answer(*[0.2] * 4)
    assert at.recovery.in_row == 1, "a tenth of the range is too little to tell"
    with pytest.raises(Diverged):
        all_answer(1e6, 1e6, 1e6, 0.2)


def test_what_a_client_did_before_it_was_put_on_hold_is_undone() -> None:
    at = taught(shown())
    tick(at, 0.9, 0.9, 0.6)  # merged: 0.8
    for _ in range(3):
        at.merge([answer(task, 1e6) for task in at.tasks([2], 5.0)], 5.0)
    assert at.model.item() == pytest.approx(0.5)
    assert [event.get("reason") for event in at.recovery.events] == [None, "hold"]
    before = shown()
    tick(before, 0.5, 0.5)
    for _ in range(3):
        before.merge([answer(task, 1e6) for task in before.tasks([2], 5.0)], 5.0)
    assert before.model.item() == pytest.approx(0.5), "nothing of its own was merged"
    assert [event["event"] for event in before.recovery.events] == ["held"]


def test_where_most_are_out_of_bounds_the_model_comes_back_first() -> None:
    at = taught(shown(clients=4))
    tasks = at.tasks(range(3), 4.0)
    verdicts = at.merge([answer(task, 1e6) for task in tasks], 5.0)
    assert [verdict.reason for verdict in verdicts] == ["change"] * 3
    assert at.model.item() == pytest.approx(0.5)
    assert at.recovery.events[-1]["reason"] == "divergence"


def test_on_a_device_the_next_look_judges() -> None:
    at, measured = shown(), list[float]()

    def validate(model: Tensor, buffers: Tensor) -> Callable[[], float]:
        def ask() -> float:
            measured.append(round(model[0].item(), 6))
            return measured[-1]

        return ask

    at.validate = validate
    for value in (0.5, 0.5, 0.9, 0.9):
        tick_on_device(at, value, value, value)
    assert measured == [0.1, 0.5], "the first model, and at tick 4 that of tick 2"
    assert [good.tick for good in at.recovery.goods] == [0, 2]
    tick_on_device(at, 0.9, 0.9, 0.9)
    tick_on_device(at, 0.1, 0.1, 0.1)
    assert (at.recovery.events, [good.tick for good in at.recovery.goods]) == ([], [2, 4])
    tick_on_device(at, 0.1, 0.1, 0.1)
    assert at.recovery.events == [], "nobody asks between two looks"
    tick_on_device(at, 0.1, 0.1, 0.1)
    held, recovered = at.recovery.events
    assert recovered == {"event": "recovered", "tick": 8, "to": 2, "reason": "collapse", "clients": [0, 1, 2]}
    assert (at.model.item(), at.recovery.look, held["event"]) == (pytest.approx(0.5), None, "held")
    for _ in range(4):
        tick_on_device(at, 0.8, 0.8, 0.8)
    assert len(at.recovery.events) == 2, "what was measured of the model that is gone is forgotten"


def test_on_a_device_most_clients_that_diverge_bring_a_good_model_back() -> None:
    at = shown()
    for value in (0.5, 0.5, 0.9, 0.9, 0.9):
        tick_on_device(at, value, value, value)
    nan = math.nan
    assert tick_on_device(at, nan, nan, nan) == []
    assert tick_on_device(at, nan, nan, 0.9) == []
    assert at.recovery.events == [], "nobody asks between two looks"
    verdicts = tick_on_device(at, nan, 0.9, 0.9)
    assert [verdict.client for verdict in verdicts] == [0, 1, 2, 0, 1, 0]
    assert set(verdicts[:3]) == {Verdict(client=c, reason="client-diverged", merged=True) for c in range(3)}
    _, recovered = at.recovery.events
    assert (recovered["tick"], recovered["reason"], recovered["to"]) == (8, "divergence", 2)
    assert at.losses.lost == set()
    tick_on_device(at, 0.9, 0.9, 0.9)
    assert at.end() == []


def test_on_a_device_a_run_in_which_all_diverge_for_good_ends() -> None:
    at, heard = shown(clients=7), list[Verdict]()
    for value in (0.5, 0.5, 0.9, 0.9, 0.9, 0.9):
        tick_on_device(at, *[value] * 7)
    merged = sum(at.updates)
    while at.tick < 21:
        heard += tick_on_device(at, *[math.nan] * 7)
    with pytest.raises(Diverged) as error:
        tick_on_device(at, *[math.nan] * 7)
    # A look that begins after a recovery is judged two ticks later; the model stays a good one all the while.
    recovered = [event["tick"] for event in at.recovery.events if event["event"] == "recovered"]
    assert (recovered, at.tick) == ([10, 14, 18], 22)
    assert len(heard) + len(error.value.verdicts) == sum(at.updates) - merged


@pytest.mark.parametrize(
    ("values", "reason"), [((0.1, 0.1, 0.1), "collapse"), ((math.nan,) * 3, "divergence"), ((0.9, 0.9, 0.9), None)]
)
def test_on_a_device_the_last_look_is_judged_at_the_end(values: Sequence[float], reason: str | None) -> None:
    at = shown()
    for value in (0.5, 0.5, 0.9, 0.9, 0.9):
        tick_on_device(at, value, value, value)
    tick_on_device(at, *values)
    assert at.recovery.events == []
    assert len(at.end()) == (3 if reason == "divergence" else 0)
    recovered = [event["reason"] for event in at.recovery.events if event["event"] == "recovered"]
    assert recovered == ([] if reason is None else [reason])
    assert at.model.item() == pytest.approx(0.5 if reason else 0.9)
    assert at.end() == []


def test_on_a_device_a_run_without_recovery_ends() -> None:
    at = shown(replace(RULES, recovery=RecoveryRule(times=0)))
    tick_on_device(at, *[math.nan] * 3)
    at.settle()
    with pytest.raises(Diverged, match=r"loss or weights not finite\) at tick 2") as error:
        tick_on_device(at, *[math.nan] * 3)
    assert len(error.value.verdicts) == 3, "of the last merge"


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_resumed_server_recovers_alike_on_a_device(cut: int) -> None:
    nan, inf = math.nan, math.inf
    steps = [*[(value,) * 3 for value in (0.5, 0.5, 0.9, 0.9)], (0.9, 0.9, nan), (0.1, 0.1, 0.1), (0.1, nan, 0.1)]
    steps += [(0.1, 0.1, 0.1), (0.7, 0.7), (0.7, inf), (0.7, 0.7), (nan, 0.7), (0.7, 0.7), (0.7, 0.7)]
    one, told = shown(), list[Verdict]()
    for number, values in enumerate(steps):
        if number == cut:
            twin, heard = shown(), list[Verdict]()
            tensors, data = save_state(one)
            restore_state(twin, tensors, json.loads(json.dumps(data, allow_nan=False)))
        verdicts = tick_on_device(one, *values)
        if number >= cut:
            told += verdicts
            heard += tick_on_device(twin, *values)
    assert [event["reason"] for event in one.recovery.events if event["event"] == "recovered"] == ["collapse", "scale"]
    assert heard == told
    (tensors, data), (again, more) = save_state(one), save_state(twin)
    assert json.dumps(more) == json.dumps(data)
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_losses_of_a_resumed_run_need_no_device() -> None:
    at, twin = shown(), shown()
    for _ in range(3):
        tick_on_device(at, 0.5, 0.5, math.nan)
    tensors, data = save_state(at)
    restore_state(twin, tensors, json.loads(json.dumps(data, allow_nan=False)))
    twin.losses.note(0, 4, torch.tensor(0.5, device="meta"))  # not where the others would be
    twin.losses.look(wait=False)
    assert (twin.losses.known, twin.losses.lost) == ({0: 0.5, 1: 0.5}, {2}), "asked for at tick 2"


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_resumed_server_recovers_alike(cut: int) -> None:
    steps = [*[(value,) * 3 for value in (0.5, 0.5, 0.9, 0.9)], (0.9, 0.9, 0.1), (0.6, 0.6, -0.33), (0.6, 0.6)]
    steps += [(0.7, 0.7), (0.7, 1e6), (0.7, 0.7)]
    one = shown()
    for number, values in enumerate(steps):
        if number == cut:
            twin = shown()
            tensors, data = save_state(one)
            restore_state(twin, tensors, json.loads(json.dumps(data)))
        tick(one, *values)
        if number >= cut:
            tick(twin, *values)
    assert len(one.recovery.events) == 2
    (tensors, data), (again, more) = save_state(one), save_state(twin)
    assert json.dumps(more) == json.dumps(data)
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_files_of_earlier_releases_know_no_good_model() -> None:
    at, twin = taught(shown()), shown()
    tensors, data = save_state(at)
    for name in ("recovery", "holds", "repeats"):
        del data[name]
    restore_state(twin, tensors, data)
    assert [(good.tick, round(good.model.item(), 6)) for good in twin.recovery.goods] == [(4, 0.9)]
