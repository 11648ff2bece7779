"""Measuring without outputs against measuring with them; without a GPU in Triton's interpreter: `make test-kernels`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr import metrics
from fedgmr.tasks.losses import padded_cross_entropy, token_cross_entropy
from fedgmr.tasks.metrics import Metric
from fedgmr.tasks.task import Task
from fedgmr.training.evaluation import evaluator as module
from fedgmr.training.evaluation import head
from fedgmr.training.evaluation.evaluator import Evaluator
from fedgmr.training.evaluation.head import Head, last_linear
from fedgmr.training.execution import TRITON, ExecutionSettings
from training.folded_clients import DEVICE, RUNS, draw, far

if TRITON:
    from fedgmr.training.evaluation.ranks import ranks


@RUNS
@pytest.mark.parametrize(
    ("positions", "width", "classes", "bias"), [(5, 7, 11, True), (130, 40, 150, False), (1, 96, 70, True)]
)
def test_ranks_and_losses_are_those_of_torch(positions: int, width: int, classes: int, bias: bool) -> None:
    hidden, w = draw(positions, width, seed=1), draw(classes, width, seed=2)
    b = draw(classes, seed=3) if bias else None
    targets = torch.randint(classes, (positions,), generator=torch.Generator().manual_seed(4)).to(DEVICE)
    read = torch.arange(positions, device=DEVICE) % 3 != 1
    ahead, losses = ranks(hidden, w, b, targets, read, "ieee")
    outputs = functional.linear(hidden.double(), w.double(), None if b is None else b.double())
    wanted = (outputs > outputs.gather(1, targets[:, None])).sum(1)
    assert torch.equal(ahead[read], wanted[read].int())
    assert far(losses[read], functional.cross_entropy(outputs, targets, reduction="none")[read]) < 1e-6


@RUNS
def test_equal_outputs_are_ahead_in_their_order_and_no_number_and_no_class_are_never_right() -> None:
    hidden, w = torch.ones(6, 3, device=DEVICE), torch.ones(40, 3, device=DEVICE)
    hidden[4] = torch.nan
    targets = torch.tensor([0, 1, 39, 40, 5, -100], device=DEVICE)
    ahead, losses = ranks(hidden, w, None, targets, torch.ones(6, dtype=torch.bool, device=DEVICE), "ieee")
    assert ahead.tolist() == [0, 1, 39, 40, 40, 40]
    assert float(losses[4]) != float(losses[4])


@RUNS
def test_blocks_that_nobody_reads_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    read = torch.zeros(300, dtype=torch.bool, device=DEVICE)
    read[299] = True
    w, targets = draw(50, 8, seed=1), torch.full((300,), 3, device=DEVICE)
    monkeypatch.setattr(torch, "empty", lambda *shape, **more: torch.full(shape, -7, **more))
    ahead, _ = ranks(draw(300, 8), w, None, targets, read, "ieee")
    monkeypatch.undo()
    assert set(ahead[:288].tolist()) == {-7}
    outputs = draw(300, 8)[299].double() @ w.double().t()
    assert int(ahead[299]) == int((outputs > outputs[3]).sum())


class Parts(nn.Module):
    """Gives its last layer a part of something: the last position alone, or half of every one."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(30, 8), nn.Linear(8, 24), nn.Linear(12, 30)
        self.last = last

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.layer(self.table(numbers)).relu().unflatten(-1, (2, 12))
        outputs: Tensor = self.head(x[:, -1, 1] if self.last else x[..., 1, :])
        return outputs


class Tied(nn.Module):
    """An embedding whose table is the last layer's, too; a bias of its own behind it where wanted."""

    def __init__(self, added: bool = False) -> None:
        super().__init__()
        self.table, self.last, self.added = nn.Embedding(30, 8), nn.Linear(8, 30, bias=False), added
        self.last.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.table(tokens).relu())
        return outputs + 1.0 if self.added else outputs


def chain() -> nn.Module:
    return nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 30))


LEADING = [metrics.accuracy(ignore=0), metrics.top_k(5, ignore=0), metrics.accuracy()]
LOSSES = [token_cross_entropy, padded_cross_entropy]


def tokens(
    model: Callable[[], nn.Module] = chain, loss: Any = token_cross_entropy, also: Any = (), one: bool = False
) -> Task:
    """Predicts the next token at every position, or, if `one`, of all."""
    numbers = torch.randint(1, 30, (90, 7), generator=torch.Generator().manual_seed(0))
    numbers[::3, 3:] = -100 if one else 0
    samples = (numbers[:, :-1].clamp(min=0), numbers[:, -1 if one else slice(1, None)].contiguous())
    return Task(name="t", model=model, train=samples, test=samples, loss=loss, metric=LEADING[0], also=tuple(also))


def named(metric: Metric, number: int) -> Metric:
    return Metric(measure=metric.measure, name=f"metric {number}")


@RUNS
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        *((model, loss) for model in (chain, Tied, lambda: Parts(last=False)) for loss in LOSSES),
        (lambda: Parts(last=True), functional.cross_entropy),
    ],
)
def test_metrics_and_losses_are_those_of_written_outputs(
    model: Callable[[], nn.Module], loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    also = [named(metric, number) for number, metric in enumerate(LEADING)]
    task = tokens(model, loss, also, one=loss is functional.cross_entropy).to(torch.device(DEVICE))
    layout = task.layout()
    exact = ExecutionSettings(tf32=False)
    written = Evaluator(task, layout, batch=40, execution=exact)
    assert written._head is None, "few classes"
    monkeypatch.setattr(head, "LEAST_CLASSES", 10)
    unwritten = Evaluator(task, layout, batch=40, execution=exact)
    unwritten._head = Head.of(task, unwritten.module, precision="ieee")
    assert unwritten._head is not None
    weights, nothing = layout.flatten(task.initial_model(3)), torch.empty(0, device=DEVICE)
    found, wanted = (each.test(weights, nothing).values for each in (unwritten, written))
    assert found == pytest.approx(wanted, rel=1e-5)
    assert 0 < wanted[0] < wanted[2] < 1


class Changed(nn.Module):
    """A last layer whose outputs are not what its weights say."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.table, self.last, self.way = nn.Embedding(30, 8), nn.Linear(8, 30), way
        if way == "hook":
            self.last.register_forward_hook(lambda layer, given, found: found * 10)
        if way == "patch":
            self.last.forward = lambda values: values @ self.last.weight.t()  # type: ignore[method-assign]

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.way == "half"):
            outputs: Tensor = self.last(self.table(tokens))
        if self.way == "mask":
            outputs[..., 0] = -1e9
        return outputs


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (chain, True),
        (Tied, True),
        (lambda: Tied(added=True), False),
        (lambda: nn.Sequential(*chain(), nn.LogSoftmax(-1)), False),
        (lambda: nn.Embedding(30, 30), False),
        (lambda: Changed(""), True),
        *((lambda way=way: Changed(way), False) for way in ("hook", "patch", "mask", "half")),
    ],
)
def test_the_last_layer_is_found_where_its_outputs_are_the_models(model: Callable[[], nn.Module], found: bool) -> None:
    made = model()
    inputs, targets = tokens().test[:1]
    layer = last_linear(made, inputs, targets)
    assert (layer is not None) == found
    assert layer is None or layer is [m for m in made.modules() if isinstance(m, nn.Linear)][-1]
    assert sum(len(m._forward_hooks) for m in made.modules()) == (getattr(made, "way", "") == "hook")


def test_a_layer_that_works_twice_is_not_the_last() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(30, 30), nn.Linear(30, 30)

        def forward(self, numbers: Tensor) -> Tensor:
            outputs: Tensor = self.layer(self.layer(self.table(numbers)))
            return outputs

    assert last_linear(Twice(), *tokens().test[:1]) is None


@RUNS
@pytest.mark.parametrize(
    "task",
    [
        tokens(loss=lambda outputs, targets: token_cross_entropy(outputs, targets)),
        tokens(also=[metrics.perplexity(token_cross_entropy)]),
        tokens(lambda: Tied(added=True)),
    ],
)
def test_outputs_are_written_for_other_losses_measures_and_models(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 10)
    assert Head.of(tokens(), chain(), precision="ieee") is not None
    assert Head.of(task, task.initial_model(0), precision="ieee") is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_takes_it_by_itself_and_measures_what_a_cpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 10)
    task = tokens(also=[metrics.top_k(5, ignore=0)])
    moved = task.to(torch.device("cuda"))
    here, there = Evaluator(task, task.layout()), Evaluator(moved, moved.layout())
    assert there._head is not None
    assert there.batch == here.batch * module._ON_CUDA * module._UNWRITTEN
    for seed in range(3):  # eager, captured, replayed
        weights = task.layout().flatten(task.initial_model(seed))
        found = there.test(weights.cuda(), torch.empty(0, device="cuda"))
        assert found.values == pytest.approx(here.test(weights, torch.empty(0)).values, rel=2e-2)
