"""Local rules by hand: FIARSE's threshold, FjORD's widths and distillation, the scaler, masked loss and static norm."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.exchange import ClientTask, Update
from fedgmr.methods import named_method
from fedgmr.server.aggregation import Merge
from fedgmr.server.buffer import Contribution
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.widths import solve_widths, width_levels
from fedgmr.tasks.metrics import class_dim, mae
from fedgmr.tasks.partition import SampleOrder
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.task import Task
from fedgmr.training.evaluation.evaluator import Evaluator
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.rules import LocalRule, OrderedDropout, PlainSGD, Stacking, ThresholdedSGD, WidthSGD
from fedgmr.training.submodel.cut import MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.sliced_cut import SlicedCutter
from fedgmr.training.submodel.workspace import SubModel, Workspace
from fedgmr.training.thresholds import Dropping
from fedgmr.training.work import LocalWork

SEED = 5
CPU = torch.device("cpu")


def mean_output(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is known without thinking."""
    return outputs.mean()


def task_of(model: Callable[[], nn.Module], inputs: Tensor, targets: Tensor | None = None, **more: Any) -> Task:
    samples = Samples(inputs, torch.zeros(len(inputs), dtype=torch.int64) if targets is None else targets)
    return Task(**({"name": "t", "model": model, "train": samples, "test": samples} | more))


def work(task: Task, levels: LevelMap | None = None, level: int = 0, **more: Any) -> ClientTask:
    layout, model = task.layout(), task.initial_model(SEED)
    fields = {
        "client": 0,
        "version": 0,
        "level": level,
        "levels": levels or LevelMap.full(layout.size),
        "map_version": 0,
        "model": layout.flatten(model),
        "buffers": layout.flatten_buffers(model),
        "learning_rate": 0.1,
        "first_batch": 0,
    }
    return ClientTask(**(fields | more))


def order_of(task: Task, batch_size: int | None = None) -> SampleOrder:
    """One client with everything."""
    samples = np.arange(len(task.train.inputs))
    return SampleOrder([samples], seed=SEED, batch_size=batch_size or len(samples))


def masked(task: Task, rule: LocalRule, *, steps: int = 1, **more: Any) -> SequentialExecutor:
    workspace = Workspace(MaskedCutter(FlatModule(task.initial_model(SEED), task.layout(), CPU)))
    local = LocalWork(task=task, order=order_of(task), rule=rule, steps=steps, seed=SEED, **more)
    return SequentialExecutor(local, workspace)


def sliced_cutter(task: Task, rule: LocalRule, ladder: Sequence[float]) -> SlicedCutter:
    model = task.initial_model(SEED)
    plan = follow_channels(model, task.train.inputs[:2])
    return SlicedCutter(model, task.layout(), plan, tuple(ladder), CPU, scaler=rule.scaler, per_width=rule.per_width)


def sliced(
    task: Task, rule: LocalRule, ladder: Sequence[float], *, steps: int = 1, **more: Any
) -> tuple[SequentialExecutor, LevelMap]:
    """An executor on small modules, and the level map of its prefixes."""
    model, layout = task.initial_model(SEED), task.layout()
    plan = follow_channels(model, task.train.inputs[:2])
    levels = width_levels(plan, layout, solve_widths(plan, layout, ladder), ladder=ladder)
    order = more.pop("order", None) or order_of(task)
    local = LocalWork(task=task, order=order, rule=rule, steps=steps, seed=SEED, **more)
    return SequentialExecutor(local, Workspace(sliced_cutter(task, rule, ladder))), levels


# FIARSE


def factors(weights: Sequence[float], theta: float, *, derivative: bool = True) -> list[float]:
    least = torch.tensor(theta, dtype=torch.float64)
    return Dropping.factor(torch.tensor(weights, dtype=torch.float64), least, derivative=derivative).tolist()


def test_the_factor_by_hand() -> None:
    # 1 + 2·0.1·|w| / (|w| + 0.1)²: 0.02 / 0.04, 0.06 / 0.16, 0.18 / 1, 0.38 / 4.
    assert factors([0.1, 0.3, -0.3, 0.9, 1.9], 0.1) == pytest.approx([1.5, 1.375, 1.375, 1.18, 1.095], abs=1e-12)
    assert factors([0.0999, 0.0, -0.05], 0.1) == [0, 0, 0]
    assert factors([0.0, 0.3, -2.0], 0.0) == [1, 1, 1]
    assert factors([3.0, 0.0], math.inf) == [0, 0]  # a tensor of which nothing is in the sub-model


def test_the_factor_without_the_derivative() -> None:
    assert factors([0.1, 0.3, 0.05, -9.0], 0.1, derivative=False) == [1, 1, 0, 1]
    assert factors([0.0, 0.3], 0.0, derivative=False) == [1, 1]


def ones_task(units: int, *, bias: bool = False) -> Task:
    """The loss is the sum of the weights: every gradient is 1."""
    return task_of(lambda: nn.Linear(units, 1, bias=bias), torch.ones(4, units), loss=mean_output)


def test_theta_is_that_of_the_start_and_a_weight_below_it_is_frozen() -> None:
    # Theta 0.1. Step 1: loss 0.4; 0.3 - 0.1·1.375 and 0.1 - 0.1·1.5 = -0.05, from here on zero in the forward pass and
    # frozen. Step 2: loss 0.1625; factor 1 + 0.0325 / 0.2625². Step 3: nothing is left to move.
    second = 0.1625 - 0.1 * (1 + 0.0325 / 0.2625**2)
    expected = {1: ([0.1625, -0.05], 0.4), 2: ([second, -0.05], 0.5625 / 2), 3: ([second, -0.05], 0.5625 / 3)}
    assert second < 0.1
    task = ones_task(2)
    for steps, (values, loss) in expected.items():
        update = masked(task, ThresholdedSGD(), steps=steps).train([work(task, model=torch.tensor([0.3, 0.1]))])[0]
        assert update.values.tolist() == pytest.approx(values, abs=1e-7)
        assert update.loss == pytest.approx(loss, abs=1e-7)


def test_a_weight_that_changes_sign_beyond_theta_goes_on() -> None:
    # Theta 0.3, steps of 1 without the derivative: 0.6, -0.4, -1.4 and 0.3, -0.7, -1.7.
    task = ones_task(2)
    rule = ThresholdedSGD(derivative=False)
    job = work(task, model=torch.tensor([0.6, 0.3]), learning_rate=1.0)
    assert masked(task, rule, steps=2).train([job])[0].values.tolist() == pytest.approx([-1.4, -1.7])
    # Theta 0.6: the first is frozen at -0.4.
    job = work(task, model=torch.tensor([0.6, 2.6]), learning_rate=1.0)
    assert masked(task, rule, steps=2).train([job])[0].values.tolist() == pytest.approx([-0.4, 0.6])


def test_theta_counts_the_sub_model_only() -> None:
    # Level 0 has 0.3 and 0.1, in the order 2, 0; 0.02 and 0 are outside and neither lower theta nor come back.
    levels = LevelMap(torch.tensor([0, 1, 0, 1], dtype=torch.uint8), (0.5, 1.0))
    task = ones_task(4)
    executor = masked(task, ThresholdedSGD())
    job = work(task, levels, model=torch.tensor([0.1, 0.02, 0.3, 0.0]))
    assert executor.train([job])[0].values.tolist() == pytest.approx([0.1 - 0.15, 0.3 - 0.1375])
    whole = executor.train([work(task, levels, 1, model=job.model)])[0].values
    # With all of it theta is 0: every factor is 1, also that of the weight 0. Level order: 0, 2, 1, 3.
    assert whole.tolist() == pytest.approx([0.0, 0.2, -0.08, -0.1])


def test_theta_of_the_next_task_is_its_own() -> None:
    task = ones_task(2)
    executor = masked(task, ThresholdedSGD())
    first = executor.train([work(task, model=torch.tensor([0.3, 0.1]))])[0]
    executor.train([work(task, model=torch.tensor([4.0, 2.0]))])
    again = executor.train([work(task, model=torch.tensor([0.3, 0.1]))])[0]
    assert torch.equal(first.values, again.values)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        # Theta 0.05 for all: 1 + 0.03 / 0.35², 1 + 0.02 / 0.25², 1.5 for the bias.
        ("global", [0.3 - 0.1 * (1 + 0.03 / 0.1225), 0.2 - 0.132, 0.05 - 0.15]),
        # Theta 0.2 for the weight and 0.05 for the bias: 1 + 0.12 / 0.25, 1.5, 1.5.
        ("layerwise", [0.3 - 0.148, 0.2 - 0.15, 0.05 - 0.15]),
    ],
)
def test_one_theta_or_one_per_tensor(scope: Any, expected: list[float]) -> None:
    task = ones_task(2, bias=True)
    job = work(task, model=torch.tensor([0.3, 0.2, 0.05]))
    assert masked(task, ThresholdedSGD(scope=scope)).train([job])[0].values.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("scope", ["global", "layerwise"])
def test_a_tensor_outside_the_sub_model_stays_zero(scope: Any) -> None:
    # The bias is outside: theta is the smallest weight, 0.2, in both scopes.
    levels = LevelMap(torch.tensor([0, 0, 1], dtype=torch.uint8), (0.5, 1.0))
    task = ones_task(2, bias=True)
    executor = masked(task, ThresholdedSGD(scope=scope), steps=2)
    update = executor.train([work(task, levels, model=torch.tensor([0.3, 0.2, 9.0]), learning_rate=0.01)])[0]
    assert torch.isfinite(update.values).all()
    assert isinstance(executor.workspace.cutter, MaskedCutter)
    assert executor.workspace.cutter.module.flat[2] == 0
    assert update.values[1] == pytest.approx(0.2 - 0.015)  # frozen after the first step


@pytest.mark.parametrize("scope", ["global", "layerwise"])
def test_a_tensor_that_is_not_ranked_is_neither_masked_nor_scaled(scope: Any) -> None:
    # Theta is the smallest weight, 0.2, whatever the bias is: factors 1 + 0.12 / 0.25 and 1.5, and 1 for the bias.
    task = ones_task(2, bias=True)
    rule = ThresholdedSGD(scope=scope, ranks="prunable")
    first = work(task, model=torch.tensor([0.3, 0.2, 0.05]))
    assert masked(task, rule).train([first])[0].values.tolist() == pytest.approx([0.152, 0.05, -0.05])
    # Nothing is left to move but the bias.
    assert masked(task, rule, steps=3).train([first])[0].values.tolist() == pytest.approx([0.152, 0.05, -0.25])
    kept = replace(task, keep=("weight",), prune=("bias",))
    job = work(kept, model=torch.tensor([0.3, 0.2, 0.05]))
    # The other way round: only the bias has a theta, 0.05.
    assert masked(kept, rule).train([job])[0].values.tolist() == pytest.approx([0.2, 0.1, 0.05 - 0.15])


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_normalisation_parameters_are_neither_masked_nor_scaled(norm: Callable[[int], nn.Module]) -> None:
    # All of them are smaller than theta = 0.1. The loss is the mean of three outputs: the biases' gradient is a third.
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 3.0], [-1.0, 1.0]], dtype=torch.float64)
    task = task_of(lambda: nn.Sequential(nn.Linear(2, 3, bias=False), norm(3)).double(), inputs, loss=mean_output)
    weights, norms = [0.3, 0.1, 0.2, 0.4, 0.5, -0.25], [0.05, 0.06, 0.07, 0.01, -0.02, 0.03]
    job = work(task, model=torch.tensor(weights + norms, dtype=torch.float64), learning_rate=0.3)
    for steps in (1, 2):
        biases = masked(task, ThresholdedSGD(), steps=steps).train([job])[0].values[9:]
        assert biases.tolist() == pytest.approx([bias - 0.1 * steps for bias in norms[3:]], abs=1e-12)
    # One step at weights that all take part: the norm's own step is the plain one, that of the weights is scaled.
    task = replace(task, loss=lambda outputs, targets: outputs.pow(3).mean() * 100)
    thresholded, plain = (masked(task, rule).train([job])[0].values for rule in (ThresholdedSGD(), PlainSGD()))
    assert torch.equal(thresholded[6:], plain[6:])
    assert not torch.equal(plain[6:], job.model[6:])
    ratio = (thresholded - job.model)[:6] / (plain - job.model)[:6]
    assert ratio.tolist() == pytest.approx(factors(weights, 0.1), rel=1e-9)


class _Kept(torch.autograd.Function):
    """w·m(w) with m a step in the forward pass, whose derivative is taken to be 2·theta·sign(w) / (|w| + theta)²."""

    @staticmethod
    def forward(context: Any, weight: Tensor, theta: Tensor) -> Tensor:
        context.save_for_backward(weight, theta)
        return weight * (weight.abs() >= theta)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        weight, theta = context.saved_tensors
        inside = weight.abs() >= theta
        slope = 2 * theta * weight.sign() / (weight.abs() + theta) ** 2
        return torch.where(inside, gradients[0] * (1 + weight * slope), 0), None


@pytest.mark.parametrize("scope", ["global", "layerwise"])
def test_the_rule_is_the_chain_rule_through_the_mask(scope: Any) -> None:
    torch.manual_seed(1)
    inputs, targets = torch.randn(12, 1, 4, 4, dtype=torch.float64), torch.arange(12) % 3
    task = task_of(
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double(), inputs, targets
    )
    layout, steps, rate = task.layout(), 8, 1.0
    levels = LevelMap.from_scores(layout.flatten(task.initial_model(SEED)).abs(), (0.4, 1.0))
    job = work(task, levels, learning_rate=rate)
    update = masked(task, ThresholdedSGD(scope=scope), steps=steps).train([job])[0]

    inside = layout.views(levels.mask(0))
    weights = [w.clone() for w in layout.views(torch.where(levels.mask(0), job.model, 0))]
    least = [w.abs()[i].min() if i.any() else torch.tensor(math.inf) for w, i in zip(weights, inside, strict=True)]
    thetas = least if scope == "layerwise" else [torch.stack(least).min()] * len(least)
    frozen = 0
    for batch in order_of(task).batches(0, 0, steps):
        leaves = [w.requires_grad_() for w in weights]
        kept = [_Kept.apply(w, theta) for w, theta in zip(leaves, thetas, strict=True)]
        frozen = int(sum(((k == 0) & i).sum() for k, i in zip(kept, inside, strict=True)))
        hidden = torch.tanh(functional.conv2d(inputs[batch], kept[0], kept[1])).flatten(1)
        loss = functional.cross_entropy(functional.linear(hidden, kept[2], kept[3]), targets[batch])
        slopes = torch.autograd.grad(loss, leaves)
        weights = [(w - rate * g * i).detach() for w, g, i in zip(leaves, slopes, inside, strict=True)]
    assert frozen > 0, "some weight fell below theta on the way"
    expected = levels.pack(torch.cat([w.reshape(-1) for w in weights]), 0)
    assert torch.allclose(update.values, expected, rtol=0, atol=1e-12)


# FjORD

LADDER = (0.37, 0.69, 1.0)  # two, four and all of six hidden units, in both nets below


def drawn(rule: OrderedDropout, own: int, number: int, *, client: int = 0, seed: int = SEED) -> int:
    task: Any = SimpleNamespace(client=client, level=own)
    return rule.level(task, number, seed)


@pytest.mark.parametrize("own", [1, 2, 4])
def test_widths_are_drawn_uniformly_up_to_the_own(own: int) -> None:
    draws = [drawn(OrderedDropout(), own, number) for number in range(3000)]
    counts = np.bincount(draws)
    assert len(counts) == own + 1
    expected = 3000 / (own + 1)
    # The 99.9 % quantiles of chi-square with 1, 2 and 4 degrees of freedom.
    assert float(((counts - expected) ** 2 / expected).sum()) < {1: 10.83, 2: 13.82, 4: 18.47}[own]
    # Neighbouring draws do not go together either.
    pairs = np.bincount([a * (own + 1) + b for a, b in zip(draws[::2], draws[1::2], strict=True)])
    assert pairs.min() > 0.5 * 1500 / (own + 1) ** 2


def test_the_smallest_client_has_no_choice() -> None:
    assert {drawn(OrderedDropout(), 0, number) for number in range(50)} == {0}


def test_a_draw_belongs_to_seed_client_and_mini_batch() -> None:
    def draws(seed: int, client: int) -> tuple[int, ...]:
        return tuple(drawn(OrderedDropout(), 4, number, client=client, seed=seed) for number in range(40))

    assert draws(5, 0) == draws(5, 0)
    assert len({draws(seed, client) for seed in (5, 6) for client in (0, 1)}) == 4
    # With distillation the widths are the same.
    assert draws(5, 0) == tuple(drawn(OrderedDropout(distillation=True), 4, number) for number in range(40))


RELEASED = (0.05, 0.1, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)  # 0.5 is the own density of clients and of no other


@pytest.mark.parametrize(
    ("own", "widths"),
    [
        (0.05, [0.05] * 5),
        (0.1, [0.05, 0.1, 0.05, 0.1, 0.05]),
        (0.2, [0.05, 0.1, 0.2, 0.05, 0.1]),
        (0.5, [0.05, 0.1, 0.2, 0.4, 0.5]),
        (1.0, [0.05, 0.1, 0.2, 0.4, 0.6]),
    ],
)
def test_widths_in_turn_begin_with_the_smallest_in_every_task(own: float, widths: list[float]) -> None:
    task = small_task()
    rule = OrderedDropout(order="cycle", widths=(0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0))
    levels = LevelMap(torch.zeros(task.layout().size, dtype=torch.uint8), RELEASED)
    local = LocalWork(task=task, order=order_of(task, 4), rule=rule, steps=5, seed=SEED)
    for first_batch in (0, 5, 35):
        job = work(task, levels, RELEASED.index(own), first_batch=first_batch)
        assert [RELEASED[level] for level in local.levels(job)] == widths


def test_only_the_given_widths_are_drawn_beside_the_own() -> None:
    task: Any = SimpleNamespace(client=0, level=3, levels=SimpleNamespace(ladder=(0.1, 0.2, 0.4, 0.8, 1.0)))
    levels = [OrderedDropout(widths=(0.2, 1.0)).level(task, number, SEED) for number in range(400)]
    assert set(levels) == {1, 3}
    assert 150 < levels.count(1) < 250


def test_a_task_in_turn_trains_each_width_once() -> None:
    # Three steps on the same samples: the step of width 0, then of width 1, then of the whole net.
    task, rule = small_task(), OrderedDropout(order="cycle")
    executor, levels = sliced(task, rule, LADDER, steps=3)
    job = work(task, levels, 2, first_batch=4)
    model = job.model
    for level, chosen in enumerate(order_of(task).batches(0, 4, 3)):
        units = (2, 4, 6)[level]
        first, bias, second, last = (view.clone().requires_grad_() for view in task.layout().views(model))
        inputs, targets = task.train[chosen]
        outputs = torch.tanh(inputs @ first[:units].T + bias[:units]) @ second[:, :units].T + last
        slopes = torch.autograd.grad(functional.cross_entropy(outputs, targets), [first, bias, second, last])
        model = model - 0.1 * torch.cat([g.reshape(-1) for g in slopes])
    values = executor.train([job])[0].values
    assert torch.allclose(values, levels.pack(model, 2), rtol=0, atol=1e-13)


def small_task(loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy, **more: Any) -> Task:
    """Five numbers, six hidden units, three classes, in double precision."""
    torch.manual_seed(2)
    inputs, targets = torch.randn(24, 5, dtype=torch.float64), torch.arange(24) % 3
    return task_of(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double(), inputs, targets, loss=loss, **more
    )


def number_with(level: int, own: int = 2) -> int:
    """A mini-batch that draws `level`."""
    return next(number for number in range(1000) if drawn(OrderedDropout(), own, number) == level)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_mini_batch_changes_coordinates_up_to_its_level_only(level: int) -> None:
    task = small_task()
    executor, levels = sliced(task, OrderedDropout(), LADDER)
    job = work(task, levels, 2, first_batch=number_with(level))
    update = executor.train([job])[0]
    moved = levels.spread(update.values, torch.zeros(levels.sizes[2], dtype=torch.float64)) != job.model
    assert torch.equal(moved, levels.mask(level))
    # The step itself is that of the narrow network: units 0 .. k - 1.
    units = {0: 2, 1: 4, 2: 6}[level]
    assert levels.sizes[level] == 5 * units + units + 3 * units + 3
    first, bias, second, last = (view.clone().requires_grad_() for view in task.layout().views(job.model))
    inputs, targets = task.train[order_of(task).batches(0, job.first_batch, 1)[0]]
    outputs = torch.tanh(inputs @ first[:units].T + bias[:units]) @ second[:, :units].T + last
    loss = functional.cross_entropy(outputs, targets)
    slopes = torch.autograd.grad(loss, [first, bias, second, last])
    expected = job.model - 0.1 * torch.cat([g.reshape(-1) for g in slopes])
    assert torch.allclose(update.values, levels.pack(expected, 2), rtol=0, atol=1e-14)
    assert update.loss == pytest.approx(loss.item(), abs=1e-14)


class Recording(Workspace):
    """Remembers the levels asked for."""

    asked: list[int]

    def open(self, level: int | None = None) -> SubModel:
        """As usual."""
        self.asked.append(self.task.level if level is None else level)
        return super().open(level)


@pytest.mark.parametrize("own", [0, 1, 2])
def test_one_draw_per_mini_batch(own: int) -> None:
    task = small_task()
    workspace = Recording(sliced_cutter(task, OrderedDropout(), LADDER))
    _, levels = sliced(task, OrderedDropout(), LADDER)
    local = LocalWork(task=task, order=order_of(task, 4), rule=OrderedDropout(), steps=12, seed=SEED)
    workspace.asked = []
    SequentialExecutor(local, workspace).train([work(task, levels, own, first_batch=7)])
    assert workspace.asked[:12] == [drawn(OrderedDropout(), own, number) for number in range(7, 19)]
    assert len(set(workspace.asked)) == own + 1


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of each class against the others, mean over samples and classes."""
    return functional.binary_cross_entropy_with_logits(
        outputs, functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    )


@pytest.mark.parametrize("soft_targets", ["softmax", "sigmoid"])
def test_distillation_adds_both_gradients_at_the_same_weights(soft_targets: Any) -> None:
    loss = bce if soft_targets == "sigmoid" else functional.cross_entropy
    task = small_task(loss)
    rule = OrderedDropout(distillation=True, soft_targets=soft_targets)
    numbers = range(1000)
    start = next(n for n in numbers if [drawn(rule, 2, n + i) for i in range(4)] == [0, 1, 2, 0])
    executor, levels = sliced(task, rule, LADDER, steps=4)
    job = work(task, levels, 2, first_batch=start, learning_rate=0.5)
    update = executor.train([job])[0]

    weights = [view.clone() for view in task.layout().views(job.model)]
    losses = []
    for units, batch in zip((2, 4, 6, 2), order_of(task).batches(0, start, 4), strict=True):
        inputs, targets = task.train.inputs[batch], task.train.targets[batch]
        first, bias, second, last = leaves = [w.requires_grad_() for w in weights]
        teacher = torch.tanh(inputs @ first.T + bias) @ second.T + last
        total = loss(teacher, targets)
        losses.append(total.item())
        if units < 6:
            student = torch.tanh(inputs @ first[:units].T + bias[:units]) @ second[:, :units].T + last
            if soft_targets == "sigmoid":
                soft = teacher.detach().sigmoid()
                total = total - (soft * student.sigmoid().log() + (1 - soft) * (1 - student.sigmoid()).log()).mean()
            else:
                total = total - (teacher.detach().softmax(1) * student.log_softmax(1)).sum(1).mean()
        slopes = torch.autograd.grad(total, leaves)
        weights = [(w - 0.5 * g).detach() for w, g in zip(leaves, slopes, strict=True)]
    expected = levels.pack(torch.cat([w.reshape(-1) for w in weights]), 2)
    assert torch.allclose(update.values, expected, rtol=0, atol=1e-12)
    assert update.loss == pytest.approx(np.mean(losses), abs=1e-12), "the loss is that of the own width"


def normed_task(momentum: float | None = 0.1) -> Task:
    """One number to six units with batch norm, three classes."""
    torch.manual_seed(3)
    inputs, targets = torch.randn(8, 1), torch.arange(8) % 3
    layers = (lambda: nn.Linear(1, 6), lambda: nn.BatchNorm1d(6, momentum=momentum), lambda: nn.Linear(6, 3))
    return task_of(lambda: nn.Sequential(*(layer() for layer in layers)), inputs, targets)


def blocks() -> Tensor:
    """Statistics of three widths, all different: six means and six variances each."""
    return torch.arange(36.0) + 1


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("distillation", [False, True])
def test_statistics_of_the_trained_width_only(level: int, distillation: bool) -> None:
    task = normed_task()
    executor, levels = sliced(task, OrderedDropout(distillation=distillation), LADDER)
    job = work(task, levels, 2, buffers=blocks(), first_batch=number_with(level))
    update = executor.train([job])[0]
    assert update.buffers.shape == (36,)
    # By hand: 0.9 of the old and 0.1 of the batch's mean and unbiased variance, in the units of the width.
    weight, bias = job.model[:6], job.model[6:12]
    hidden = task.train.inputs * weight + bias
    expected = blocks().view(3, 2, 6)
    for trained in {level, 2} if distillation else {level}:
        units = {0: 2, 1: 4, 2: 6}[trained]
        expected[trained, 0, :units] = 0.9 * expected[trained, 0, :units] + 0.1 * hidden.mean(0)[:units]
        expected[trained, 1, :units] = 0.9 * expected[trained, 1, :units] + 0.1 * hidden.var(0)[:units]
    assert torch.allclose(update.buffers, expected.view(-1), rtol=0, atol=1e-5)
    assert torch.equal(job.buffers, blocks())


@pytest.mark.parametrize("own", [0, 1, 2])
def test_a_client_uploads_the_statistics_up_to_its_own_width(own: int) -> None:
    task = normed_task()
    executor, levels = sliced(task, OrderedDropout(), LADDER, steps=6)
    update = executor.train([work(task, levels, own, buffers=blocks())])[0]
    assert update.buffers.shape == (12 * (own + 1),)
    found = update.buffers.view(own + 1, 12)
    trained = {drawn(OrderedDropout(), own, number) for number in range(6)}
    for level in range(own + 1):
        assert torch.equal(found[level], blocks().view(3, 12)[level]) == (level not in trained)


def test_the_mean_of_a_widths_statistics_is_over_the_clients_that_have_it() -> None:
    levels = LevelMap(torch.tensor([0, 1, 2], dtype=torch.uint8), LADDER)
    contributions = [
        Contribution(
            client=client,
            version=0,
            level=client,
            levels=levels,
            map_version=0,
            values=torch.arange(client + 1.0),
            buffers=torch.tensor(statistics),
        )
        for client, statistics in enumerate(([3.0, 30.0], [6.0, 60.0, 2.0, 20.0], [9.0, 90.0, 4.0, 40.0, 5.0, 50.0]))
    ]
    merge = Merge(
        model=torch.zeros(3),
        buffers=torch.tensor([1.0] * 6),
        fresh=contributions,
        held=contributions,
        starts={},
        weights={0: 1.0, 1: 1.0, 2: 1.0},
        clients=3,
        fleet_weight=lambda: 3.0,
    )
    rule = named_method("fjord").aggregation
    assert rule.merge(merge)[1].tolist() == [6, 60, 3, 30, 5, 50]
    small = Merge(**(vars(merge) | {"held": contributions[:2], "fresh": contributions[:2]}))
    assert rule.merge(small)[1].tolist() == [4.5, 45, 2, 20, 1, 1], "a width that nobody has stays as it was"


# HeteroFL and FedRolex


def two_layers(ones: Tensor | None = None, **more: Any) -> Task:
    """One input, two hidden units, one output, no biases; half of the coordinates are half of the width."""
    return task_of(
        lambda: nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)),
        torch.ones(4, 1) if ones is None else ones,
        loss=mean_output,
        **more,
    )


@pytest.mark.parametrize(
    ("scaler", "values", "loss"),
    [
        # Hidden 2 / 0.5 = 4, output 3·4 = 12; gradients 4 for the output weight and 3 / 0.5 = 6 for the hidden one.
        (True, [2 - 0.6, 3 - 0.4], 12.0),
        (False, [2 - 0.3, 3 - 0.2], 6.0),
        (None, [2 - 0.3, 3 - 0.2], 6.0),
    ],
)
def test_the_scaler_by_hand(scaler: bool | None, values: list[float], loss: float) -> None:
    task = two_layers()
    executor, levels = sliced(task, WidthSGD(scaler=scaler), (0.5, 1.0))
    model = torch.tensor([2.0, 7.0, 3.0, 5.0])
    update = executor.train([work(task, levels, model=model)])[0]
    assert update.values.tolist() == pytest.approx(values)
    assert update.loss == pytest.approx(loss)
    # Nothing is divided at the full width: 2·3 + 7·5 = 41. Level order: 0, 2, 1, 3.
    whole = executor.train([work(task, levels, 1, model=model)])[0]
    assert whole.loss == pytest.approx(41.0)
    assert whole.values.tolist() == pytest.approx([2 - 0.3, 3 - 0.2, 7 - 0.5, 5 - 0.7])


def test_the_scaler_rests_in_evaluation() -> None:
    # The metric sums the outputs: two samples of 6, not of 12.
    task = two_layers(metric=lambda outputs, targets: (outputs.sum(), 1))
    executor, levels = sliced(task, WidthSGD(scaler=True), (0.5, 1.0), held_out=[np.array([0, 1])])
    update = executor.train([work(task, levels, model=torch.tensor([2.0, 7.0, 3.0, 5.0]))])[0]
    assert update.report is not None
    assert update.report.metric == pytest.approx(12.0)
    assert update.loss == pytest.approx(12.0)


def test_scaler_none_is_for_batch_norm() -> None:
    for task, as_if in ((normed_task(), True), (small_task(), False)):
        updates: dict[bool | None, Update] = {}
        for scaler in (None, True, False):
            executor, levels = sliced(task, WidthSGD(scaler=scaler, norm="tracked"), LADDER)
            updates[scaler] = executor.train([work(task, levels, 1)])[0]
        assert torch.equal(updates[None].values, updates[as_if].values)
        assert not torch.equal(updates[None].values, updates[not as_if].values)
        assert torch.equal(updates[None].buffers, updates[as_if].buffers)
    layer_norm = task_of(
        lambda: nn.Sequential(nn.Linear(1, 6), nn.LayerNorm(6), nn.Linear(6, 1)), torch.ones(4, 1), loss=mean_output
    )
    executor, _ = sliced(layer_norm, WidthSGD(), LADDER)
    assert isinstance(executor.workspace.cutter, SlicedCutter)
    assert not executor.workspace.cutter.scaled


def three_classes(loss: Callable[[Tensor, Tensor], Tensor]) -> Task:
    """The logits are the weights 1, 2, 5; client 0 has the classes 0 and 1, client 1 has 2."""
    targets = torch.tensor([0, 0, 1, 2])
    return task_of(lambda: nn.Linear(1, 3, bias=False), torch.ones(4, 1), targets, loss=loss)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(loss: str) -> tuple[list[float], float]:
    """Gradient and loss of one sample of class 0 whose third logit is set to 0."""
    if loss == "softmax":
        total = math.e + math.e**2 + 1
        return [math.e / total - 1, math.e**2 / total, 0.0], math.log(total) - 1
    gradient = [(sigmoid(1) - 1) / 3, sigmoid(2) / 3, 0.0]
    return gradient, (-math.log(sigmoid(1)) - math.log(1 - sigmoid(2)) + math.log(2)) / 3


@pytest.mark.parametrize("kind", ["softmax", "bce"])
def test_a_class_the_client_lacks_contributes_no_gradient(kind: str) -> None:
    task = three_classes(functional.cross_entropy if kind == "softmax" else bce)
    # The mini-batch is one sample of class 0; class 1 is among the client's samples, class 2 is not.
    order = SampleOrder([np.arange(3), np.array([3])], seed=SEED, batch_size=1)
    number = next(n for n in range(9) if task.train.targets[order.batches(0, n, 1)[0, 0]] == 0)
    gradient, loss = by_hand(kind)
    model = torch.tensor([1.0, 2.0, 5.0])
    executor, levels = sliced(task, WidthSGD(), (1.0,), order=order)
    update = executor.train([work(task, levels, model=model, first_batch=number)])[0]
    assert update.values.tolist() == pytest.approx([w - 0.1 * g for w, g in zip((1, 2, 5), gradient, strict=True)])
    assert update.values[2] == 5.0
    assert update.loss == pytest.approx(loss)
    # The other client has class 2 only: it alone is moved.
    other = executor.train([work(task, levels, model=model, client=1)])[0]
    assert other.values.tolist()[:2] == [1.0, 2.0]
    assert other.values[2] != 5.0
    plain, _ = sliced(task, WidthSGD(masked_loss=False), (1.0,), order=order)
    assert plain.train([work(task, levels, model=model, first_batch=number)])[0].values[2] < 5.0


def test_only_tracked_statistics_come_back_changed() -> None:
    task = normed_task()
    changed = {}
    for norm in ("tracked", "batch"):
        executor, levels = sliced(task, WidthSGD(norm=norm), LADDER, steps=3)  # type: ignore[arg-type]
        job = work(task, levels, 1, buffers=torch.arange(12.0) + 1)
        update = executor.train([job])[0]
        changed[norm] = ~update.buffers.eq(torch.arange(12.0) + 1)
        assert torch.equal(job.buffers, torch.arange(12.0) + 1)
    four = [True] * 4 + [False] * 2
    assert changed["tracked"].tolist() == four + four  # the units of the width
    assert not changed["batch"].any()
    for rule in (ThresholdedSGD(), ThresholdedSGD(norm="tracked")):
        update = masked(task, rule).train([work(task, buffers=torch.arange(12.0) + 1)])[0]
        assert torch.equal(update.buffers, torch.arange(12.0) + 1) == (rule.norm == "batch")


# Batch norm in tests


def norm_task(momentum: float | None = 0.1, **more: Any) -> Task:
    """Batch norm of one number alone; the test's loss is the mean output."""
    return task_of(
        lambda: nn.BatchNorm1d(1, momentum=momentum), torch.tensor([[15.0], [20.0]]), loss=mean_output, **more
    )


MODEL, INITIAL = torch.tensor([2.0, 1.0]), torch.tensor([100.0, 9.0])  # weight and bias; mean and variance
VALIDATION = Samples(torch.tensor([[1.0], [3.0], [5.0], [11.0]]), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_statistics_are_rebuilt_from_validation_inputs(momentum: float | None) -> None:
    task = norm_task(momentum)
    made = Evaluator(task, task.layout(), batch=2, norm="rebuilt", validation=VALIDATION)
    given = INITIAL.clone()
    # Batches (1, 3) and (5, 11): means 2 and 8, variances 2 and 18; their means are 5 and 10.
    expected = 1 + 2 * (17.5 - 5) / math.sqrt(10 + 1e-5)
    for _ in range(2):
        assert made.test(MODEL, INITIAL).loss == pytest.approx(expected, rel=1e-6)
        assert torch.equal(INITIAL, given)
        assert isinstance(made.module, nn.BatchNorm1d)
        assert made.module.momentum == momentum
        assert not made.module.training
        assert made.module.track_running_stats
        # The final model carries the same.
        state = made.state(MODEL, INITIAL)
        assert [state[key].item() for key in ("running_mean", "running_var")] == pytest.approx([5, 10])
    # One batch of four: mean 5, variance (16 + 4 + 0 + 36) / 3.
    one = Evaluator(task, task.layout(), batch=1000, norm="rebuilt", validation=VALIDATION)
    assert one.test(MODEL, INITIAL).loss == pytest.approx(1 + 25 / math.sqrt(56 / 3 + 1e-5), rel=1e-6)


def test_other_norms_use_what_they_say() -> None:
    task = norm_task()
    running = 1 + 2 * (17.5 - 100) / math.sqrt(9 + 1e-5)
    at_batch = 1.0  # the mean of what is normalised by its own mean
    by_width = torch.cat([torch.tensor([0.0, 1.0, 50.0, 50.0]), INITIAL])
    for norm, validation, buffers, expected in (
        ("running", VALIDATION, INITIAL, running),
        ("running", VALIDATION, by_width, running),  # the whole model's block comes last
        ("batch", VALIDATION, INITIAL, at_batch),
        ("rebuilt", None, INITIAL, running),  # nothing to rebuild them from
    ):
        made = Evaluator(task, task.layout(), norm=norm, validation=validation)  # type: ignore[arg-type]
        assert made.test(MODEL, buffers).loss == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_validation_inputs_are_prepared() -> None:
    task = norm_task(prepare=lambda x: x / 10)
    made = Evaluator(task, task.layout(), norm="rebuilt", validation=VALIDATION)
    assert made.test(MODEL, INITIAL).loss == pytest.approx(1 + 2 * (1.75 - 0.5) / math.sqrt(0.56 / 3 + 1e-5), rel=1e-5)


@pytest.mark.parametrize(
    ("outputs", "targets", "dim"),
    [
        ((8, 4), (8,), 1),
        ((8, 6, 50), (8, 6), 2),  # a word at every place
        ((8, 50, 6), (8, 6), 1),  # the same as cross_entropy has it
        ((8, 4, 5, 5), (8, 5, 5), 1),  # a class for every pixel
        ((8, 6, 6), (8, 6), 2),  # both fit: the last
        ((8, 4), (8, 4), 1),  # several labels at once
    ],
)
def test_the_dimension_of_the_classes(outputs: tuple[int, ...], targets: tuple[int, ...], dim: int) -> None:
    assert class_dim(torch.zeros(outputs), torch.zeros(targets)) == dim


def test_absent_classes_of_pixels_are_masked() -> None:
    """Two samples of 2 x 1 pixels, three classes, of which the client has 0 and 2: the logits of class 1 become 0."""
    targets = torch.tensor([[[0], [2]], [[2], [0]]])
    samples = Samples(torch.zeros(2, 1), targets)
    task = Task(name="t", model=lambda: nn.Linear(1, 1), train=samples, test=samples, loss=lambda out, _: out.sum())
    order = SampleOrder([np.arange(2)], seed=0, batch_size=2)
    local = LocalWork(task=task, order=order, rule=WidthSGD(), steps=1, seed=0)
    outputs = torch.arange(12.0).view(2, 3, 2, 1)
    # 66 in all, without 2 + 3 and 8 + 9.
    assert float(local.loss_of(0)(outputs, targets)) == 66 - 22


def test_a_target_that_no_output_belongs_to_is_no_class() -> None:
    task = three_classes(functional.cross_entropy)
    task.train.targets[1] = 255
    local = LocalWork(task=task, order=order_of(task), rule=WidthSGD(), steps=1, seed=0)
    assert local.absent(0, 3).tolist() == [False, False, False]
    assert local.absent(0, 3) is local.absent(0, 3)


def test_classes_cannot_be_left_out_where_there_are_none() -> None:
    task = task_of(lambda: nn.Linear(2, 1), torch.ones(4, 2), torch.ones(4, 1), loss=functional.mse_loss, metric=mae())
    parts = {"task": task, "order": order_of(task), "steps": 1, "seed": 0}
    LocalWork(rule=WidthSGD(masked_loss=False), **parts)
    with pytest.raises(
        ValueError, match=r"^method\.local\.masked_loss is true and the targets of t are no classes: set"
    ):
        LocalWork(rule=WidthSGD(), **parts)


@dataclass(frozen=True, kw_only=True)
class Halved(PlainSGD):
    """Plain SGD whose step is a rule's own."""

    kind: ClassVar[str] = "halved"

    def step(self, workspace: Workspace, inputs: Any, targets: Tensor, level: int) -> Tensor:
        return super().step(workspace, inputs, targets, level) / 2


@dataclass(frozen=True, kw_only=True)
class HalvedInStacks(Halved):
    """The same, which says that stacks do it."""

    kind: ClassVar[str] = "halved_in_stacks"

    @property
    def stacking(self) -> Stacking | None:
        return Stacking()


def test_a_step_of_ones_own_is_not_stacked_unless_the_rule_says_so() -> None:
    assert PlainSGD().stacking == Stacking()
    assert Halved().stacking is None
    assert HalvedInStacks().stacking == Stacking()
