"""Sparse training: the updates of the masked model, whatever level, rule, optimiser and order of tasks."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask, Update
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import Magnitude, RankingInputs
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.partition import SampleOrder
from fedgmr.tasks.task import Task
from fedgmr.training.chains import Chain
from fedgmr.training.optimizers import SGD, Adam, Optimizer
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.rules import LocalRule, PlainSGD, ThresholdedSGD
from fedgmr.training.sparse.cut import SparseCutter
from fedgmr.training.submodel.cut import Cut, MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.workspace import Workspace
from fedgmr.training.work import LocalWork

LADDER = (0.1, 0.3, 1.0)
CPU = torch.device("cpu")
SEED = 4


def images(samples: int = 60, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    draws = np.random.default_rng(2)
    return torch.from_numpy(draws.standard_normal((samples, 1, 8, 8))).to(dtype), torch.from_numpy(
        draws.integers(0, 5, samples)
    )


def chain(dtype: torch.dtype = torch.float64, bend: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Convolution, batch norm, pooling, dropout and three linear layers, two of them sparse below."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        bend(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 40),
        bend(),
        nn.Dropout(0.2),
        nn.Linear(40, 30, bias=False),
        nn.Tanh(),
        nn.Linear(30, 5),
    ).to(dtype)


def task_of(model: Callable[[], nn.Module] = chain, dtype: torch.dtype = torch.float64) -> Task:
    return Task(name="t", model=model, train=images(dtype=dtype), test=images(5, dtype))


def levels_of(layout: Layout, shift: float = 0.0) -> LevelMap:
    return LevelMap.from_scores(torch.sin(torch.arange(layout.size) * 1.7 + shift), LADDER, layout.always)


def job_of(task: Task, level: int, *, shift: float = 0.0, **more: object) -> ClientTask:
    layout, model = task.layout(), task.initial_model(SEED + 1)
    fields = {
        "client": 1,
        "version": 3,
        "level": level,
        "levels": levels_of(layout, shift),
        "map_version": int(shift),
        "model": layout.flatten(model),
        "buffers": layout.flatten_buffers(model),
        "learning_rate": 0.2,
        "first_batch": 2,
    }
    return ClientTask(**(fields | more))  # type: ignore[arg-type]


def sparse_space(task: Task, optimizer: Optimizer | None = None, *, density: float = 0.5) -> Workspace:
    cutter = SparseCutter(task.initial_model(SEED), task.layout(), density=density, smallest=1000)
    return Workspace(cutter, optimizer)


def masked_space(task: Task, optimizer: Optimizer | None = None, model: nn.Module | None = None) -> Workspace:
    module = FlatModule(model or task.initial_model(SEED), task.layout(), CPU)
    return Workspace(MaskedCutter(module), optimizer)


def train(
    task: Task,
    space: Workspace,
    job: ClientTask,
    rule: LocalRule | None = None,
    held_out: list[np.ndarray] | None = None,
) -> Update:
    order = SampleOrder([np.arange(30), np.arange(30, 60)], seed=SEED, batch_size=7)
    work = LocalWork(task=task, order=order, rule=rule or PlainSGD(), steps=4, seed=SEED, held_out=held_out)
    return SequentialExecutor(work, space).train([job])[0]


def close(found: Update, wanted: Update, tolerance: float) -> None:
    assert found.values.shape == wanted.values.shape
    assert float((found.values - wanted.values).norm() / wanted.values.norm()) <= tolerance
    torch.testing.assert_close(found.buffers, wanted.buffers, rtol=tolerance, atol=tolerance)
    assert float(found.loss) == pytest.approx(float(wanted.loss), rel=tolerance)


RULES: dict[str, LocalRule] = {
    "sgd": PlainSGD(),
    "proximal": PlainSGD(proximal=0.3),
    "thresholded": ThresholdedSGD(),
    "thresholded, layerwise": ThresholdedSGD(scope="layerwise", derivative=False),
    "thresholded, prunable": ThresholdedSGD(ranks="prunable"),
}


def kept_in_large(job: ClientTask, layout: Layout) -> int:
    large = [place for place in layout.parameters if place.size in (3840, 1200)]
    return sum(int((job.levels.levels[place.start : place.stop] <= job.level).sum()) for place in large)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_updates_of_the_masked_space(rule: str, level: int) -> None:
    task = task_of()
    job = job_of(task, level)
    space = sparse_space(task)
    found = train(task, space, job, RULES[rule])
    close(found, train(task, masked_space(task), job, RULES[rule]), 1e-12)
    # Where they keep 10 or 30 %, both large layers were sparse: 5307 coordinates without the 5040 of these two.
    short = 5307 - 5040 + kept_in_large(job, task.layout())
    assert len(space.open().flat) == (short if level < 2 else 5307)
    assert (found.values != job.levels.pack(job.model, level)).double().mean() > 0.5, "they were trained"


def test_single_precision() -> None:
    # Without a kink: in a net this small one unit on the other side of it would show.
    task = task_of(lambda: chain(torch.float32, nn.Tanh), torch.float32)
    for level in (0, 1):
        job = job_of(task, level)
        close(train(task, sparse_space(task), job), train(task, masked_space(task), job), 1e-5)


def test_conv_2() -> None:
    draws = np.random.default_rng(0)
    pictures = torch.from_numpy(draws.standard_normal((60, 1, 28, 28)).astype(np.float32))
    samples = pictures, torch.from_numpy(draws.integers(0, 62, 60))
    task = Task(name="t", model=Conv2, train=samples, test=samples)
    layout, model = task.layout(), task.initial_model(0)
    levels = Magnitude().rank(RankingInputs(layout=layout, ladder=(0.05, 1.0), model=layout.flatten(model)))
    job = replace(job_of(task, 0), levels=levels, learning_rate=0.05)
    space = Workspace(SparseCutter(model, layout, density=0.12, smallest=1_000_000))
    close(train(task, space, job), train(task, masked_space(task), job), 1e-5)
    # All but the large layer, and 5 % of 6,601,504 weights without the 40 + 2,560 + 6,349 of the other tensors.
    assert len(space.open().flat) == 181_182 + 321_126


@pytest.mark.parametrize("optimizer", [SGD(), Adam()])
def test_any_optimizer(optimizer: Optimizer) -> None:
    task = task_of()
    job = replace(job_of(task, 1), learning_rate=0.01)
    found = train(task, sparse_space(task, optimizer), job)
    close(found, train(task, masked_space(task, optimizer), job), 1e-9)


def test_only_layers_with_few_weights_kept_are_sparse() -> None:
    task = task_of()
    layout = task.layout()
    first, second = (place for place in layout.parameters if place.size in (3840, 1200))
    codes = torch.full((layout.size,), 2, dtype=torch.uint8)
    codes[first.start : first.start + 400] = 0  # 10.4 % of the first layer
    codes[second.start : second.stop] = 0
    job = replace(job_of(task, 0), levels=LevelMap(codes, LADDER))
    space = sparse_space(task, density=0.105)
    close(train(task, space, job), train(task, masked_space(task), job), 1e-12)
    assert len(space.open().flat) == 5307 - 3840 + 400
    assert len(space.open().parameters[4]) == 400
    dense = sparse_space(task, density=0.104)  # 399 of 3840
    train(task, dense, job)
    assert len(dense.open().flat) == 5307


def test_a_layer_without_any_weight_kept() -> None:
    task = task_of()
    job = job_of(task, 0)
    first, second = (place for place in task.layout().parameters if place.size in (3840, 1200))
    for empty in ([first], [first, second]):
        codes = job.levels.levels.clone()
        for place in empty:
            codes[place.start : place.stop] = 1
        bare = replace(job, levels=LevelMap(codes, LADDER))
        for rule in RULES.values():
            found = train(task, sparse_space(task), bare, rule)
            close(found, train(task, masked_space(task), bare, rule), 1e-12)


def same(one: Update, other: Update) -> bool:
    return one.loss == other.loss and torch.equal(one.values, other.values) and torch.equal(one.buffers, other.buffers)


def test_an_update_does_not_depend_on_the_tasks_trained_before() -> None:
    task = task_of(lambda: chain(torch.float32), torch.float32)
    jobs = [
        job_of(task, 0),
        job_of(task, 1, client=0, first_batch=7),
        job_of(task, 2, client=0),
        job_of(task, 0, shift=1, learning_rate=0.1),
        job_of(task, 1, shift=2),
        job_of(task, 0, first_batch=0),
    ]
    alone = [train(task, sparse_space(task), job) for job in jobs]
    space = sparse_space(task)
    for indices in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [2, 2, 0, 0, 3, 1]):
        assert all(same(train(task, space, jobs[i]), alone[i]) for i in indices)


def test_a_cut_is_made_once_per_map_and_level(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[int]()
    make = SparseCutter.cut

    def counting(self: SparseCutter, levels: LevelMap, level: int) -> Cut:
        found.append(level)
        return make(self, levels, level)

    monkeypatch.setattr(SparseCutter, "cut", counting)
    task = task_of()
    space = sparse_space(task)

    def made(*jobs: tuple[int, int]) -> list[int]:
        found.clear()
        for version, level in jobs:
            train(task, space, job_of(task, level, shift=version))
        return list(found)

    assert made((0, 0), (0, 0), (0, 1), (0, 0), (0, 1)) == [0, 1]
    assert made((1, 0), (0, 0), (1, 0), (0, 1)) == [0], "tasks of the map before are still on their way"
    assert made((2, 0), (0, 0)) == [0], "two maps are kept, those used last"
    assert made((1, 0)) == [0]


def test_another_level_within_a_task() -> None:
    """As a rule that draws levels would do it: what one level trained is there at the next."""
    task = task_of()
    inputs, targets = task.train.inputs[:9], task.train.targets[:9]
    results = []
    for space in (sparse_space(task), masked_space(task)):
        space.begin(job_of(task, 1), task.loss)
        for level in (1, 0, 2, 0, 1):
            torch.manual_seed(level)
            sub = space.open(level)
            sub.descend(sub.gradients(sub.loss(sub.module(inputs), targets)))
        results.append(space.finish())
    (found, buffers), (wanted, wanted_buffers) = results
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(buffers, wanted_buffers, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_without_sparse_layers_it_is_the_masked_model_bit_for_bit(rule: str, dtype: torch.dtype) -> None:
    task = task_of(lambda: chain(dtype), dtype)
    plain = task.initial_model(SEED)
    chain_of_layers = Chain.of(plain)
    assert chain_of_layers is not None
    chain_of_layers.arrange_for_training()
    masked, switched_off = masked_space(task, model=plain), sparse_space(task, density=0.0)
    for level, shift in ((0, 0), (1, 0), (2, 0), (1, 1), (0, 1)):
        job = job_of(task, level, shift=shift)
        update = train(task, masked, job, RULES[rule])
        assert same(train(task, switched_off, job, RULES[rule]), update)
        assert not (update.values.view(torch.int32 if dtype == torch.float32 else torch.int64) == -(2**31)).any()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.free = nn.Linear(40, 30)
        self.one = nn.Linear(30, 40, bias=False)
        self.two = nn.Linear(30, 40, bias=False)
        self.two.weight = self.one.weight
        self.frozen = nn.Linear(40, 40).requires_grad_(False)
        self.attention = nn.MultiheadAttention(40, 2)
        self.small = nn.Linear(40, 3)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(40, 40))


def test_large_layers() -> None:
    model = Tied()
    assert list(SparseCutter.large_layers(model, Layout.of(model), 1000)) == ["free.weight"]
    assert list(SparseCutter.large_layers(model, Layout.of(model), 120)) == ["free.weight", "small.weight"]
    alone = nn.Linear(40, 30)
    assert list(SparseCutter.large_layers(alone, Layout.of(alone), 1200)) == ["weight"]


def test_a_model_that_uses_the_weight_itself() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 40, dtype=torch.float64)
            self.last = nn.Linear(40, 5, dtype=torch.float64)

        def forward(self, inputs: Tensor) -> Tensor:
            penalty = self.layer.weight.square().sum(1)
            logits: Tensor = self.last(self.layer(inputs.flatten(1)) + 0.1 * penalty)
            return logits

    task = task_of(Own)
    job = job_of(task, 0)
    close(train(task, sparse_space(task), job), train(task, masked_space(task), job), 1e-12)


def test_reports_are_of_the_sparse_sub_model() -> None:
    task = task_of()
    held_out = [np.arange(20), np.arange(20, 40)]
    reports = [
        train(task, space, job_of(task, 0), held_out=held_out).report
        for space in (sparse_space(task), masked_space(task))
    ]
    assert reports[0] == reports[1] is not None
