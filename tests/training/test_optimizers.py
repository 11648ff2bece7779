"""Optimisers: Adam by hand and as PyTorch has it, inside sub-models, fresh in every task, with every local rule."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.runs import bits, drive, objects
from torch import Tensor, nn

from fedgmr.methods import BUILT_IN
from fedgmr.recipe import recipe_from
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.widths import solve_widths, width_levels
from fedgmr.tasks.task import Task
from fedgmr.training.graphed.memory import StaticWorkspace
from fedgmr.training.optimizers import SGD, Adam, Optimizer
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.rules import LocalRule, OrderedDropout, PlainSGD, ThresholdedSGD
from fedgmr.training.submodel.cut import Cut, MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.sliced_cut import SlicedCutter
from fedgmr.training.submodel.workspace import SubModel, Workspace
from fedgmr.training.work import LocalWork
from training.test_rules import CPU, SEED, ones_task, order_of, task_of, work

GENTLE = Adam(eps=1e-3)  # so that rounding in tiny gradients does not turn into whole steps
LADDER = (0.25, 0.5, 1.0)


def masked_cutter(task: Task, device: torch.device = CPU) -> MaskedCutter:
    return MaskedCutter(FlatModule(task.initial_model(SEED), task.layout(), device))


def masked(
    task: Task,
    rule: LocalRule,
    optimizer: Optimizer,
    *,
    steps: int = 1,
    batch: int | None = None,
    workspace: Workspace | None = None,
) -> SequentialExecutor:
    local = LocalWork(task=task, order=order_of(task, batch), rule=rule, steps=steps, seed=SEED)
    return SequentialExecutor(local, workspace or Workspace(masked_cutter(task), optimizer))


def net_task() -> Task:
    draws = torch.Generator().manual_seed(3)
    inputs, targets = torch.randn(40, 6, generator=draws), torch.randint(3, (40,), generator=draws)
    return task_of(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), inputs, targets)


def halves(size: int) -> LevelMap:
    """Every other coordinate at level 0."""
    return LevelMap((torch.arange(size) % 2).to(torch.uint8), (0.5, 1.0))


def test_two_steps_by_hand() -> None:
    # The loss 1.5·w² has the gradient 3·w: 6 at 2, then 5.7 at 1.9.
    first, second = 6.0, 5.7
    task = task_of(lambda: nn.Linear(1, 1, bias=False), torch.ones(4, 1), loss=lambda out, _: 1.5 * out.square().mean())
    start = work(task, model=torch.tensor([2.0]))
    one = masked(task, PlainSGD(), Adam(eps=1e-8)).train([start])[0].values
    assert one.tolist() == pytest.approx([1.9])  # a first step is as long as the rate, whatever the gradient
    mean = 0.9 * 0.1 * first + 0.1 * second
    square = 0.999 * 0.001 * first**2 + 0.001 * second**2
    expected = 1.9 - 0.1 * (mean / (1 - 0.9**2)) / ((square / (1 - 0.999**2)) ** 0.5 + 1e-8)
    two = masked(task, PlainSGD(), Adam(eps=1e-8), steps=2).train([start])[0].values
    assert two.tolist() == pytest.approx([expected], abs=1e-6)


@pytest.mark.parametrize("settings", [Adam(), Adam(beta1=0.5, beta2=0.9, eps=1e-4), Adam(beta1=0.0)])
def test_a_task_is_what_pytorchs_adam_makes_of_it(settings: Adam) -> None:
    task = net_task()
    start = work(task, learning_rate=0.01)
    update = masked(task, PlainSGD(), settings, steps=7, batch=10).train([start])[0]
    model = task.initial_model(SEED)
    theirs = torch.optim.Adam(
        model.parameters(), lr=0.01, betas=(settings.beta1, settings.beta2), eps=settings.eps, foreach=False
    )
    for chosen in order_of(task, 10).batches(0, 0, 7):
        theirs.zero_grad()
        task.loss(model(task.train.inputs[chosen]), task.train.targets[chosen]).backward()
        theirs.step()
    assert torch.allclose(update.values, task.layout().flatten(model), rtol=0, atol=1e-6)


def test_every_task_starts_afresh() -> None:
    task = net_task()
    executor = masked(task, PlainSGD(), Adam(), steps=4, batch=10)
    first = executor.train([work(task)])[0]
    executor.train([work(task, client=0, first_batch=4)])
    assert bits(executor.train([work(task)])[0].values) == bits(first.values)


def flat_after(workspace: Workspace, task: Task, job: Any, levels: Sequence[int], batch: int = 10) -> Tensor:
    """The module's vector after one step at each of the levels, on the client's mini-batches in turn."""
    workspace.begin(job, task.loss)
    for level, chosen in zip(levels, order_of(task, batch).batches(0, 0, len(levels)), strict=True):
        sub = workspace.open(level)
        sub.descend(sub.gradients(sub.loss(sub.module(task.train.inputs[chosen]), task.train.targets[chosen])))
    return workspace.open().flat


def test_what_is_outside_the_sub_model_stays_exactly_zero() -> None:
    task = net_task()
    levels = halves(task.layout().size)
    flat = flat_after(Workspace(masked_cutter(task), Adam()), task, work(task, levels), [0] * 5)
    assert bits(flat[1::2]) == bits(torch.zeros(len(flat) // 2))
    assert (flat[::2] != work(task).model[::2]).float().mean() > 0.6  # half of the hidden units lead nowhere


def reference(task: Task, levels: LevelMap, drawn: Sequence[int], settings: Adam) -> Tensor:
    """Levels in turn, spelt out: masks, and moments that only the coordinates inside have a part in."""
    layout = task.layout()
    values = layout.flatten(task.initial_model(SEED))
    mean, square = torch.zeros_like(values), torch.zeros_like(values)
    for taken, (level, chosen) in enumerate(zip(drawn, order_of(task, 10).batches(0, 0, len(drawn)), strict=True), 1):
        inside = levels.levels <= level
        model = task.initial_model(SEED)
        layout.bind(model, values * inside, torch.empty(0))
        gradients = torch.autograd.grad(
            task.loss(model(task.train.inputs[chosen]), task.train.targets[chosen]), list(model.parameters())
        )
        gradient = torch.cat([part.reshape(-1) for part in gradients])
        mean = torch.where(inside, settings.beta1 * mean + (1 - settings.beta1) * gradient, mean)
        square = torch.where(inside, settings.beta2 * square + (1 - settings.beta2) * gradient**2, square)
        root = (square / (1 - settings.beta2**taken)).sqrt() + settings.eps
        values = torch.where(inside, values - 0.1 * mean / (1 - settings.beta1**taken) / root, values)
    return values


def test_moments_belong_to_coordinates_when_levels_change() -> None:
    task = net_task()
    model, layout = task.initial_model(SEED), task.layout()
    plan = follow_channels(model, task.train.inputs[:2])
    levels = width_levels(plan, layout, solve_widths(plan, layout, LADDER), ladder=LADDER)
    drawn = [2, 0, 1, 1, 2, 0, 2]
    expected = reference(task, levels, drawn, GENTLE)
    job = work(task, levels, 2)
    small = Workspace(SlicedCutter(model, layout, plan, LADDER, CPU, per_width=OrderedDropout.per_width), GENTLE)
    assert torch.allclose(flat_after(small, task, job, drawn), expected, rtol=0, atol=1e-5)
    large = Workspace(masked_cutter(task), GENTLE)
    assert torch.allclose(flat_after(large, task, job, drawn), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(reference(task, levels, [2] * 7, GENTLE), expected, rtol=0, atol=1e-2)


def test_the_rate_may_be_a_tensor() -> None:
    # In memory that stays the rate is a tensor, and for plain SGD one rate per weight.
    task = net_task()
    job = work(task, learning_rate=0.05)
    for optimizer in (SGD(), GENTLE):
        static = StaticWorkspace(masked_cutter(task), optimizer, needs_mask=False, fused=False)
        number, tensor = (
            masked(task, PlainSGD(), optimizer, steps=3, batch=10, workspace=workspace).train([job])[0].values
            for workspace in (None, static)
        )
        assert isinstance(static.opened.learning_rate, Tensor)
        assert (static.opened.rates is not None) == optimizer.plain
        assert torch.allclose(number, tensor, rtol=0, atol=1e-6)


def test_parameters_may_lie_channels_last() -> None:
    # A convolution's weight whose vector has the channels innermost, and a bias behind it; every gradient differs.
    shape = (4, 3, 2, 2)
    convolution = nn.Conv2d(3, 4, 2)
    module = FlatModule(convolution, Layout.of(convolution), CPU, channels_last=True)
    vector = module.flat.copy_(torch.linspace(-1, 1, 52))
    weight, bias = vector[:48].view(4, 2, 2, 3).permute(0, 3, 1, 2), vector[48:]
    gradients = [torch.arange(48.0).view(shape).sin(), torch.arange(4.0).cos()]
    expected = [
        weight - 0.1 * gradients[0].sign(),
        bias - 0.1 * gradients[1].sign(),
    ]  # a first step: as long as the rate
    sub = SubModel(
        cut=Cut(module=module, levels=LevelMap.full(52), level=0, coordinates=module.order),
        learning_rate=0.1,
        loss=nn.functional.cross_entropy,
        descent=Adam(eps=1e-12).begin(vector),
        outside=None,
    )
    assert torch.equal(sub.parameters[0], weight)
    assert torch.equal(sub.parameters[1], bias)
    assert not sub.parameters[0].is_contiguous()
    gradients[0][0, 0, 0, 0] = 1.0  # sin 0 has no sign
    expected[0][0, 0, 0, 0] = weight[0, 0, 0, 0] - 0.1
    sub.descend(gradients)
    assert torch.allclose(weight, expected[0], rtol=0, atol=1e-6)
    assert torch.allclose(bias, expected[1], rtol=0, atol=1e-6)


def test_nothing_looks_at_a_value() -> None:
    # Tensors without values: whatever reads one of them raises.
    for optimizer in (SGD(), Adam()):
        task = net_task()
        workspace = Workspace(masked_cutter(task, torch.device("meta")), optimizer)
        levels = halves(task.layout().size)
        job = work(task, LevelMap(levels.levels, levels.ladder), model=torch.empty(task.layout().size, device="meta"))
        workspace.begin(job, task.loss)
        sub = workspace.open(1)
        sub.descend([torch.empty_like(parameter) for parameter in sub.parameters])
        sub.descend([torch.empty_like(parameter) for parameter in sub.parameters])


def test_a_weight_below_the_threshold_still_moves_by_its_mean() -> None:
    # Theta 0.1 and a rate of 0.03: 0.1 goes to 0.07, below theta; its gradient is 0 from there on, its mean is not.
    task = ones_task(2)
    job = work(task, model=torch.tensor([0.3, 0.1]), learning_rate=0.03)
    rule = ThresholdedSGD(derivative=False)
    assert masked(task, rule, Adam()).train([job])[0].values.tolist() == pytest.approx([0.27, 0.07])
    # Mean 0.09 / 0.19, square 0.000999 / 0.001999.
    step = 0.03 * (0.09 / 0.19) / (0.000999 / 0.001999) ** 0.5
    assert masked(task, rule, Adam(), steps=2).train([job])[0].values.tolist() == pytest.approx([0.24, 0.07 - step])


def test_in_a_recipe() -> None:
    base: dict[str, Any] = {"seconds": 60.0, "task": "mnist5k", "method": "fedgmr"}
    assert recipe_from(base).training.optimizer == SGD()
    assert recipe_from(base, ["training.optimizer=adam"]).training.optimizer == Adam(beta1=0.9, beta2=0.999, eps=1e-8)
    assert recipe_from(base, ["training.optimizer={kind: adam, beta1: 0.8}"]).training.optimizer == Adam(beta1=0.8)
    with pytest.raises(ValueError, match=r"training\.optimizer\.beta2 is 1\.0: give a number"):
        recipe_from(base, ["training.optimizer={kind: adam, beta2: 1.0}"])
    with pytest.raises(ValueError, match=r"training\.optimizer is 'adan': give one of the kinds sgd, adam"):
        recipe_from(base, ["training.optimizer=adan"])


def test_distillation_needs_plain_steps() -> None:
    base: dict[str, Any] = {"seconds": 60.0, "task": "mnist5k", "method": "fjord"}
    recipe_from(base, ["method.local.distillation=true"])
    recipe_from(base, ["training.optimizer=adam"])
    with pytest.raises(ValueError, match=r"training\.optimizer is adam and method\.local\.distillation is true: .*sgd"):
        recipe_from(base, ["training.optimizer=adam", "method.local.distillation=true"])


@pytest.mark.parametrize("method", [*BUILT_IN, "fjord+aux+gmr"])
def test_every_method_learns_with_adam(method: str) -> None:
    run = objects(
        tiny.normed(),
        method,
        training={"learning_rate": 0.02, "batch_size": 10, "steps": 3, "optimizer": "adam"},
        seconds=2000.0 if method in ("fedavg", "fedgmr_without_asynchrony") else 400.0,
    )
    scores = [moment.score[0] for moment in drive(run)]
    assert max(scores) > scores[0] + 0.2
