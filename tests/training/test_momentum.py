"""SGD with momentum and weight decay: by hand, as PyTorch has it, inside sub-models, kept from task to task."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.runs import bits, objects
from torch import Tensor, nn

from fedgmr.exchange import ClientTask, Update
from fedgmr.recipe import recipe_from
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.widths import solve_widths, width_levels
from fedgmr.tasks.task import Task
from fedgmr.training.optimizers import SGD
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.rules import OrderedDropout, PlainSGD, ThresholdedSGD
from fedgmr.training.submodel.sliced_cut import SlicedCutter
from fedgmr.training.submodel.workspace import Workspace
from training.test_optimizers import LADDER, flat_after, halves, masked, masked_cutter, net_task
from training.test_rules import CPU, SEED, ones_task, order_of, task_of, work

HEAVY = SGD(momentum=0.9, weight_decay=0.01, keep=True)


def in_a_row(executor: SequentialExecutor, tasks: Sequence[ClientTask]) -> list[Update]:
    """The updates of one client's tasks, each of which begins with the memory of the one before."""
    updates: list[Update] = []
    for task in tasks:
        updates += executor.train([replace(task, memory=updates[-1].memory if updates else None)])
    return updates


def parabola() -> Task:
    """The loss 1.5·w², whose gradient is 3·w."""
    return task_of(lambda: nn.Linear(1, 1, bias=False), torch.ones(4, 1), loss=lambda out, _: 1.5 * out.square().mean())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # 6 + 0.2 at 2; 4.14 + 0.138 + 0.5·6.2 at 1.38.
        (SGD(momentum=0.5, weight_decay=0.1), [1.38, 0.6422]),
        (SGD(momentum=0.5), [1.4, 0.68]),  # 6; 4.2 + 3
        (SGD(weight_decay=0.1), [1.38, 0.9522]),  # 6.2; 4.278
    ],
)
def test_two_steps_by_hand(settings: SGD, expected: list[float]) -> None:
    task = parabola()
    start = work(task, model=torch.tensor([2.0]))
    ends = [masked(task, PlainSGD(), settings, steps=steps).train([start])[0].values.item() for steps in (1, 2)]
    assert ends == pytest.approx(expected, abs=1e-6)


def test_the_second_task_goes_on_with_the_first_ones_momentum() -> None:
    # The memory is 7.378 (above); at 2 again: 6.2 + 3.689 = 9.889, then 0.1·9.889 less.
    task, settings = parabola(), SGD(momentum=0.5, weight_decay=0.1, keep=True)
    start = work(task, model=torch.tensor([2.0]))
    two = masked(task, PlainSGD(), settings, steps=2).train([start])[0]
    assert two.memory is not None
    assert two.memory.tolist() == pytest.approx([7.378], abs=1e-6)
    one = masked(task, PlainSGD(), settings).train([replace(start, memory=two.memory)])[0]
    assert one.values.tolist() == pytest.approx([2 - 0.9889], abs=1e-6)
    assert two.memory.tolist() == pytest.approx([7.378], abs=1e-6), "a task changes only a copy"


@pytest.mark.parametrize("settings", [SGD(momentum=0.9, keep=True), HEAVY, SGD(momentum=0.3, keep=True)])
def test_tasks_in_a_row_are_what_pytorch_makes_of_them(settings: SGD) -> None:
    task, model = net_task(), net_task().initial_model(SEED)
    theirs = torch.optim.SGD(
        model.parameters(), lr=0.02, momentum=settings.momentum, weight_decay=settings.weight_decay, foreach=False
    )
    executor, memory = masked(task, PlainSGD(), settings, steps=7, batch=10), None
    for first in (0, 7, 14):
        start = work(task, learning_rate=0.02, first_batch=first, model=task.layout().flatten(model), memory=memory)
        update = executor.train([start])[0]
        for chosen in order_of(task, 10).batches(0, first, 7):
            theirs.zero_grad()
            task.loss(model(task.train.inputs[chosen]), task.train.targets[chosen]).backward()
            theirs.step()
        assert torch.allclose(update.values, task.layout().flatten(model), rtol=0, atol=1e-6)
        memory = update.memory


def test_what_is_not_kept_is_forgotten() -> None:
    task = net_task()
    executor = masked(task, PlainSGD(), SGD(momentum=0.9, weight_decay=0.01), steps=4, batch=10)
    first = executor.train([work(task)])[0]
    assert first.memory is None
    executor.train([work(task, first_batch=4)])
    assert bits(executor.train([work(task)])[0].values) == bits(first.values)
    assert masked(task, PlainSGD(), SGD(weight_decay=0.01)).train([work(task)])[0].memory is None


def test_plain_steps_stay_plain() -> None:
    assert SGD().plain
    assert SGD().memory == "none"
    assert not SGD(weight_decay=0.1).plain
    assert SGD(weight_decay=0.1).memory == "none"
    assert [SGD(momentum=0.5).memory, SGD(momentum=0.5, keep=True).memory] == ["velocity", "kept"]


def test_a_coordinate_that_leaves_the_sub_model_loses_its_momentum() -> None:
    task = net_task()
    size = task.layout().size
    even, odd = halves(size), LevelMap(((torch.arange(size) + 1) % 2).to(torch.uint8), (0.5, 1.0))
    jobs = [
        work(task, levels, level, map_version=version)
        for version, levels, level in ((0, even, 1), (0, even, 0), (1, odd, 0), (0, even, 1))
    ]
    executor = masked(task, PlainSGD(), HEAVY, steps=3, batch=10)
    whole, first, second, last = (update.memory for update in in_a_row(executor, jobs))
    assert whole is not None
    assert first is not None
    assert second is not None
    assert last is not None
    assert (whole != 0).float().mean() > 0.9
    assert bits(first[1::2]) == bits(torch.zeros(size // 2))
    assert (first[::2] != 0).any()
    assert bits(second[::2]) == bits(torch.zeros(len(second[::2])))
    # Now all are back: even coordinates start from zero, the odd ones do not.
    only_odd, none = (
        executor.train([replace(jobs[3], memory=memory)])[0].memory for memory in (second, torch.zeros(size))
    )
    assert only_odd is not None
    assert none is not None
    assert bits(last) == bits(only_odd)
    assert not torch.equal(only_odd, none)


def test_what_is_outside_the_sub_model_stays_exactly_zero() -> None:
    task = net_task()
    job = work(task, halves(task.layout().size), memory=torch.ones(task.layout().size))
    workspace = Workspace(masked_cutter(task), HEAVY)
    flat = flat_after(workspace, task, job, [0] * 5)
    assert bits(flat[1::2]) == bits(torch.zeros(len(flat) // 2))
    memory = workspace.memory()
    assert memory is not None
    assert bits(memory[1::2]) == bits(torch.zeros(len(flat) // 2))


def reference(
    task: Task, levels: LevelMap, drawn: Sequence[int], settings: SGD, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """Levels in turn, spelt out: masks, and a velocity that only the coordinates inside have a part in."""
    layout = task.layout()
    values, velocity = layout.flatten(task.initial_model(SEED)), memory
    for level, chosen in zip(drawn, order_of(task, 10).batches(0, 0, len(drawn)), strict=True):
        inside = levels.levels <= level
        model = task.initial_model(SEED)
        layout.bind(model, values * inside, torch.empty(0))
        gradients = torch.autograd.grad(
            task.loss(model(task.train.inputs[chosen]), task.train.targets[chosen]), list(model.parameters())
        )
        gradient = torch.cat([part.reshape(-1) for part in gradients]) + settings.weight_decay * values
        velocity = torch.where(inside, settings.momentum * velocity + gradient, velocity)
        values = torch.where(inside, values - 0.1 * velocity, values)
    return values, velocity


def test_momentum_belongs_to_coordinates_when_levels_change() -> None:
    task = net_task()
    model, layout = task.initial_model(SEED), task.layout()
    plan = follow_channels(model, task.train.inputs[:2])
    levels = width_levels(plan, layout, solve_widths(plan, layout, LADDER), ladder=LADDER)
    drawn, memory = [2, 0, 1, 1, 2, 0, 2], torch.linspace(-0.3, 0.3, layout.size)
    expected, kept = reference(task, levels, drawn, HEAVY, memory)
    job = work(task, levels, 2, memory=memory)
    small = Workspace(SlicedCutter(model, layout, plan, LADDER, CPU, per_width=OrderedDropout.per_width), HEAVY)
    for workspace in (small, Workspace(masked_cutter(task), HEAVY)):
        assert torch.allclose(flat_after(workspace, task, job, drawn), expected, rtol=0, atol=1e-5)
        found = workspace.memory()
        assert found is not None
        assert torch.allclose(found, kept, rtol=0, atol=1e-5)
    assert not torch.allclose(reference(task, levels, [2] * 7, HEAVY, memory)[0], expected, rtol=0, atol=1e-2)


def test_a_weight_below_the_threshold_still_moves_by_its_momentum() -> None:
    # Theta 0.1, gradient 1: 0.1 goes to 0.07, below theta; then its gradient is 0 and its velocity 0.5.
    task = ones_task(2)
    job = work(task, model=torch.tensor([0.3, 0.1]), learning_rate=0.03)
    rule, settings = ThresholdedSGD(derivative=False), SGD(momentum=0.5)
    values = masked(task, rule, settings, steps=2).train([job])[0].values
    assert values.tolist() == pytest.approx([0.3 - 0.03 - 0.045, 0.1 - 0.03 - 0.015])


@pytest.mark.parametrize("method", ["fedgmr", "fjord", "fedrolex"])
def test_threads_and_sparse_layers_hand_back_the_same_memory(method: str) -> None:
    sections: dict[str, Any] = {
        "training": {"learning_rate": 0.05, "batch_size": 10, "steps": 3, "optimizer": _plain(HEAVY)},
    }
    memories = []
    for execution in ({"executor": "sequential", "sparse": 0.0}, {"executor": "threaded", "sparse": 1.0}):
        run = objects(tiny.wide(), method, execution={"sparse_from": 1, **execution}, **sections)
        tasks = run.server.tasks(range(5), 0.0)
        for task, update in zip(tasks, run.fleet.executor.train(tasks), strict=True):
            assert update.memory is not None
            assert torch.equal(update.memory != 0, (update.memory != 0) & task.levels.mask(task.level))
            memories.append(update.memory)
    for one, other in zip(memories[:5], memories[5:], strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-5)
        assert float(one.abs().max()) > 1e-3


def _plain(settings: SGD) -> dict[str, Any]:
    return {
        "kind": "sgd",
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "keep": settings.keep,
    }


def test_in_a_recipe() -> None:
    base: dict[str, Any] = {"seconds": 60.0, "task": "mnist5k", "method": "fjord"}
    word = "training.optimizer={kind: sgd, momentum: 0.9, weight_decay: 1.0e-4, keep: true}"
    assert recipe_from(base, [word]).training.optimizer == SGD(momentum=0.9, weight_decay=1e-4, keep=True)
    with pytest.raises(ValueError, match=r"training\.optimizer\.momentum is 1\.0: give a number"):
        recipe_from(base, ["training.optimizer.momentum=1.0"])
    with pytest.raises(ValueError, match=r"keep is true and momentum is 0: there is nothing to keep"):
        recipe_from(base, ["training.optimizer.keep=true"])
    with pytest.raises(ValueError, match=r"training\.optimizer is sgd and .*distillation is true: .* plain sgd only"):
        recipe_from(base, ["training.optimizer.momentum=0.5", "method.local.distillation=true"])
