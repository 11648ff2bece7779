"""Evaluation: numbers by hand, whatever the batch size, and batch statistics where they are due."""

import math
from dataclasses import replace

import pytest
import torch
from e2e import tiny
from equivalence.runs import objects
from test_transfer import emulated, on
from torch import Tensor, nn

from fedgmr.submodels.layout import Layout
from fedgmr.tasks import metrics
from fedgmr.tasks.losses import token_cross_entropy
from fedgmr.tasks.metrics import Metric
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.task import Task
from fedgmr.training.evaluation.evaluator import Evaluator, Measurement
from fedgmr.training.evaluation.statistics import Norm
from fedgmr.training.plain.sequential import SequentialExecutor

INPUTS = torch.linspace(-2, 2, 46).view(23, 2)
TARGETS = torch.arange(23) % 3


def linear_task() -> Task:
    return Task(name="t", model=lambda: nn.Linear(2, 3), train=(INPUTS, TARGETS), test=(INPUTS, TARGETS))


def evaluator(
    task: Task, batch: int = 1000, validation: Samples | None = None, norm: Norm = "running"
) -> tuple[Evaluator, Layout]:
    layout = task.layout()
    return Evaluator(task, layout, batch=batch, norm=norm, validation=validation or task.train), layout


def both(measured: Measurement) -> tuple[float, float]:
    """Metric and loss."""
    assert measured.ready, "nothing is under way on a CPU"
    return measured.accuracy, measured.loss


def test_nobody_waits_for_what_is_measured_later(monkeypatch: pytest.MonkeyPatch) -> None:
    device = emulated(monkeypatch)
    first, second = (Measurement([metrics.accuracy()], (on(device, hits, 4.0, 6.0), (1,))) for hits in (1.0, 3.0))
    assert not first.ready
    assert (first.values, device.done, second.ready) == ([0.25, 1.5], 1, False)
    assert second.accuracy == 0.75


def test_a_measurement_by_hand() -> None:
    # Logits are the inputs; the loss is the mean first logit.
    inputs = torch.tensor([[1.0, 0.0], [0.0, 2.0], [5.0, 4.0], [2.0, 3.0]])
    samples = (inputs, torch.tensor([0, 0, 0, 1]))
    task = Task(
        name="t",
        model=lambda: nn.Linear(2, 2, bias=False),
        train=samples,
        test=samples,
        loss=lambda outputs, targets: outputs[:, 0].mean(),
    )
    made, _ = evaluator(task)
    identity = torch.eye(2).reshape(-1)
    assert both(made.test(identity, torch.empty(0))) == (0.75, 2.0)
    swapped = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert both(made.test(swapped, torch.empty(0))) == (0.25, 2.25)
    made, _ = evaluator(task, validation=Samples(inputs[:2], samples[1][:2]))
    assert both(made.validate(identity, torch.empty(0))) == (0.5, 0.5)


@pytest.mark.parametrize("batch", [1, 7, 22, 23])
def test_the_batch_size_does_not_matter(batch: int) -> None:
    task = linear_task()
    model = task.layout().flatten(task.initial_model(4))
    whole, _ = evaluator(task, 1000)
    parts, _ = evaluator(task, batch)
    expected = nn.functional.cross_entropy(INPUTS @ model[:6].view(3, 2).T + model[6:], TARGETS).item()
    empty = torch.empty(0)
    assert parts.test(model, empty).loss == pytest.approx(expected, abs=1e-6)
    assert parts.test(model, empty).accuracy == pytest.approx(whole.test(model, empty).accuracy, abs=1e-6)
    assert parts.validate(model, empty).accuracy == pytest.approx(whole.test(model, empty).accuracy, abs=1e-6)


def test_the_task_says_how_many_samples_fit() -> None:
    seen = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().forward(x)

    samples = Samples(INPUTS, TARGETS)
    task = Task(name="t", model=lambda: Watched(2, 3), train=samples, test=samples, evaluation_batch=8)
    Evaluator(task, task.layout()).test(torch.zeros(9), torch.empty(0))
    assert seen == [8, 8, 7]
    with pytest.raises(ValueError, match=r"t\.evaluation_batch is 0: give at least 1"):
        Task(name="t", model=lambda: Watched(2, 3), train=samples, test=samples, evaluation_batch=0)


@pytest.mark.parametrize("batch", [1, 2, 3, 1000])
def test_losses_are_over_tokens_whatever_the_batch(batch: int) -> None:
    # Four tokens; the logits of the token t are row t of the table. One, two, three and one targets are real.
    inputs = torch.tensor([[1, 0, 0], [2, 3, 0], [1, 2, 3], [3, 0, 0]])
    targets = torch.tensor([[2, 0, 0], [3, 1, 0], [2, 2, 1], [1, 0, 0]])
    table = torch.arange(16.0).view(4, 4).sin() * 3
    table[3, 1] = 4.0
    samples = (inputs, targets)
    task = Task(
        name="t",
        model=lambda: nn.Embedding(4, 4),
        train=samples,
        test=samples,
        loss=token_cross_entropy,
        metric=metrics.accuracy(ignore=0),
    )
    pairs = [(1, 2), (2, 3), (3, 1), (1, 2), (2, 2), (3, 1), (3, 1)]
    by_hand = -sum(float(table[token].log_softmax(-1)[target]) for token, target in pairs) / 7
    score = evaluator(task, batch)[0].test(table.reshape(-1), torch.empty(0))
    assert score.loss == pytest.approx(by_hand, abs=1e-6)
    right = sum(int(table[token].argmax()) == target for token, target in pairs)
    assert score.accuracy == pytest.approx(right / 7)
    assert 0 < right < 7


def test_a_recipe_says_how_many_samples_are_measured_on() -> None:
    run = objects(
        tiny.dense(),
        evaluation={"validation_samples": 30, "test_samples": 20},
        execution={"executor": "sequential"},
    )
    assert len(run.evaluator.task.test.inputs) == 20
    assert run.task.title == "dense, 20 of 96 test samples"
    assert isinstance(run.fleet.executor, SequentialExecutor)
    assert sum(len(part) for part in run.fleet.executor.work.order.parts) == 240 - 30
    whole = objects(tiny.dense(), evaluation={"test_samples": 96})
    assert (len(whole.task.test.inputs), whole.task.title) == (96, "")
    with pytest.raises(
        ValueError, match=r"evaluation\.validation_samples is 240: dense has 240 training samples; give"
    ):
        objects(tiny.dense(), evaluation={"validation_samples": 240})


def test_metrics_count_for_themselves() -> None:
    # Positions of sequences, some of them padding: the metric says how many it is over.
    def metric(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        real = targets >= 0
        return ((outputs.argmax(-1) == targets) & real).sum(), int(real.sum())

    inputs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
    targets = torch.tensor([[0, 1], [1, -1], [-1, -1]])
    task = Task(
        name="t",
        model=lambda: nn.Linear(2, 2, bias=False),
        train=(inputs, targets),
        test=(inputs, targets),
        loss=lambda outputs, targets: outputs.sum() * 0,
        metric=metric,
    )
    for batch in (1, 2, 3):
        made, _ = evaluator(task, batch)
        assert made.test(torch.eye(2).reshape(-1), torch.empty(0)).accuracy == pytest.approx(2 / 3)


def norm_task(**more: object) -> tuple[Task, Tensor, Tensor]:
    """Batch norm alone. By the running statistics (0, 1) every sample is class 0; by its own the batch is all right.

    Column 0 in standard units: -1.34, -0.45, 0.45, 1.34; column 1: -0.85, -0.57, -0.28, 1.70.
    """
    samples = Samples(torch.tensor([[10.0, 0.0], [12.0, 1.0], [14.0, 2.0], [16.0, 9.0]]), torch.tensor([1, 0, 0, 1]))
    fields = {"name": "t", "model": lambda: nn.BatchNorm1d(2), "train": samples, "test": samples}
    task = Task(**(fields | more))  # type: ignore[arg-type]
    layout = task.layout()
    model = task.initial_model(0)
    return task, layout.flatten(model), layout.flatten_buffers(model)


@pytest.mark.parametrize("norm", ["running", "batch", "rebuilt"])
def test_test_and_validation_have_the_same_kind_of_statistics(norm: Norm) -> None:
    task, model, buffers = norm_task()
    made, _ = evaluator(task, norm=norm)
    given = buffers.clone()
    expected = 0.5 if norm == "running" else 1.0
    for _ in range(2):
        assert made.test(model, buffers).accuracy == expected
        assert made.validate(model, buffers).accuracy == expected
        assert torch.equal(buffers, given), "the running statistics of the global model stay"
        assert not any(module.training for module in made.module.modules())


def test_several_metrics_are_pooled_each_over_its_own_count() -> None:
    def first_two(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        return targets[:2].sum(), 2

    task = replace(linear_task(), also=(Metric(name="sum", measure=first_two, unit=""),))
    made, _ = evaluator(task, batch=8)  # of 8, 8 and 7 samples: targets 0 1, 2 0 and 1 2
    measured = made.test(torch.zeros(9), torch.empty(0))
    assert measured.values == pytest.approx([8 / 23, 6 / 6, math.log(3)])


def test_running_statistics_are_those_given() -> None:
    task, model, _ = norm_task()
    made, _ = evaluator(task)
    # The statistics of the batch itself: means 13 and 3, variances 5 and 12.5.
    assert made.test(model, torch.tensor([13.0, 3.0, 5.0, 12.5])).accuracy == 1.0


def test_only_batch_norm_leaves_evaluation() -> None:
    task, model, buffers = norm_task(model=lambda: nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(2)))
    made, _ = evaluator(task, norm="batch")
    for _ in range(5):
        assert made.validate(model, buffers).accuracy == 1.0


def test_evaluation_mode_returns_even_after_an_error() -> None:
    def broken(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        raise RuntimeError("no metric")

    task, model, buffers = norm_task(metric=broken)
    made, _ = evaluator(task, norm="batch")
    with pytest.raises(RuntimeError, match="no metric"):
        made.validate(model, buffers)
    assert not any(module.training for module in made.module.modules())


def test_no_batch_of_a_single_sample_is_left_over() -> None:
    # Five samples in batches of at most four: a single one has no batch statistics.
    task, model, buffers = norm_task()
    inputs, targets = task.train[:]
    samples = Samples(torch.cat([inputs, inputs[:1]]), torch.cat([targets, targets[:1]]))
    made, _ = evaluator(task, batch=4, validation=samples, norm="batch")
    assert 0.0 <= made.validate(model, buffers).accuracy <= 1.0


def test_a_single_sample_is_measured_with_the_statistics_that_come_with_the_model() -> None:
    task, model, _ = norm_task()
    made, _ = evaluator(task, norm="batch")
    parts = [task.train.part(torch.tensor([0, 1, 2, 3])), task.train.part(torch.tensor([0]))]
    # By means 10 and -1 sample 0 is class 1; by its own it has none.
    found = made.on(parts, model, torch.tensor([10.0, -1.0, 1.0, 1.0]))
    assert [each.accuracy for each in found] == [1.0, 1.0]


def test_frozen_parameters_are_those_of_the_run() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4).requires_grad_(False), nn.Linear(4, 3))

    task = Task(name="t", model=model, train=(INPUTS, TARGETS), test=(INPUTS, TARGETS))
    layout, module = task.layout(), task.initial_model(7)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(module(INPUTS), TARGETS).item()
    made = Evaluator(task, layout, seed=7)
    assert made.test(layout.flatten(module), torch.empty(0)).loss == pytest.approx(expected, abs=1e-6)
    other = Evaluator(task, layout, seed=8)
    assert other.test(layout.flatten(module), torch.empty(0)).loss != pytest.approx(expected, abs=1e-3)


def test_inputs_are_prepared() -> None:
    samples = (torch.tensor([[0, 255]], dtype=torch.uint8), torch.tensor([1]))
    task = Task(
        name="t",
        model=lambda: nn.Linear(2, 2, bias=False),
        train=samples,
        test=samples,
        prepare=lambda x: x / 255,
        loss=lambda outputs, targets: outputs.sum(),
    )
    made, _ = evaluator(task)
    assert both(made.test(torch.eye(2).reshape(-1), torch.empty(0))) == (1.0, 1.0)


def test_gradients_are_not_recorded() -> None:
    task = linear_task()
    made, layout = evaluator(task)
    seen: list[bool] = []
    made.module.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    made.test(layout.flatten(task.initial_model(0)), torch.empty(0))
    assert seen == [False]


def test_a_batch_in_which_nothing_counts_adds_nothing() -> None:
    """A mean over no targets is no number; the other samples have a mean all the same."""
    inputs, targets = torch.arange(8.0).view(4, 2), torch.tensor([0, -100, 1, 1])
    task = Task(
        name="t",
        model=lambda: nn.Linear(2, 2),
        train=(inputs, targets),
        test=(inputs, targets),
        metric=metrics.accuracy(ignore=-100),
        also=(metrics.perplexity(ignore=-100),),
    )
    model = task.layout().flatten(task.initial_model(0))
    wanted, found = (evaluator(task, batch)[0].test(model, torch.empty(0)).values for batch in (4, 1))
    assert found == pytest.approx(wanted)
    assert all(map(math.isfinite, wanted))


def test_a_measure_may_return_a_number() -> None:
    """On a device without values nothing but the place of the sums can be seen."""
    task = replace(linear_task(), metric=lambda outputs, targets: (3.0, 4)).to(torch.device("meta"))
    measured = Evaluator(task, task.layout()).test(torch.zeros(9, device="meta"), torch.empty(0, device="meta"))
    assert (measured._sums._tensor.device.type, measured._widths) == ("meta", (1,))
