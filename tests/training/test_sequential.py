"""Local training: the same numbers as a plain masked loop, and nothing left over from the task before."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.exchange import ClientTask, Report, Update
from fedgmr.submodels.levels import LevelMap
from fedgmr.tasks.metrics import accuracy
from fedgmr.tasks.partition import SampleOrder
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.task import Task
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.rules import LocalRule, PlainSGD
from fedgmr.training.submodel.cut import MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.workspace import Workspace
from fedgmr.training.work import LocalWork

SEED = 5


def data(samples: int = 40) -> tuple[Tensor, Tensor]:
    numbers = np.random.default_rng(1)
    inputs = torch.from_numpy(numbers.standard_normal((samples, 1, 4, 4)).astype(np.float32))
    return inputs, torch.from_numpy(numbers.integers(0, 3, samples))


def task_of(model: Callable[[], nn.Module], **more: Any) -> Task:
    fields = {"name": "t", "model": model, "train": data(), "test": data(4)} | more
    return Task(**(fields | {part: Samples(*fields[part]) for part in ("train", "test")}))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))


def workspace_of(task: Task) -> Workspace:
    return Workspace(MaskedCutter(FlatModule(task.initial_model(SEED), task.layout(), torch.device("cpu"))))


def executor_of(
    task: Task, *, steps: int = 4, rule: LocalRule | None = None, held_out: list[np.ndarray] | None = None
) -> SequentialExecutor:
    half = len(task.train.inputs) // 2
    order = SampleOrder([np.arange(half), np.arange(half, 2 * half)], seed=SEED, batch_size=5)
    local = LocalWork(task=task, order=order, rule=rule or PlainSGD(), steps=steps, seed=SEED, held_out=held_out)
    return SequentialExecutor(local, workspace_of(task))


def flat_of(executor: SequentialExecutor) -> Tensor:
    assert isinstance(executor.workspace.cutter, MaskedCutter)
    return executor.workspace.cutter.module.flat


def work(task: Task, *, levels: LevelMap | None = None, level: int = 0, **more: object) -> ClientTask:
    layout, model = task.layout(), task.initial_model(SEED + 1)
    fields = {
        "client": 1,
        "version": 3,
        "level": level,
        "levels": levels or LevelMap.full(layout.size),
        "map_version": 0,
        "model": layout.flatten(model),
        "buffers": layout.flatten_buffers(model),
        "learning_rate": 0.3,
        "first_batch": 2,
    }
    return ClientTask(**(fields | more))  # type: ignore[arg-type]


def levels_for(task: Task, shift: int = 0) -> LevelMap:
    layout = task.layout()
    scores = torch.sin(torch.arange(layout.size) + float(shift))
    return LevelMap.from_scores(scores, (0.1, 0.5, 1.0), layout.always)


def same(a: Update, b: Update) -> bool:
    return a.loss == b.loss and torch.equal(a.values, b.values) and torch.equal(a.buffers, b.buffers)


def plain_loop(task: Task, job: ClientTask, steps: int) -> tuple[Tensor, float]:
    """Masked SGD as a textbook would write it: the flat result and the mean loss."""
    module = task.initial_model(123)
    mask = job.levels.levels <= job.level
    nn.utils.vector_to_parameters(torch.where(mask, job.model, 0), module.parameters())
    order = SampleOrder([np.arange(20), np.arange(20, 40)], seed=SEED, batch_size=5)
    losses = []
    for batch in order.batches(job.client, job.first_batch, steps):
        module.zero_grad()
        loss = functional.cross_entropy(module(task.train.inputs[batch]), task.train.targets[batch])
        loss.backward()
        start = 0
        with torch.no_grad():
            for parameter in module.parameters():
                inside = mask[start : start + parameter.numel()].view(parameter.shape)
                start += parameter.numel()
                parameter.sub_(parameter.grad, alpha=job.learning_rate)
                parameter[~inside] = 0.0
        losses.append(loss.detach())
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    return flat, float(torch.stack(losses).mean())


@pytest.mark.parametrize("level", [0, 1, 2])
def test_equals_a_plain_masked_loop_bit_for_bit(level: int) -> None:
    task = task_of(convolutional)
    job = work(task, levels=levels_for(task), level=level)
    executor = executor_of(task)
    update = executor.train([job])[0]
    flat, loss = plain_loop(task, job, steps=4)
    assert torch.equal(update.values, job.levels.pack(flat, level))
    assert update.loss == pytest.approx(loss, rel=1e-6)
    assert (update.client, update.version, update.report) == (1, 3, None)
    # Nothing has grown outside the sub-model, and what is inside has moved.
    outside = ~job.levels.mask(level)
    assert int(outside.sum()) == {0: 63 - 6, 1: 63 - 32, 2: 0}[level]
    assert (flat_of(executor)[outside] == 0).all()
    assert (update.values != job.levels.pack(job.model, level)).float().mean() > 0.4


def test_the_global_model_is_left_alone() -> None:
    task = task_of(lambda: nn.Sequential(convolutional(), nn.BatchNorm1d(3)))
    job = work(task, levels=levels_for(task), level=1)
    model, buffers = job.model.clone(), job.buffers.clone()
    update = executor_of(task).train([job])[0]
    assert torch.equal(job.model, model)
    assert torch.equal(job.buffers, buffers)
    assert not torch.equal(update.buffers, buffers)


def every_sort() -> nn.Module:
    # Momentum None averages over all batches counted so far, so a counter that goes on would show.
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=None), nn.Dropout(0.3), nn.Flatten(), nn.Linear(12, 3)
    )


def test_an_update_does_not_depend_on_the_tasks_trained_before() -> None:
    task = task_of(every_sort)
    first, second = levels_for(task), levels_for(task, shift=1)
    jobs = [
        work(task, levels=first, level=0),
        work(task, levels=first, level=1, client=0, first_batch=7),
        work(task, levels=second, level=0, map_version=1, learning_rate=0.1),
        work(task, levels=second, level=2, map_version=1, client=0),
        work(task, levels=first, level=0, first_batch=0),
    ]
    alone = [executor_of(task).train([job])[0] for job in jobs]
    executor = executor_of(task)
    for indices in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [2, 2, 0, 0]):
        together = executor.train([jobs[i] for i in indices])
        assert [same(update, alone[i]) for update, i in zip(together, indices, strict=True)] == [True] * len(indices)


def test_dropout_belongs_to_client_and_batch() -> None:
    # All samples are the same, so only dropout can make a difference.
    ones = (torch.ones(40, 6), torch.zeros(40, dtype=torch.int64))
    task = task_of(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), train=ones, test=ones)
    executor = executor_of(task)
    results = []
    for noise, client, first_batch in ((1, 0, 0), (2, 0, 0), (3, 1, 0), (4, 0, 5)):
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        results.append(executor.train([work(task, client=client, first_batch=first_batch)])[0])
        assert torch.equal(torch.get_rng_state(), state), "other draws go on undisturbed"
    assert same(results[0], results[1])
    assert len({tuple(r.values.tolist()) for r in results}) == 3


def test_batch_norm_statistics_come_back() -> None:
    # One step on the samples 1 and 3 in some order: mean 2, unbiased variance 2, momentum 0.1.
    values = torch.tensor([[1.0], [3.0]])
    task = task_of(
        lambda: nn.BatchNorm1d(1),
        train=(values, torch.zeros(2, dtype=torch.int64)),
        test=(values, torch.zeros(2, dtype=torch.int64)),
        loss=lambda outputs, targets: outputs.mean(),
    )
    order = SampleOrder([np.arange(2)], seed=0, batch_size=2)
    local = LocalWork(task=task, order=order, rule=PlainSGD(), steps=1, seed=0)
    executor = SequentialExecutor(local, workspace_of(task))
    job = work(task, client=0, buffers=torch.tensor([10.0, 4.0]))
    assert executor.train([job])[0].buffers.tolist() == pytest.approx([9 + 0.2, 3.6 + 0.2])
    kept = executor.train([job])[0].buffers
    executor.train([replace(job, buffers=torch.zeros(2))])
    assert kept.tolist() == pytest.approx([9.2, 3.8]), "an update is a copy"


def scalar_task() -> Task:
    """Output w·1, loss w: the gradient is 1 whatever w."""
    ones = (torch.ones(40, 1), torch.zeros(40, dtype=torch.int64))
    return task_of(
        lambda: nn.Linear(1, 1, bias=False), train=ones, test=ones, loss=lambda outputs, targets: outputs.mean()
    )


def test_the_proximal_term_by_hand() -> None:
    task = scalar_task()
    job = work(task, model=torch.tensor([2.0]), learning_rate=0.5)
    # Plain: 2, 1.5, 1, 0.5. With the pull (w - 2): steps of 1, then 1 - 0.5, then 1 - 0.75.
    assert executor_of(task, steps=3).train([job])[0].values.tolist() == [0.5]
    pulled = executor_of(task, steps=3, rule=PlainSGD(proximal=1.0)).train([job])[0]
    assert pulled.values.tolist() == [1.125]
    assert pulled.loss == pytest.approx((2 + 1.5 + 1.25) / 3), "the loss is that of the data"
    half = executor_of(task, steps=2, rule=PlainSGD(proximal=0.5)).train([job])[0]
    assert half.values.tolist() == [1.5 - 0.5 * (1 - 0.25)]


def test_the_proximal_term_pulls_to_the_sub_model() -> None:
    # Two weights, the second outside: it is zero at the start and in training, so it pulls nothing.
    ones = (torch.ones(40, 2), torch.zeros(40, dtype=torch.int64))
    task = task_of(
        lambda: nn.Linear(2, 1, bias=False), train=ones, test=ones, loss=lambda outputs, targets: outputs.mean()
    )
    levels = LevelMap(torch.tensor([0, 1], dtype=torch.uint8), (0.5, 1.0))
    job = work(task, model=torch.tensor([2.0, 7.0]), levels=levels, learning_rate=0.5)
    executor = executor_of(task, steps=3, rule=PlainSGD(proximal=1.0))
    assert executor.train([job])[0].values.tolist() == [1.125]
    assert flat_of(executor).tolist() == [1.125, 0]


def test_the_loss_is_the_mean_over_the_steps() -> None:
    task = scalar_task()
    update = executor_of(task, steps=4).train([work(task, model=torch.tensor([2.0]), learning_rate=0.5)])[0]
    assert update.loss == (2 + 1.5 + 1 + 0.5) / 4


def test_a_loss_that_is_not_a_number_shows() -> None:
    task = scalar_task()
    broken = replace(task, loss=lambda outputs, targets: outputs.mean() * math.nan)
    assert math.isnan(executor_of(broken).train([work(task)])[0].loss)
    # One step of 4 x 3e38 goes to infinity after a loss of 8; one of 4 x 1e37 does not.
    steep = replace(task, loss=lambda outputs, targets: outputs.mean() * 4)
    job = work(task, model=torch.tensor([2.0]))
    assert not math.isfinite(executor_of(steep, steps=1).train([replace(job, learning_rate=3e38)])[0].loss)
    assert executor_of(steep, steps=1).train([replace(job, learning_rate=1e37)])[0].loss == 8.0


def test_parameters_without_a_gradient_stay() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Parameter(torch.tensor([3.0]))
            self.used = nn.Parameter(torch.tensor([1.0]))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * self.used

    ones = (torch.ones(40, 1), torch.zeros(40, dtype=torch.int64))
    task = task_of(Idle, train=ones, test=ones, loss=lambda outputs, targets: outputs.mean())
    update = executor_of(task, steps=2).train([work(task, learning_rate=0.25)])[0]
    assert update.values.tolist() == [3.0, 0.5]


def test_clients_report_the_metric_of_what_they_received() -> None:
    # A linear classifier w·x against 0, as logits (0, w·x): positive inputs are class 1 if w > 0.
    class Sign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0]))
            self.dropout = nn.Dropout(0.9)  # in training only: a report is made without

        def forward(self, inputs: Tensor) -> Tensor:
            assert inputs.shape[1] == 1
            scores = self.dropout(inputs) * self.weight
            return torch.cat([torch.zeros_like(scores), scores], 1)

    inputs = torch.tensor([[1.0], [2.0], [-1.0], [3.0]] + [[1.0]] * 36)
    targets = torch.tensor([1, 1, 1, 0] + [0] * 36)
    task = task_of(Sign, train=(inputs, targets), test=(inputs, targets))
    held_out = [np.array([0, 1, 2, 3]), np.array([0, 1, 2])]
    executor = executor_of(task, held_out=held_out)
    first = executor.train([work(task, client=0, model=torch.tensor([1.0]))])[0]
    assert first.report == Report(metric=0.5, samples=4)
    second = executor.train([work(task, client=1, model=torch.tensor([-1.0]))])[0]
    assert second.report == Report(metric=pytest.approx(1 / 3), samples=3)
    assert executor.workspace.open().module.training
    # However many samples go through at a time.
    pieces = executor_of(replace(task, evaluation_batch=3), held_out=held_out)
    assert pieces.train([work(task, client=0, model=torch.tensor([1.0]))])[0].report == first.report
    # Reporting does not change what is learned.
    assert torch.equal(
        executor_of(task).train([work(task, client=0, model=torch.tensor([1.0]))])[0].values, first.values
    )


def test_a_client_with_one_sample_reports_with_the_statistics_it_received() -> None:
    # Sample 0 by means 10 and -1: 0 and 1 standard units, so class 1; of a single sample there are no others.
    samples = torch.tensor([[10.0, 0.0], [12.0, 1.0], [14.0, 2.0], [16.0, 9.0]]), torch.tensor([1, 0, 0, 1])
    task = task_of(lambda: nn.BatchNorm1d(2), train=samples, test=samples)
    order = SampleOrder([np.arange(1, 4)], seed=0, batch_size=3)
    local = LocalWork(task=task, order=order, rule=PlainSGD(), steps=1, seed=0, held_out=[np.array([0])], rebuilds=True)
    job = work(task, client=0, buffers=torch.tensor([10.0, -1.0, 1.0, 1.0]))
    assert SequentialExecutor(local, workspace_of(task)).train([job])[0].report == Report(metric=1.0, samples=1)


def test_batches_follow_first_batch() -> None:
    task = task_of(convolutional)
    two = executor_of(task, steps=2)
    half = two.train([work(task, first_batch=0)])[0]
    whole = executor_of(task, steps=4).train([work(task, first_batch=0)])[0]
    rest = two.train([work(task, first_batch=2, model=half.values)])[0]
    assert torch.equal(rest.values, whole.values)


def test_a_client_whose_samples_do_not_count_reports_nothing() -> None:
    task = task_of(convolutional, metric=accuracy(ignore=1))
    held_out = [np.flatnonzero(task.train.targets.numpy() == 1)[:3], np.arange(3)]
    executor = executor_of(task, held_out=held_out)
    assert executor.train([work(task, client=0)])[0].report is None
    assert executor.train([work(task, client=1)])[0].report is not None
