"""Masked = physically sliced, through local training: the same updates from a small network as from a masked one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from submodels.channels.test_slicing import narrow_conv2, small_resnet, small_vgg
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgmr.exchange import ClientTask, Update
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import RankingInputs
from fedgmr.submodels.widths import RollingWindow, WidthPrefix, solve_widths, width_levels
from fedgmr.tasks.partition import SampleOrder
from fedgmr.tasks.task import Task
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.rules import LocalRule, OrderedDropout, PlainSGD, WidthSGD
from fedgmr.training.submodel.cut import MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.sliced_cut import SlicedCutter
from fedgmr.training.submodel.workspace import Workspace
from fedgmr.training.work import LocalWork

SEED, STEPS, BATCH, CLASSES = 5, 10, 6, 5
LADDER = (0.15, 0.5, 1.0)
CPU = torch.device("cpu")
IMAGES = (48, 3, 8, 8)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}
PLAIN = WidthSGD(scaler=False, masked_loss=False, norm="tracked")


def task_of(model: Callable[[], nn.Module], dtype: torch.dtype = torch.float64, inputs: Tensor | None = None) -> Task:
    if inputs is None:
        drawn = np.random.default_rng(1).standard_normal(IMAGES)
        inputs = torch.from_numpy(drawn).to(dtype)
    samples = (inputs, torch.arange(len(inputs)) % CLASSES)
    return Task(name="t", model=lambda: model().to(dtype), train=samples, test=samples)


def level_map(task: Task, shift: int | None, ladder: Sequence[float] = LADDER) -> LevelMap:
    """What the width rankings make of the model; a shift of None is the prefix."""
    model = task.initial_model(SEED)
    inputs = RankingInputs(
        layout=task.layout(),
        ladder=tuple(ladder),
        model=task.layout().flatten(model),
        tick=9 if shift is None else shift,
        plan=follow_channels(model, task.train.inputs[:2]),
    )
    return (WidthPrefix() if shift is None else RollingWindow()).rank(inputs)


def work(task: Task, levels: LevelMap, level: int, **more: Any) -> ClientTask:
    # Not the model that the workspaces are made with, so that all values have to come from the task.
    layout, model = task.layout(), task.initial_model(SEED + 1)
    fields = {
        "client": 1,
        "version": 3,
        "level": level,
        "levels": levels,
        "map_version": 0,
        "model": layout.flatten(model),
        "buffers": layout.flatten_buffers(model),
        "learning_rate": 0.1,
        "first_batch": 2,
    }
    return ClientTask(**(fields | more))


def order_of(task: Task) -> SampleOrder:
    half = len(task.train.inputs) // 2
    return SampleOrder([np.arange(half), np.arange(half, 2 * half)], seed=SEED, batch_size=BATCH)


def executor_of(
    task: Task,
    workspace: Workspace,
    *,
    rule: LocalRule = PLAIN,
    steps: int = STEPS,
    held_out: list[np.ndarray] | None = None,
) -> SequentialExecutor:
    local = LocalWork(task=task, order=order_of(task), rule=rule, steps=steps, seed=SEED, held_out=held_out)
    return SequentialExecutor(local, workspace)


def sliced(
    task: Task, rule: LocalRule = PLAIN, ladder: Sequence[float] = LADDER, model: nn.Module | None = None
) -> Workspace:
    """A workspace with small modules, cut from `model`."""
    model = task.initial_model(SEED) if model is None else model
    plan = follow_channels(model, task.train.inputs[:2])
    return Workspace(
        SlicedCutter(model, task.layout(), plan, tuple(ladder), CPU, scaler=rule.scaler, per_width=rule.per_width)
    )


def masked(task: Task) -> Workspace:
    """A workspace with one full-size module."""
    return Workspace(MaskedCutter(FlatModule(task.initial_model(SEED), task.layout(), CPU)))


def apart(one: Update, other: Update) -> float:
    """The largest difference in values or loss."""
    return max(float((one.values - other.values).abs().max()), abs(one.loss - other.loss))


def same(one: Update, other: Update) -> bool:
    return (
        torch.equal(one.values, other.values)
        and torch.equal(one.buffers, other.buffers)
        and (one.loss, one.report) == (other.loss, other.report)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("shift", [None, 0, 1, 3, 101])
@pytest.mark.parametrize("build", [narrow_conv2, small_vgg, small_resnet])
def test_masked_is_sliced(build: Callable[[], nn.Module], shift: int | None, dtype: torch.dtype) -> None:
    task = task_of(build, dtype)
    levels = level_map(task, shift)
    workspace = masked(task)
    assert isinstance(workspace.cutter, MaskedCutter)
    whole, small = executor_of(task, workspace), executor_of(task, sliced(task))
    for level in range(3):
        job = work(task, levels, level)
        wanted, found = whole.train([job])[0], small.train([job])[0]
        assert apart(wanted, found) < TOLERANCE[dtype]
        # Level order: unpacked, the update is the masked model's very vector.
        flat = levels.spread(found.values, torch.zeros_like(job.model))
        assert float((flat - workspace.cutter.module.flat).abs().max()) < TOLERANCE[dtype]
        assert found.values.shape == (levels.sizes[level],)
        start = levels.pack(job.model, level)
        assert float((found.values - start).abs().max()) > 1e-3, "it has learned something"


def test_the_comparison_notices_another_order() -> None:
    """Values in the order of the coordinates would pass where that is level order: here it is not."""
    task = task_of(narrow_conv2)
    for shift in (None, 3):
        levels = level_map(task, shift)
        update = executor_of(task, sliced(task)).train([work(task, levels, 2)])[0]
        natural = levels.spread(update.values, update.values)
        assert float((natural - update.values).abs().max()) > 0.01


def running_statistics(task: Task, levels: LevelMap, level: int) -> tuple[Update, Update, Tensor]:
    """Updates of both workspaces, and which statistics are of kept channels."""
    job = work(task, levels, level)
    wanted = executor_of(task, masked(task)).train([job])[0]
    found = executor_of(task, sliced(task)).train([job])[0]
    kept = torch.zeros_like(job.buffers, dtype=torch.bool)
    places = {place.name: place for place in task.layout().parameters}
    for place in task.layout().buffers:
        weight = places[place.name.rpartition(".")[0] + ".weight"]
        kept[place.start : place.stop] = levels.mask(level)[weight.start : weight.stop]
    return wanted, found, kept


@pytest.mark.parametrize("level", [0, 1, 2])
def test_running_statistics_of_the_kept_channels(level: int) -> None:
    task = task_of(small_resnet)
    levels = level_map(task, None)
    wanted, found, kept = running_statistics(task, levels, level)
    assert torch.allclose(found.buffers[kept], wanted.buffers[kept], rtol=0, atol=1e-10)
    assert torch.equal(found.buffers[~kept], work(task, levels, level).buffers[~kept]), "the others stay as sent"
    assert bool(kept.all()) == (level == 2)


def test_level_0_keeps_a_channel_of_every_layer() -> None:
    levels = level_map(task_of(small_resnet), None, (0.001, 1.0))
    task = task_of(small_resnet)
    workspace = sliced(task, ladder=(0.001, 1.0))
    assert (
        apart(
            executor_of(task, masked(task)).train([work(task, levels, 0)])[0],
            executor_of(task, workspace).train([work(task, levels, 0)])[0],
        )
        < TOLERANCE[torch.float64]
    )
    assert all(1 in place.shape for place in workspace.open().cut.module.layout.parameters if place.shape[0] != CLASSES)


def test_changing_widths_is_the_same_in_both_workspaces() -> None:
    """FjORD's rule goes up and down between mini-batches; there are no statistics in this net."""
    task = task_of(small_vgg)
    levels, rule = level_map(task, None), OrderedDropout(distillation=True)
    for level in range(3):
        # A single step too: where it trains another level than the task's, the values are to be put together.
        for steps, first in ((1, 4), (1, 5), (1, 6), (1, 7), (STEPS, 4)):
            job = work(task, levels, level, first_batch=first)
            wanted, found = (
                executor_of(task, place, rule=replace(rule, distillation=steps > 1), steps=steps).train([job])[0]
                for place in (masked(task), sliced(task, rule))
            )
            assert apart(wanted, found) < TOLERANCE[torch.float64]
            assert wanted.values.shape == found.values.shape == (levels.sizes[level],)
        job = work(task, levels, level, first_batch=4)
        whole = executor_of(task, sliced(task)).train([job])[0]
        assert (apart(whole, found) > 1e-4) == (level > 0)


def counted() -> nn.Module:
    """Batch norm that counts its batches, and dropout."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6, momentum=None), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(6, CLASSES)),
    )


def per_width(task: Task) -> Tensor:
    model = task.initial_model(SEED)
    return task.layout().flatten_buffers(model).repeat(len(LADDER))


@pytest.mark.parametrize("rule", [PLAIN, WidthSGD(), OrderedDropout(), OrderedDropout(distillation=True)])
def test_an_update_does_not_depend_on_the_tasks_trained_before(rule: LocalRule) -> None:
    task = task_of(counted)
    buffers = per_width(task) if rule.per_width else work(task, level_map(task, None), 0).buffers
    first, second = level_map(task, None), level_map(task, 0 if rule.per_width else 4)
    jobs = [
        work(task, first, 0, buffers=buffers),
        work(task, first, 1, client=0, first_batch=7, buffers=buffers + 1),
        work(task, second, 0, map_version=1, learning_rate=0.2, buffers=buffers),
        work(task, second, 2, map_version=1, client=0, buffers=buffers),
        work(task, first, 2, first_batch=0, buffers=buffers),
    ]
    held_out = [np.arange(4), np.arange(24, 30)]

    def fresh() -> SequentialExecutor:
        return executor_of(task, sliced(task, rule), rule=rule, steps=5, held_out=held_out)

    alone = [fresh().train([job])[0] for job in jobs]
    executor = fresh()
    for indices in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [2, 2, 0, 0]):
        together = executor.train([jobs[i] for i in indices])
        assert [same(update, alone[i]) for update, i in zip(together, indices, strict=True)] == [True] * len(indices)
    # An update is a copy: nothing of it moves with what is trained later.
    kept = alone[0].values.clone()
    executor = fresh()
    update = executor.train([jobs[0]])[0]
    executor.train([jobs[3]])
    assert torch.equal(update.values, kept)


def test_the_task_and_the_model_are_left_alone() -> None:
    task = task_of(counted)
    model = task.initial_model(SEED)
    job = work(task, level_map(task, None), 1)
    before = (job.model.clone(), job.buffers.clone(), task.layout().flatten(model))
    executor_of(task, sliced(task, model=model)).train([job])
    after = (job.model, job.buffers, task.layout().flatten(model))
    assert all(map(torch.equal, before, after))


def test_a_small_network_is_small() -> None:
    """What is trained has the size of the sub-model: no hidden cost in the coordinates outside."""
    task = task_of(narrow_conv2)
    workspace, levels = sliced(task), level_map(task, 3)
    executor_of(task, workspace, steps=1).train([work(task, levels, 0)])
    sub = workspace.open()
    assert sum(p.numel() for p in sub.module.parameters()) == len(sub.flat) == levels.sizes[0]
    assert len(sub.flat) < 0.2 * len(levels)


class Transformer(nn.Module):
    """One pre-norm block; its parts can be left out."""

    def __init__(self, channels: int, inner: int, *, norms: bool = True, attention: bool = True) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(CLASSES, channels), nn.Parameter(torch.randn(6, channels))
        self.attend = nn.MultiheadAttention(channels, 2, batch_first=True) if attention else None
        self.first = nn.LayerNorm(channels) if norms and attention else nn.Identity()
        self.second = nn.LayerNorm(channels) if norms else nn.Identity()
        self.feed = nn.Sequential(nn.Linear(channels, inner), nn.GELU(), nn.Linear(inner, channels))
        self.classify = nn.Linear(channels, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions
        if self.attend is not None:
            normed = self.first(x)
            x = x + self.attend(normed, normed, normed, need_weights=False)[0]
        return self.classify(x + self.feed(self.second(x))).mean(1)


def plain_loop(module: nn.Module, task: Task, job: ClientTask) -> tuple[Tensor, float]:
    """SGD as a textbook has it, on the whole of `module`: its flat parameters and the mean loss."""
    losses = []
    for batch in order_of(task).batches(job.client, job.first_batch, STEPS):
        module.zero_grad()
        loss = cross_entropy(module(task.train.inputs[batch]), task.train.targets[batch])
        loss.backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= job.learning_rate * parameter.grad
        losses.append(loss.item())
    return nn.utils.parameters_to_vector(module.parameters()).detach(), float(np.mean(losses))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(("norms", "attention"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_sliced_transformer_is_the_small_transformer(norms: bool, attention: bool, shift: int) -> None:
    """Half of 8 channels in 2 heads is a network of 4 channels in 2 heads, written by hand.

    A masked one is another network if it has layer norms, which average over the zeros too, or attention, which divides
    by the root of the whole head dimension.
    """
    tokens = torch.from_numpy(np.random.default_rng(2).integers(0, CLASSES, (48, 6)))
    task = task_of(lambda: Transformer(8, 12, norms=norms, attention=attention), inputs=tokens)
    plan, layout = follow_channels(task.initial_model(SEED), tokens[:2]), task.layout()
    ladder = width_levels(plan, layout, (0.5, 1.0)).ladder
    assert solve_widths(plan, layout, ladder) == (0.5, 1.0)
    levels = width_levels(plan, layout, (0.5, 1.0), shift)
    job = work(task, levels, 0, learning_rate=0.3)

    small = Transformer(4, 6, norms=norms, attention=attention).double()
    assert sum(p.numel() for p in small.parameters()) == levels.sizes[0]
    nn.utils.vector_to_parameters(job.model[levels.mask(0)], small.parameters())
    flat, loss = plain_loop(small, task, job)

    found = executor_of(task, sliced(task, ladder=ladder)).train([job])[0]
    assert torch.allclose(found.values, flat, rtol=0, atol=1e-10)  # one level: natural order
    assert found.loss == pytest.approx(loss, abs=1e-10)
    other = executor_of(task, masked(task)).train([job])[0]
    if norms or attention:
        assert apart(other, found) > 1e-4
    else:
        assert apart(other, found) < 1e-10


def test_plain_sgd_with_its_proximal_term_works_on_small_networks() -> None:
    task, rule = task_of(narrow_conv2), PlainSGD(proximal=2.0)
    job = work(task, level_map(task, None), 1)
    wanted = executor_of(task, masked(task), rule=rule).train([job])[0]
    found = executor_of(task, sliced(task, rule), rule=rule).train([job])[0]
    assert apart(wanted, found) < TOLERANCE[torch.float64]
    without = executor_of(task, sliced(task)).train([job])[0]
    assert apart(without, found) > 1e-3


def test_frozen_parameters_stay_out() -> None:
    def build() -> nn.Module:
        model = narrow_conv2()
        model.get_parameter("0.weight").requires_grad_(False)
        return model

    task = task_of(build)
    levels = level_map(task, None)
    whole, small = executor_of(task, masked(task)), executor_of(task, sliced(task))
    for level in range(3):
        job = work(task, levels, level)
        assert apart(whole.train([job])[0], small.train([job])[0]) < TOLERANCE[torch.float64]
