"""Sparse training: the updates of the masked bench, whatever level, rule, optimiser and order of tasks."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from fedgmr.training.plain.chains import arrange_for_training
from fedgmr.training.submodel.bit_masks import BitMaskedBench
from torch import Tensor, nn

import fedgmr.training.sparse.cut as module_under_test
from fedgmr.exchange import ClientTask, Update
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import Magnitude, RankingInputs
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.partition import SampleOrder
from fedgmr.tasks.task import Task
from fedgmr.training.optimizers import SGD, Adam, Optimizer
from fedgmr.training.rules import LocalRule, PlainSGD, ThresholdedSGD
from fedgmr.training.sparse.cut import SparseBench, cut_sparse, large_layers
from fedgmr.training.submodel.workspace import Bench, MaskedBench
from fedgmr.training.work import LocalTrainer

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


def sparse_bench(task: Task, optimizer: Optimizer | None = None, *, density: float = 0.5) -> SparseBench:
    return SparseBench(task.initial_model(SEED), task.layout(), CPU, optimizer, density=density, smallest=1000)


def masked_bench(task: Task, optimizer: Optimizer | None = None) -> MaskedBench:
    return MaskedBench(task.initial_model(SEED), task.layout(), CPU, optimizer)


def trainer_of(task: Task, bench: Bench, rule: LocalRule | None = None) -> LocalTrainer:
    order = SampleOrder([np.arange(30), np.arange(30, 60)], seed=SEED, batch_size=7)
    return LocalTrainer(task, bench, order, steps=4, seed=SEED, rule=rule or PlainSGD())


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
}


def kept_in_large(job: ClientTask, layout: Layout) -> int:
    large = [place for place in layout.parameters if place.size in (3840, 1200)]
    return sum(int((job.levels.levels[place.start : place.stop] <= job.level).sum()) for place in large)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_updates_of_the_masked_bench(rule: str, level: int) -> None:
    task = task_of()
    job = job_of(task, level)
    bench = sparse_bench(task)
    found = trainer_of(task, bench, RULES[rule]).train(job)
    close(found, trainer_of(task, masked_bench(task), RULES[rule]).train(job), 1e-12)
    # Where they keep 10 or 30 %, both large layers were sparse: 5307 coordinates without the 5040 of these two.
    short = 5307 - 5040 + kept_in_large(job, task.layout())
    assert len(bench.run().flat) == (short if level < 2 else 5307)
    assert (found.values != job.levels.pack(job.model, level)).double().mean() > 0.5, "they were trained"


def test_single_precision() -> None:
    # Without a kink: in a net this small one unit on the other side of it would show.
    task = task_of(lambda: chain(torch.float32, nn.Tanh), torch.float32)
    for level in (0, 1):
        job = job_of(task, level)
        close(trainer_of(task, sparse_bench(task)).train(job), trainer_of(task, masked_bench(task)).train(job), 1e-5)


def test_conv_2() -> None:
    draws = np.random.default_rng(0)
    pictures = torch.from_numpy(draws.standard_normal((60, 1, 28, 28)).astype(np.float32))
    samples = pictures, torch.from_numpy(draws.integers(0, 62, 60))
    task = Task(name="t", model=Conv2, train=samples, test=samples)
    layout, model = task.layout(), task.initial_model(0)
    levels = Magnitude().rank(RankingInputs(layout=layout, ladder=(0.05, 1.0), model=layout.flatten(model)))
    job = replace(job_of(task, 0), levels=levels, learning_rate=0.05)
    bench = SparseBench(model, layout, CPU, density=0.12, smallest=1_000_000)
    close(trainer_of(task, bench).train(job), trainer_of(task, masked_bench(task)).train(job), 1e-5)
    # All but the large layer, and 5 % of 6,601,504 weights without the 40 + 2,560 + 6,349 of the other tensors.
    assert len(bench.run().flat) == 181_182 + 321_126


@pytest.mark.parametrize("optimizer", [SGD(), Adam()])
def test_any_optimizer(optimizer: Optimizer) -> None:
    task = task_of()
    job = replace(job_of(task, 1), learning_rate=0.01)
    found = trainer_of(task, sparse_bench(task, optimizer)).train(job)
    close(found, trainer_of(task, masked_bench(task, optimizer)).train(job), 1e-9)


def test_only_layers_with_few_weights_kept_are_sparse() -> None:
    task = task_of()
    layout = task.layout()
    first, second = (place for place in layout.parameters if place.size in (3840, 1200))
    codes = torch.full((layout.size,), 2, dtype=torch.uint8)
    codes[first.start : first.start + 400] = 0  # 10.4 % of the first layer
    codes[second.start : second.stop] = 0
    job = replace(job_of(task, 0), levels=LevelMap(codes, LADDER))
    bench = sparse_bench(task, density=0.105)
    close(trainer_of(task, bench).train(job), trainer_of(task, masked_bench(task)).train(job), 1e-12)
    assert len(bench.run().flat) == 5307 - 3840 + 400
    assert len(bench.run().parameters[4]) == 400
    dense = sparse_bench(task, density=0.104)  # 399 of 3840
    trainer_of(task, dense).train(job)
    assert len(dense.run().flat) == 5307


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
            found = trainer_of(task, sparse_bench(task), rule).train(bare)
            close(found, trainer_of(task, masked_bench(task), rule).train(bare), 1e-12)


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
    alone = [trainer_of(task, sparse_bench(task)).train(job) for job in jobs]
    trainer = trainer_of(task, sparse_bench(task))
    for indices in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [2, 2, 0, 0, 3, 1]):
        assert all(same(trainer.train(jobs[i]), alone[i]) for i in indices)


def test_a_structure_is_found_once_per_map_and_level(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[int]()

    def counting(levels: LevelMap, level: int, *rest: object) -> object:
        found.append(level)
        return cut_sparse(levels, level, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module_under_test, "cut_sparse", counting)
    task = task_of()
    trainer = trainer_of(task, sparse_bench(task))

    def train(*jobs: tuple[int, int]) -> list[int]:
        found.clear()
        for version, level in jobs:
            trainer.train(job_of(task, level, shift=version))
        return list(found)

    assert train((0, 0), (0, 0), (0, 1), (0, 0), (0, 1)) == [0, 1]
    assert train((1, 0), (0, 0), (1, 0), (0, 1)) == [0], "tasks of the map before are still on their way"
    assert train((2, 0), (0, 0)) == [0], "two maps are kept, those used last"
    assert train((1, 0)) == [0]


def test_another_level_within_a_task() -> None:
    """As a rule that draws levels would do it: what one level trained is there at the next."""
    task = task_of()
    inputs, targets = task.train[0][:9], task.train[1][:9]
    results = []
    for bench in (sparse_bench(task), masked_bench(task)):
        bench.begin(job_of(task, 1), task.loss)
        for level in (1, 0, 2, 0, 1):
            torch.manual_seed(level)
            run = bench.run(level)
            run.descend(run.gradients(run.loss(run.module(inputs), targets)))
        results.append(bench.finish())
    (found, buffers), (wanted, wanted_buffers) = results
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(buffers, wanted_buffers, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_without_sparse_layers_it_is_the_masked_bench_bit_for_bit(rule: str, dtype: torch.dtype) -> None:
    task = task_of(lambda: chain(dtype), dtype)
    plain, by_hand = (task.initial_model(SEED) for _ in range(2))
    for module in (plain, by_hand):
        arrange_for_training(module, CPU)
    wanted = trainer_of(task, MaskedBench(plain, task.layout(), CPU), RULES[rule])
    by_bits = trainer_of(task, BitMaskedBench(by_hand, task.layout(), CPU), RULES[rule])
    switched_off = trainer_of(task, sparse_bench(task, density=0.0), RULES[rule])
    for level, shift in ((0, 0), (1, 0), (2, 0), (1, 1), (0, 1)):
        job = job_of(task, level, shift=shift)
        update = wanted.train(job)
        assert same(by_bits.train(job), update)
        assert same(switched_off.train(job), update)
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
    assert list(large_layers(model, Layout.of(model), 1000)) == ["free.weight"]
    assert list(large_layers(model, Layout.of(model), 120)) == ["free.weight", "small.weight"]
    alone = nn.Linear(40, 30)
    assert list(large_layers(alone, Layout.of(alone), 1200)) == ["weight"]


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
    close(trainer_of(task, sparse_bench(task)).train(job), trainer_of(task, masked_bench(task)).train(job), 1e-12)


def test_reports_are_of_the_sparse_sub_model() -> None:
    task = task_of()
    reports = []
    for bench in (sparse_bench(task), masked_bench(task)):
        trainer = trainer_of(task, bench)
        trainer.held_out = [np.arange(20), np.arange(20, 40)]
        reports.append(trainer.train(job_of(task, 0)).report)
    assert reports[0] == reports[1] is not None
