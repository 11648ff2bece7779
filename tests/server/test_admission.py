"""Admission: what one client sends neither ends a run nor moves it further than the others do."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedgmr.exchange import ClientProfile, Diverged, News, Report, Verdict
from fedgmr.server import Server, ServerRules
from fedgmr.server.admission import AdmissionRule, ReportRange
from fedgmr.server.aggregation import GradientAverage, MaskAware, Mixing, ZeroPadded
from fedgmr.server.recovery import RecoveryRule
from fedgmr.server.state import restore_state, save_state
from fedgmr.staleness import Constant
from fedgmr.submodels.rankings import Magnitude
from fedgmr.tasks.metrics import Metric, top1
from server.test_server import answer, server

RULES = ServerRules(staleness=Constant())
MODEL = (3.0, 4.0)  # of norm 5
LARGEST = torch.finfo(torch.float32).max


def fleet(rules: ServerRules = RULES, clients: int = 4, **more: Any) -> Server:
    return server(rules, MODEL, densities=[1.0] * clients, **more)


def refused(*clients: int, reason: str) -> list[Verdict]:
    return [Verdict(client=client, reason=reason) for client in clients]


def test_a_change_far_beyond_the_others_is_refused() -> None:
    # Changes by the norm of the start, 5, at rate 1: 0.1, 0.1, 0.2 and the last one's; the median is 0.15, the bound
    # max(1, 30 x 0.15) = 4.5, a change of length 22.5.
    def merged(far: float) -> tuple[Server, list[Verdict]]:
        at = fleet()
        tasks = at.tasks(range(4), 0.0)
        near = [answer(task, 3.0 + step, 4.0) for task, step in zip(tasks, (0.5, 0.5, 1.0), strict=False)]
        return at, at.merge([*near, answer(tasks[3], 3.0, 4.0 + far)], 1.0)

    at, verdicts = merged(22.4)
    assert (verdicts, at.updates) == ([], [1, 1, 1, 1])
    at, verdicts = merged(22.6)
    assert verdicts == refused(3, reason="change")
    assert at.updates == [1, 1, 1, 0]
    assert at.model.tolist() == pytest.approx([3.0 + 2 / 3, 4.0]), "as without that client"
    assert at.dispatched == {}
    assert at.batches == [5, 5, 5, 0], "its next task has the same mini-batches"
    assert list(at.buffer) == [0, 1, 2]
    assert at.admission.changes == pytest.approx({0: 0.1, 1: 0.1, 2: 0.2})


def test_the_scale_follows_the_learning_rate() -> None:
    at = fleet()
    at.merge([answer(task, 3.5, 4.0) for task in at.tasks(range(3), 0.0)], 1.0)  # 0.1 at rate 1
    start = at.model.tolist()
    (task,) = at.tasks([3], 1.0)
    # At rate 1/2 the bound is 30 x 0.1 x 1/2 = 1.5 of the norm of (3.5, 4), 5.315.
    assert at.merge([answer(task, start[0], start[1] - 7.9)], 2.0) == []
    (task,) = at.tasks([3], 1.0)
    assert task.learning_rate == pytest.approx(1 / 3)
    length = math.dist(at.model.tolist(), (0, 0))
    # Now 1/3: the median of 0.1, 0.1, 0.1 and what is judged; max(1, 1.0).
    far = at.model[1].item() + 1.01 * length
    assert at.merge([answer(task, at.model[0].item(), far)], 3.0) == refused(3, reason="change")


def test_small_changes_are_in_bounds_whatever_the_others_do() -> None:
    at = fleet()
    tasks = at.tasks(range(4), 0.0)
    still = [answer(task, *MODEL) for task in tasks[:3]]
    assert at.merge([*still, answer(tasks[3], 0.0, 0.0)], 1.0) == [], "a change of 1, the whole norm"


def test_until_three_clients_are_known_only_the_largest_bound_holds() -> None:
    at = fleet()
    one, two = at.tasks([0, 1], 0.0)
    # 30 x 5 = 150; a model of norm 100 times as much is out of bounds.
    verdicts = at.merge([answer(one, 300.0, 400.0), answer(two, 3.0, 154.0)], 1.0)
    assert verdicts == refused(0, reason="change")
    steep = fleet()
    steep.learning_rate = lambda tick: 1e19
    (task,) = steep.tasks([0], 0.0)
    assert steep.merge([answer(task, 1e19, 4.0)], 1.0) == [], "such a rate asks for it: 30 x 1e19"


@pytest.fixture(params=[MaskAware(), ZeroPadded(), GradientAverage(), Mixing()], ids=lambda rule: rule.kind)
def rules(request: pytest.FixtureRequest) -> ServerRules:
    return replace(RULES, aggregation=request.param)


@pytest.mark.parametrize("value", [1e38, LARGEST, -LARGEST, math.nan, math.inf])
@pytest.mark.parametrize("beyond", ["refuse", "clip", "accept"])
def test_the_model_stays_finite(value: float, beyond: Any, rules: ServerRules) -> None:
    at = fleet(replace(rules, admission=AdmissionRule(beyond=beyond)), buffers=(1.0,))
    tasks = at.tasks(range(4), 0.0)
    honest = [answer(task, 3.5, 4.0) for task in tasks[:2]]
    poisoned = replace(answer(tasks[3], *MODEL), buffers=torch.tensor([value]))
    verdicts = at.merge([*honest, answer(tasks[2], value, 0.0), poisoned], 1.0)
    assert verdicts == refused(2, 3, reason="non-finite")
    assert torch.isfinite(at.model).all()
    assert torch.isfinite(at.buffers).all()
    assert at.model.abs().max() < 5


def test_clipping_keeps_the_direction() -> None:
    at = fleet(replace(RULES, admission=AdmissionRule(beyond="clip")))
    tasks = at.tasks(range(4), 0.0)
    near = [answer(task, 3.5, 4.0) for task in tasks[:3]]
    # The median is 0.1 of the norm 5: a step of 100 is made one of 0.5.
    assert at.merge([*near, answer(tasks[3], 3.0, 104.0)], 1.0) == [Verdict(client=3, reason="clipped", merged=True)]
    assert at.buffer[3].values.tolist() == pytest.approx([3.0, 4.5])
    assert at.model.tolist() == pytest.approx([3.0 + 0.5 * 3 / 4, 4.0 + 0.5 / 4])
    assert at.admission.changes[3] == pytest.approx(0.1)
    early = fleet(at.rules)
    (task,) = early.tasks([3], 0.0)
    early.merge([answer(task, 3.0, 204.0)], 1.0)
    assert early.model.tolist() == pytest.approx([3.0, 9.0]), "by its whole norm, while nobody knows better"


def test_bounds_can_be_left_out() -> None:
    at = fleet(replace(RULES, admission=AdmissionRule(beyond="accept")))
    tasks = at.tasks(range(4), 0.0)
    assert at.merge([answer(tasks[0], 1e20, 0.0)], 1.0) == []


def test_sub_models_are_measured_by_their_own_norm() -> None:
    sub_models = replace(RULES, ladder=(0.5, 1.0), ranking=Magnitude(), interval=100)
    at = server(sub_models, MODEL, densities=[0.5] * 4)
    tasks = at.tasks(range(4), 0.0)
    # Only the 4 is theirs: changes of 1/4 and a bound of 30/4 of 4, which is 30.
    near = [answer(task, 5.0) for task in tasks[:3]]
    assert at.merge([*near, answer(tasks[3], 34.1)], 1.0) == refused(3, reason="change")
    assert at.model.tolist() == [3.0, 5.0]


def test_a_whole_model_in_natural_order_is_measured_in_it() -> None:
    sub_models = replace(RULES, ladder=(0.5, 1.0), ranking=Magnitude(), interval=100)
    at = server(sub_models, MODEL, densities=[1.0] * 3)
    tasks = at.tasks(range(3), 0.0)
    at.merge([replace(answer(task, 3.5, 4.0), natural=True) for task in tasks[:2]] + [answer(tasks[2], 4.0, 3.5)], 1.0)
    assert at.admission.changes == pytest.approx({0: 0.1, 1: 0.1, 2: 0.1})


def test_updates_of_several_starts_and_levels_are_measured_together() -> None:
    sub_models = replace(RULES, ladder=(0.5, 1.0), ranking=Magnitude(), interval=100)
    at = server(sub_models, MODEL, densities=[0.5, 0.5, 1.0, 1.0], buffers=(1.0,))
    early = at.tasks([0, 2], 0.0)
    at.merge([answer(task, 5.0) for task in at.tasks([1], 0.0)], 1.0)  # the model is (3, 5) now
    (late,) = at.tasks([3], 1.0)
    # Level order has the 4 first. Starts: (4), (4, 3) and at rate 1/2 (5, 3), of norms 4, 5 and the root of 34.
    at.merge([answer(early[0], 6.0), answer(early[1], 4.0, 5.0), answer(late, 5.0, 4.0)], 2.0)
    assert at.admission.changes == pytest.approx({0: 2 / 4, 1: 1 / 4, 2: 2 / 5, 3: 2 / math.sqrt(34)})


def test_long_updates_are_measured_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgmr.server.admission._BLOCK", 2)
    sub_models = replace(RULES, ladder=(0.6, 1.0), ranking=Magnitude(), interval=100)
    at = server(sub_models, (1.0, 3.0, 4.0, 2.0, 5.0), densities=[0.6, 1.0])
    small, whole = at.tasks([0, 1], 0.0)  # starts (3, 4, 5) of norm the root of 50, and (3, 4, 5, 1, 2): the root of 55
    at.merge([answer(small, 3.0, 1.0, 1.0), answer(whole, 3.0, 4.0, 5.0, 1.0, 9.0)], 1.0)
    assert at.admission.changes == pytest.approx({0: 5 / math.sqrt(50), 1: 7 / math.sqrt(55)})


def test_one_client_that_diverged_is_left_out_and_the_run_goes_on() -> None:
    at = fleet()
    for now in range(1, 6):
        tasks = at.tasks(range(2), 0.0)
        broken = answer(tasks[1], math.nan, 0.0, loss=math.nan)
        assert at.merge([answer(tasks[0], 3.5, 4.0), broken], now) == refused(1, reason="client-diverged")
        assert at.model.tolist() == [3.5, 4.0]
    assert at.recovery.events == [], "it is not held: it has done nothing wrong"
    assert at.tick == 5


def test_updates_still_on_a_device_are_not_waited_for() -> None:
    at = fleet()
    (task,) = at.tasks([0], 0.0)
    assert at.merge([replace(answer(task, 1e30, 0.0), loss=torch.tensor(0.5))], 1.0) == []
    assert at.admission.changes == {}


def test_where_most_clients_are_out_of_bounds_the_run_has_diverged() -> None:
    at = fleet(replace(RULES, recovery=RecoveryRule(times=0)), clients=5)
    at.merge([answer(task, 3.5, 4.0) for task in at.tasks(range(5), 0.0)], 1.0)
    for now, client in enumerate((1, 2), start=2):
        (task,) = at.tasks([client], 1.0)
        assert at.merge([answer(task, 1000.0, 4.0)], now) == refused(client, reason="change")
    (task,) = at.tasks([2], 1.0)
    at.merge([answer(task, *at.model.tolist())], 4.0)
    assert at.admission.outside == {1}, "client 2 is back"
    for now, client in ((5, 2), (6, 3)):
        (task,) = at.tasks([client], 1.0)
        if client == 2:
            at.merge([answer(task, 1000.0, 4.0)], now)
            continue
        with pytest.raises(Diverged, match=r"client 1 .*\(the updates of 3 of 5 clients are out of bounds\) at tick 6"):
            at.merge([answer(task, 1000.0, 4.0)], now)


def test_one_bad_client_alone_never_ends_a_run() -> None:
    at = fleet()
    for now in range(5):
        (task,) = at.tasks([0], 0.0)
        assert at.merge([answer(task, 1e6, 1e6)], now) == refused(0, reason="change")
    alone = fleet(clients=1)
    (task,) = alone.tasks([0], 0.0)
    with pytest.raises(Diverged):
        alone.merge([answer(task, 1e6, 1e6)], 1.0)


@pytest.mark.parametrize(
    ("metric", "samples", "believed"),
    [
        (1.0, 5, True),
        (0.0, 1, True),
        (1.01, 5, False),
        (-1e308, 5, False),
        (math.nan, 5, False),
        (0.5, 0, False),
        # 100 samples to train on, a tenth held out: 1/9 of 101 is 11.2; rounded up, and one more, of 2 targets each.
        (0.5, 26, True),
        (0.5, 27, False),
        (0.5, 2**63, False),
    ],
)
def test_reports_are_what_a_client_can_have_measured(metric: float, samples: int, believed: bool) -> None:
    possible = ReportRange(lowest=0.0, highest=1.0, targets=2, share=0.1 / 0.9)
    at = fleet(samples=[100] * 4, reports=possible)
    (task,) = at.tasks([0], 0.0)
    verdicts = at.merge([answer(task, *MODEL, report=Report(metric=metric, samples=samples))], 1.0)
    assert verdicts == ([] if believed else refused(0, reason="report"))
    assert at.reports == ({0: (metric * samples, samples)} if believed else {})


def test_the_scores_of_a_metric() -> None:
    assert Metric(measure=top1).scores == (0.0, 1.0)
    assert Metric(measure=top1, higher_is_better=False).scores == (-1.0, 0.0)
    unbounded, endless = ReportRange(highest=0.0), Report(metric=-math.inf, samples=2)
    assert [unbounded.holds(Report(metric=-1e9, samples=2), 10.0), unbounded.holds(endless, 10.0)] == [True, False]
    assert endless.metric_sum == -math.inf
    assert Metric(measure=top1, unit="nats").scores == (-math.inf, math.inf)


def test_declared_samples_count_up_to_ten_times_the_median() -> None:
    rule = AdmissionRule()
    dealt = [ClientProfile(density=1.0, samples=n) for n in (1, 2, 1000)]
    assert rule.counted(dealt) == [1, 2, 1000], "the server has dealt them itself"
    declared = [replace(profile, declared=True) for profile in dealt]
    assert rule.counted(declared) == [1, 2, 20]
    assert rule.counted([replace(declared[0], samples=0), *declared[1:]]) == [0, 2, 20], "the lower of two"

    at = fleet(replace(RULES, weighting="samples"), samples=[0] * 4)
    at.learn([News(client=client, samples=n) for client, n in enumerate((100, 100, 100, 10**9))])
    at.merge([answer(task, 13.0 if task.client == 3 else 0.0, 4.0) for task in at.tasks(range(4), 0.0)], 1.0)
    assert at.model[0].item() == pytest.approx(10.0), "1000 of 1300 samples"


def test_a_report_counts_as_far_as_its_samples_are_believed() -> None:
    at = fleet(samples=[0] * 4, reports=ReportRange(share=1.0))
    at.learn([News(client=client, samples=n) for client, n in enumerate((9, 9, 9, 10**9))])
    (task,) = at.tasks([3], 0.0)
    at.merge([answer(task, *MODEL, report=Report(metric=1.0, samples=10**8))], 1.0)
    assert at.reports == {0: (92.0, 92)}, "10 x 9 samples, and one more of either kind"


def test_what_admission_remembers_is_in_a_checkpoint() -> None:
    at, twin = fleet(), fleet()
    tasks = at.tasks(range(4), 0.0)
    at.merge([*(answer(task, 3.5, 4.0) for task in tasks[:3]), answer(tasks[3], 1e6, 0.0)], 1.0)
    restore_state(twin, *save_state(at))
    assert twin.admission.changes == at.admission.changes == pytest.approx({0: 0.1, 1: 0.1, 2: 0.1})
    assert twin.admission.outside == {3}
