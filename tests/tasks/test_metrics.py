"""Metrics by hand: pooled over batches, in their direction, read as people read them; and what they are refused for."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr import Task, metrics
from fedgmr.reading import Reading
from fedgmr.settings.refusals import SettingError
from fedgmr.tasks.metrics import Metric, top1
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.trial import try_task
from fedgmr.training.evaluation.evaluator import Evaluator

# True class by row, predicted class by column: 0 is right 2 of 3 times, 1 once of 1, 2 never of 2; 3 does not occur.
CONFUSION = [[2, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]


def pooled(metric: Metric, *batches: tuple[Tensor, Tensor]) -> float:
    """The value over batches, as an evaluator pools them."""
    measured = [metric.measure(outputs, targets) for outputs, targets in batches]
    sums = sum(total.double().reshape(-1) for total, _ in measured)
    assert isinstance(sums, Tensor)
    return metric.pooled(sums.tolist(), sum(count for _, count in measured))


def confused() -> list[tuple[Tensor, Tensor]]:
    """The samples of the confusion matrix, one class after the other, in two batches."""
    pairs = [(row, col) for row in range(4) for col in range(4) for _ in range(CONFUSION[row][col])]
    targets, chosen = (torch.tensor(column) for column in zip(*pairs, strict=True))
    outputs = functional.one_hot(chosen, 4).float()
    return [(outputs[:4], targets[:4]), (outputs[4:], targets[4:])]


def test_recall_by_class() -> None:
    assert pooled(metrics.recall(4), *confused()) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert pooled(metrics.recall(4, of="worst"), *confused()) == 0
    assert pooled(metrics.recall(4, of=0), *confused()) == pytest.approx(2 / 3)
    assert math.isnan(pooled(metrics.recall(4, of=3), *confused())), "it does not occur"
    assert pooled(metrics.accuracy(), *confused()) == 0.5
    assert [metrics.recall(4).name, metrics.recall(4, of="worst").name] == ["mean recall", "worst recall"]


@pytest.mark.parametrize("of", [4, -1, "best", None])
def test_a_recall_that_there_is_not(of: Any) -> None:
    with pytest.raises(ValueError, match=rf"of is {of!r}: give mean, worst, or the number of a class, 0 to 3\."):
        metrics.recall(4, of=of)


def test_errors_are_pooled_over_samples() -> None:
    batches = [
        (torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0])),  # off by 1 and by 2
        (torch.tensor([[5.0]]), torch.tensor([1.0])),  # by 4
    ]
    assert pooled(metrics.mae(), *batches) == pytest.approx(7 / 3)
    assert pooled(metrics.rmse(), *batches) == pytest.approx(math.sqrt(21 / 3)), "not a mean of roots"
    assert metrics.mae().scores == (-math.inf, 0.0)
    with pytest.raises(ValueError, match=r"targets of shape \[3\] for outputs of shape \[2\]"):
        metrics.mae().measure(torch.zeros(2), torch.zeros(3))


def test_top_k_and_perplexity() -> None:
    outputs = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    batch = outputs, torch.tensor([0, 1, 2])
    assert pooled(metrics.top_k(2), batch) == pytest.approx(2 / 3)
    some = outputs, torch.tensor([0, 2, 2])  # the first is right, the others are wrong or left out
    assert [pooled(metrics.accuracy(ignore=2), some), pooled(metrics.accuracy(), some)] == [1.0, pytest.approx(1 / 3)]
    assert pooled(metrics.top_k(2, ignore=1), (outputs, torch.tensor([0, 1, 2]))) == 0.5
    even = torch.zeros(4, 5)
    assert pooled(metrics.perplexity(), (even, torch.tensor([0, 1, 2, 3]))) == pytest.approx(5)
    ignoring = metrics.perplexity(lambda o, t: functional.cross_entropy(o, t, ignore_index=0), ignore=0)
    assert pooled(ignoring, (even, torch.tensor([0, 1, 2, 0])), (even[:1], torch.tensor([4]))) == pytest.approx(5)
    nothing = even[:2], torch.zeros(2, dtype=torch.int64)
    assert pooled(ignoring, (even, torch.tensor([0, 1, 2, 0])), nothing) == pytest.approx(5), "a batch of padding alone"
    assert pooled(metrics.perplexity(lambda o, t: o.mean()), (torch.full((1, 1), 1e4), torch.tensor([0]))) == math.inf


def test_the_highest_are_those_that_sorting_finds() -> None:
    outputs, targets = torch.randn(50, 3, 7, generator=torch.Generator().manual_seed(0)), torch.arange(150) % 7
    targets = targets.view(50, 3)
    for k in (1, 2, 6, 7):
        right = (outputs.argsort(-1, descending=True)[..., :k] == targets.unsqueeze(-1)).any(-1)
        assert metrics.top_k(k).measure(outputs, targets) == (right.sum(), 150)
    assert metrics.top_k(2, ignore=9).measure(outputs, torch.full((50, 3), 9)) == (0, 0)
    with pytest.raises(ValueError, match="there are 7 classes, which are fewer than 8"):
        metrics.top_k(8).measure(outputs, targets)


@pytest.mark.parametrize("metric", [metrics.accuracy(ignore=0), metrics.top_k(2, ignore=0)])
def test_no_measure_of_tokens_waits_for_a_device(metric: Metric) -> None:
    """On a device without values a number on the host cannot be had."""
    outputs, targets = torch.zeros(2, 3, 4, device="meta"), torch.zeros(2, 3, dtype=torch.int64, device="meta")
    total, count = metric.measure(outputs, targets)
    assert isinstance(count, torch.Tensor)
    assert (total.device.type, count.device.type) == ("meta", "meta")


def test_pixels_have_their_classes_in_the_second_dimension() -> None:
    outputs = torch.zeros(2, 3, 2, 4)  # [batch, classes, height, width]
    outputs[:, 2] = 1
    targets = torch.full((2, 2, 4), 2)
    targets[0, 0, 0] = 1
    assert pooled(metrics.accuracy(), (outputs, targets)) == 15 / 16
    assert pooled(metrics.top_k(2), (outputs, targets)) >= 15 / 16
    with pytest.raises(ValueError, match=r"targets of shape \[3, 1\]"):
        top1(torch.zeros(3, 4), torch.zeros(3, 1))


def test_readings() -> None:
    share, error = Reading(), metrics.mae("°C")
    assert [share.text(0.98765), share.brief(0.98765), share.label] == ["98.77 %", "98.8 %", "accuracy (%)"]
    assert [error.text(1.25), error.brief(1.25), error.label, error.text(None)] == [
        "1.250 °C",
        "1.250 °C",
        "MAE (°C)",
        "-",
    ]
    assert [share.target_text(0.8), share.target_text(0.8225), error.target_text(1.25)] == [
        "80.0 %",
        "82.25 %",
        "1.25 °C",
    ]
    assert [share.target_text(target) for target in (0.57, 0.82255, 0.99995, 1)] == [
        "57.0 %",
        "82.255 %",
        "99.995 %",
        "100.0 %",
    ]
    # 95 % of 0.827 is 0.78565; 105 % of 1.25 is 1.3125; a negative score falls by 5 % of its size.
    assert [share.near(0.827), error.near(1.25), Reading(unit="", name="R²").near(-2.0)] == [0.785, 1.313, -2.1]
    assert [share.near(0.0), share.near(math.nan)] == [0.0, 0.0]
    assert [share.near_words, error.near_words] == [
        "95 % of the best method's accuracy",
        "105 % of the best method's MAE",
    ]
    assert Reading.recorded({"metric": "top-1 accuracy"}) == [Reading(name="top-1 accuracy")], "of earlier releases"
    assert Reading.recorded({"readings": [error.data, share.data]}) == [Reading(**error.data), share]
    assert [share.accuracy, Reading(name="top-5 accuracy").accuracy, Reading(name="recall").accuracy] == [
        True,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="-1 digits"):
        Reading(digits=-1)


@pytest.mark.parametrize(
    ("reading", "target", "words"),
    [
        (Reading(), 80.0, "target is 80: give the accuracy as a fraction"),
        (metrics.mae(), math.nan, "of the metric MAE"),
    ],
)
def test_targets_that_cannot_be(reading: Reading, target: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        reading.check_target(target)
    reading.check_target(0.5)


SAMPLES = torch.linspace(-1, 1, 20).view(10, 2), torch.arange(10) % 2


def task_of(targets: Tensor = SAMPLES[1], outputs: int = 2, **more: Any) -> Task:
    samples = SAMPLES[0], targets
    return Task(name="t", model=lambda: nn.Linear(2, outputs), train=samples, test=samples, **more)


def test_an_evaluator_pools_several_sums_and_another_metric_can_lead() -> None:
    task = task_of(also=(metrics.recall(2), metrics.recall(2, of="worst")), evaluation_batch=3)
    layout = task.layout()
    model = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0])  # always class 0
    measured = Evaluator(task, layout).test(model, torch.empty(0))
    assert measured.values[:3] == [0.5, 0.5, 0.0]
    assert measured.loss == pytest.approx(-math.log(math.e / (math.e + 1)) / 2 + math.log(math.e + 1) / 2)
    led = task.led_by("worst recall")
    assert [metric.name for metric in led.metrics] == ["worst recall", "accuracy", "mean recall"]
    assert Evaluator(led, layout).test(model, torch.empty(0)).accuracy == 0.0
    with pytest.raises(SettingError, match=r"evaluation.metric is 'worst', and t does not record it: .*worst recall"):
        task.led_by("worst")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: task_of(SAMPLES[1].float()), "targets of type float32 and the metric accuracy, which counts"),
        (
            lambda: task_of(loss=functional.mse_loss),
            r"the loss mse_loss and the metric accuracy.*fedgmr.metrics.mae\(\)",
        ),
        (lambda: task_of(loss=nn.MSELoss()), "the loss MSELoss and the metric accuracy"),
    ],
)
def test_what_cannot_belong_together_is_refused_when_the_task_is_made(make: Callable[[], Task], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: task_of(outputs=1, loss=lambda o, t: o.mean()), r"one output for each target \(shape \[2, 1\]\)"),
        (
            lambda: task_of(SAMPLES[1].float(), 1, loss=functional.mse_loss, metric=metrics.mae()),
            r"t's loss fails on two samples, with outputs of shape \[2, 1\] and float32 targets of shape \[2\]",
        ),
        (lambda: task_of(metric=metrics.mae()), r"t's metric MAE fails on two samples, with outputs of shape \[2, 2\]"),
        (lambda: task_of(outputs=2, loss=lambda o, t: o), r"t.loss returns a tensor of shape \[2, 2\]"),
        (lambda: task_of(metric=lambda o, t: (o.sum(), "2")), "returns a Tensor of float32 and str: return the sum"),
        (lambda: task_of(metric=lambda o, t: (t.sum(), t >= 0)), r"and a Tensor of shape \[2\]: return .* one whole"),
        (lambda: task_of(metric=lambda o, t: (t.sum(), t.sum() / 2)), "int64 and a Tensor of float32: return the sum"),
        (
            lambda: task_of(metric=lambda o, t: (7 * t.sum(), 2)),
            "metric accuracy is 3.5 on two samples, which the unit %",
        ),
        (
            lambda: task_of(metric=replace(metrics.mae(), measure=lambda o, t: (-t.sum(), 2))),
            "MAE is -0.5 .* its range",
        ),
        (
            lambda: replace(task_of(), model=lambda: nn.Linear(3, 2)),
            r"t's model fails on two samples, with inputs of shape \[2, 2\]",
        ),
        (
            lambda: replace(
                task_of(),
                train=Samples(SAMPLES[0], torch.zeros(len(SAMPLES[0]), 3, dtype=torch.int64)),
                model=lambda: nn.Sequential(nn.Linear(2, 9), nn.Unflatten(1, (3, 3))),
            ),
            r"outputs of shape \[2, 3, 3\], with classes in the second dimension for cross_entropy and in the last",
        ),
    ],
)
def test_a_trial_before_the_first_step(make: Callable[[], Task], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        try_task(task := make(), task.initial_model(0))


def test_a_trial_leaves_the_model_as_it_was() -> None:
    task = task_of()
    model = task.initial_model(0)
    try_task(task, model)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), task.initial_model(0).parameters(), strict=True))
