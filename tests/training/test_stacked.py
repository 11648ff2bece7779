"""Stacks of clients against the plain loop; without a GPU in Triton's interpreter: `make test-kernels`."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.runs import objects
from equivalence.test_graphed import COARSE, FROZEN, far, images, training_of
from torch import Tensor, nn

from fedgmr import Task
from fedgmr.exchange import Update
from fedgmr.experiments.assembly import Assembly
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.images import FlipAndCrop
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.models.vgg11 import VGG11
from fedgmr.training.execution import TRITON
from fedgmr.training.optimizers import SGD, Optimizer
from fedgmr.training.rules import OrderedDropout, PlainSGD, ThresholdedSGD, WidthSGD
from fedgmr.training.stacked import convolution
from fedgmr.training.stacked.executor import MOST, StackedExecutor
from fedgmr.training.stacked.net import StackedNet
from fedgmr.training.stacked.plan import Conv, StackPlan

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
RUNS = pytest.mark.skipif(
    not TRITON or (DEVICE == "cuda" and not torch.cuda.is_available()),
    reason="needs Triton and a CUDA device, or Triton's interpreter",
)


def pictures(loss: Callable[[Tensor, Tensor], Tensor] = one_hot_bce, augmented: bool = True) -> Task:
    """6 x 6 images in two channels, for a net with every kind of layer; none of its sizes fills a tile."""
    base = tiny.normed()

    def net() -> nn.Module:
        first = [nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 18, 5, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        second = nn.Sequential(nn.Conv2d(18, 20, 3, padding=1), nn.ReLU())
        return nn.Sequential(*first, second, nn.Flatten(), nn.Linear(80, 33), nn.ReLU(), nn.Linear(33, 4))

    def twice(samples: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.cat([samples[0], samples[0].flip(2)], 1), samples[1]

    augment = FlipAndCrop(pad=1, black=(0.0, 0.5)) if augmented else None
    return replace(
        base,
        name="pictures",
        model=net,
        train=twice(base.train[:]),
        test=twice(base.test[:]),
        loss=loss,
        augment=augment,
    )


def objects_of(
    task: Task,
    method: str = "fedgmr",
    *,
    rules: dict[str, Any] | None = None,
    tf32: bool = False,
    slots: int | None = None,
    **training: Any,
) -> Assembly:
    """Three clients at three densities, two steps of four samples: an interpreter is slow."""
    return objects(
        task,
        method,
        FROZEN | (rules or {}),
        links=[COARSE[0], *COARSE[2:4]],
        training={"learning_rate": 0.1, "batch_size": 4, "steps": 2, **training},
        device=DEVICE,
        execution={"executor": "sequential", "tf32": tf32, "slots": slots},
    )


def stacked(run: Assembly) -> StackedExecutor:
    """The run's stacked executor, also on a CPU: the interpreter runs there."""
    training = training_of(run)
    net = net_of(run, training.settings.optimizer)
    assert net is not None
    return StackedExecutor(training.work, net, keeps=training.settings.optimizer.memory == "kept")


def net_of(run: Assembly, optimizer: Optimizer) -> StackedNet | None:
    work = training_of(run).work
    model, most = run.task.initial_model(work.seed), work.execution.slots or MOST
    return StackedNet.of(work, model, run.server.layout, optimizer, most=most)


def trained(run: Assembly, *, stacks: bool) -> list[Update]:
    """The updates of every client's first task."""
    executor = stacked(run) if stacks else run.fleet.executor
    assert isinstance(executor, StackedExecutor) == stacks
    return executor.train(run.server.tasks(range(3), 0.0))


def distance(found: Sequence[Update], wanted: Sequence[Update]) -> float:
    """The largest between two updates of a client, of their length; also of their statistics and losses."""
    distances = []
    for one, other in zip(found, wanted, strict=True):
        assert (one.client, one.version, one.natural) == (other.client, other.version, other.natural)
        assert one.buffers.shape == other.buffers.shape
        distances += [far(one.values, other.values), abs(float(one.loss) - float(other.loss))]
        distances += [far(one.buffers, other.buffers)] if one.buffers.numel() else []
    return max(distances)


@RUNS
@pytest.mark.parametrize("method", ["fedgmr", "heterofl", "fedrolex", "fjord", "fiarse"])
def test_stacks_agree_with_the_plain_loop(method: str) -> None:
    found, wanted = (trained(objects_of(pictures(), method), stacks=stacks) for stacks in (True, False))
    assert distance(found, wanted) <= 1e-5
    for update, task in zip(found, objects_of(pictures(), method).server.tasks(range(3), 0.0), strict=True):
        start = task.model if update.natural else task.levels.pack(task.model, task.level)
        assert far(update.values, start) > 1e-3, "it has learned something"


@RUNS
def test_widths_in_turn_in_stacks() -> None:
    results = []
    for stacks in (True, False):
        run = objects_of(pictures(), "fjord", rules={"local": {"order": "cycle"}})
        assert [run.server.rules.level_of(density) for density in (1.0, 0.5, 0.2)] == [2, 1, 0]
        results.append(trained(run, stacks=stacks))
    assert distance(*results) <= 1e-5


HEAVY = {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.01, "keep": True}


@RUNS
@pytest.mark.parametrize("method", ["fedgmr", "heterofl", "fedrolex", "fjord"])
def test_kept_momentum_in_stacks(method: str) -> None:
    run = objects_of(pictures(), method, optimizer=HEAVY)
    tasks, plain, executor = run.server.tasks(range(3), 0.0), run.fleet.executor, stacked(run)
    brought: list[Tensor | None] = [None, None, torch.linspace(-0.1, 0.1, len(tasks[0].model), device=DEVICE)]
    for _ in range(2):  # the second round begins with the velocities of the first
        jobs = [replace(task, memory=memory) for task, memory in zip(tasks, brought, strict=True)]
        found, wanted = executor.train(jobs), plain.train(jobs)
        assert distance(found, wanted) <= 1e-5
        for task, one, other in zip(tasks, found, wanted, strict=True):
            assert one.memory is not None
            assert other.memory is not None
            assert far(one.memory, other.memory) <= 1e-5
            assert not bool(one.memory[~task.levels.mask(task.level)].any())
            assert float(one.memory.abs().max()) > 1e-3
        brought = [update.memory for update in found]
    fresh = executor.train(tasks)
    assert not torch.equal(fresh[0].values, found[0].values), "what they bring along matters"


@RUNS
@pytest.mark.parametrize("optimizer", [{"momentum": 0.5}, {"weight_decay": 0.1}])
def test_momentum_for_a_task_and_decay_alone_in_stacks(optimizer: dict[str, float]) -> None:
    runs = [objects_of(tiny.dense(), optimizer={"kind": "sgd", **optimizer}) for _ in range(2)]
    found, wanted, plain = (
        trained(runs[0], stacks=True),
        trained(runs[1], stacks=False),
        trained(objects_of(tiny.dense()), stacks=True),
    )
    assert distance(found, wanted) <= 1e-5
    assert all(update.memory is None for update in found)
    assert distance(found, plain) > 1e-4


@RUNS
def test_momentum_has_the_same_bits_however_many_there_are() -> None:
    results = [
        trained(objects_of(pictures(), tf32=True, slots=slots, optimizer=HEAVY), stacks=True) for slots in (1, 2, None)
    ]
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert one.memory is not None
            assert same.memory is not None
            assert torch.equal(one.values, same.values)
            assert torch.equal(one.memory, same.memory)


@RUNS
def test_thresholds_with_momentum_are_not_stacked() -> None:
    run = objects_of(pictures(), "fiarse", optimizer=HEAVY)
    assert net_of(run, training_of(run).settings.optimizer) is None
    assert net_of(run, SGD()) is not None


@RUNS
def test_losses_that_are_not_stacked() -> None:
    base = tiny.dense()
    labels = base.train[:][1]
    left_out = replace(
        base, loss=nn.functional.cross_entropy, train=(base.train[:][0], labels.where(labels != 1, -100))
    )
    inputs = base.train[:][0][0].numel()
    many = replace(base, loss=nn.functional.cross_entropy, model=lambda: nn.Sequential(nn.Linear(inputs, 1 << 17)))
    for task, batch in ((left_out, 4), (many, 16)):
        run = objects_of(task, batch_size=batch)
        assert net_of(run, SGD()) is None
    assert net_of(objects_of(many, batch_size=8), SGD()) is None, "blocks have at least 16 samples"
    assert net_of(objects_of(replace(base, loss=nn.functional.cross_entropy)), SGD()) is not None


@RUNS
def test_weights_that_fall_below_the_threshold_are_put_by() -> None:
    run = objects_of(pictures(), "fiarse")
    tasks = run.server.tasks(range(3), 0.0)
    executor = stacked(run)
    found = executor.train(tasks)
    assert distance(found, run.fleet.executor.train(tasks)) <= 1e-5
    put_by = executor.net.fallen[:3] != 0
    assert bool(put_by.any()), "some have fallen"
    assert bool((executor.net.weights[:3][put_by] == 0).all())
    again = executor.train(tasks)
    assert all(torch.equal(a.values, b.values) for a, b in zip(found, again, strict=True)), "and are forgotten"


@RUNS
@pytest.mark.parametrize("derivative", [True, False])
def test_only_prunable_weights_have_a_threshold(derivative: bool) -> None:
    local = {"ranks": "prunable", "derivative": derivative}
    run = objects_of(pictures(), "fiarse", rules={"ranking": {"ranks": "prunable", "floor": 0.02}, "local": local})
    tasks = run.server.tasks(range(3), 0.0)
    executor = stacked(run)
    found = executor.train(tasks)
    assert distance(found, run.fleet.executor.train(tasks)) <= 1e-5
    ranked = executor.net.ranked > 0
    assert 0 < int(ranked.sum()) == sum(place.size for place in run.server.layout.prunable)
    put_by = executor.net.fallen[:3] != 0
    assert bool(put_by[:, ranked].any()), "some have fallen"
    assert not bool(put_by[:, ~ranked].any())


def wide_pictures() -> Task:
    """The same images for a net whose channels fill several tiles."""

    def net() -> nn.Module:
        convs = [nn.Conv2d(1, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(48, 64, 3, padding=1), nn.ReLU()]
        last = [nn.Conv2d(64, 40, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(360, 4)]
        return nn.Sequential(*convs, *last)

    return replace(tiny.normed(), name="wide", model=net, loss=one_hot_bce)


@RUNS
@pytest.mark.parametrize("method", ["heterofl", "fedrolex", "fjord"])
def test_narrow_clients_compute_their_channels_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = objects_of(wide_pictures(), method)
    for _ in range(20 if method == "fedrolex" else 1):  # whose window moves on with every round
        run.server.merge(run.fleet.executor.train(run.server.tasks(range(3), 0.0)), 0.0)
    tasks = run.server.tasks(range(3), 0.0)
    executor = stacked(run)
    found = executor.train(tasks)
    assert distance(found, run.fleet.executor.train(tasks)) <= 1e-5
    firsts, lasts = executor.net.ranges[1:, :, :3].unbind(1)
    counts = torch.tensor([[48], [64], [40]], device=firsts.device)
    assert torch.equal(lasts.amax(1, keepdim=True), counts) or method == "fjord", "one client is whole"
    assert int((lasts - firsts).min()) <= 20, "others are not"
    assert bool((firsts >= 16).any()) == (method == "fedrolex")
    with monkeypatch.context() as patch:
        rule = run.recipe.method.local
        assert rule.stacking is not None
        assert rule.stacking.narrow
        patch.setattr(type(rule), "stacking", replace(rule.stacking, narrow=False))
        whole = stacked(run)
    assert not whole.net.stacking.narrow
    for one, other in zip(found, whole.train(tasks), strict=True):
        assert torch.equal(one.values, other.values)


@RUNS
@pytest.mark.parametrize("name", ["linear", "cross-entropy"])
def test_other_tasks_in_stacks(name: str) -> None:
    task = tiny.dense() if name == "linear" else pictures(nn.functional.cross_entropy, augmented=False)
    found, wanted = (trained(objects_of(task), stacks=stacks) for stacks in (True, False))
    assert distance(found, wanted) <= 1e-5


@RUNS
def test_the_same_bits_however_many_there_are() -> None:
    results = [trained(objects_of(pictures(), tf32=True, slots=slots), stacks=True) for slots in (1, 2, None)]
    for other in results[1:]:
        assert all(torch.equal(a.values, b.values) for a, b in zip(results[0], other, strict=True))


@RUNS
def test_shares_of_a_weight_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(objects_of(pictures()), stacks=True)
    monkeypatch.setattr(convolution, "_LEAST_ROWS", 32)
    executor = stacked(objects_of(pictures()))
    assert max(splits for _, splits in executor.net.shares) > 1
    parts = trained(objects_of(pictures()), stacks=True)
    assert distance(parts, whole) <= 1e-6


@RUNS
def test_a_diverged_client_brings_back_what_it_was_given() -> None:
    run = objects_of(tiny.dense(), optimizer=HEAVY)
    executor = stacked(run)
    tasks = run.server.tasks(range(3), 0.0)
    wild = [replace(task, learning_rate=1e30) if task.client else task for task in tasks]
    updates = executor.train(wild)
    assert [math.isfinite(float(update.loss)) for update in updates] == [True, False, False]
    for update, task in zip(updates[1:], tasks[1:], strict=True):
        start = task.model if update.natural else task.levels.pack(task.model, task.level)
        assert torch.equal(update.values, start)
        assert update.memory is not None
        assert not bool(update.memory.any())
    alone = stacked(objects_of(tiny.dense(), optimizer=HEAVY)).train(tasks[:1])
    assert torch.equal(alone[0].values, updates[0].values), "company changes nothing"


def test_plans_of_the_papers_nets() -> None:
    for net, shape, pooled in ((Conv2(), (1, 28, 28), [1, 1]), (VGG11(), (3, 32, 32), [1, 1, 0, 1, 0, 1, 0, 1])):
        layout = Layout.of(net)
        plan = StackPlan.of(net, layout, torch.Size(shape), 20)
        assert plan is not None
        assert [layer.pool for layer in plan.layers if isinstance(layer, Conv)] == [bool(pool) for pool in pooled]
        assert all(layer.weight_at % 16 == 0 and layer.bias_at % 16 == 0 for layer in plan.layers)
        assert torch.equal(plan.order.order[plan.order.inverse.long()].long(), torch.arange(layout.size))


def other_nets() -> dict[str, nn.Module]:
    def convolution() -> nn.Module:
        return nn.Conv2d(2, 4, 3, padding=1)

    def last() -> list[nn.Module]:
        return [nn.Flatten(), nn.Linear(144, 4)]

    return {
        "stride": nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4)),
        "no ReLU": nn.Sequential(convolution(), *last()),
        "batch norm": nn.Sequential(convolution(), nn.BatchNorm2d(4), nn.ReLU(), *last()),
        "no bias": nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.ReLU(), *last()),
        "dropout": nn.Sequential(convolution(), nn.ReLU(), nn.Dropout(0.5), *last()),
        "odd maximum": nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4)),
        "ReLU last": nn.Sequential(convolution(), nn.ReLU(), *last(), nn.ReLU()),
        "double": nn.Sequential(convolution(), nn.ReLU(), *last()).double(),
        "frozen": nn.Sequential(nn.Conv2d(2, 4, 3, padding=1).requires_grad_(False), nn.ReLU(), *last()),
    }


@pytest.mark.parametrize("name", other_nets())
def test_other_nets_are_not_stacked(name: str) -> None:
    net = other_nets()[name]
    assert StackPlan.of(net, Layout.of(net), torch.Size((2, 6, 6)), 8) is None


def test_rules_in_stacks() -> None:
    rules = (PlainSGD(proximal=0.1), OrderedDropout(distillation=True))
    assert all(rule.stacking is None for rule in (*rules, ThresholdedSGD(scope="layerwise")))
    assert all(rule.stacking for rule in (PlainSGD(), WidthSGD(), OrderedDropout(), ThresholdedSGD()))


@RUNS
@pytest.mark.parametrize("scaled", [False, True])
def test_hidden_values_are_not_scaled_in_a_stack(scaled: bool) -> None:
    run = objects_of(pictures(), "heterofl", rules={"local": {"scaler": scaled}})
    assert (net_of(run, training_of(run).settings.optimizer) is None) == scaled


def test_a_stacked_run_needs_a_device() -> None:
    with pytest.raises(ValueError, match=r"execution\.executor is stacked"):
        objects(images(torch.float32), execution={"executor": "stacked"})
