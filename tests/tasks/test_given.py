"""Data as users have it becomes the same samples, in memory or lazy, and the same run."""

import copy
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import fedgmr
from fedgmr.tasks.given import joined, settle, source_of
from fedgmr.tasks.partition import SampleOrder
from fedgmr.tasks.samples import Samples
from fedgmr.training.rules import PlainSGD
from fedgmr.training.work import LocalWork

DRAWS = torch.Generator().manual_seed(3)
X, Y = torch.randn(90, 4, generator=DRAWS), torch.randint(3, (90,), generator=DRAWS)


class Rows(Dataset[Any]):
    """Single samples, counted as they are read, and by which thread."""

    def __init__(self, inputs: Any = X, targets: Any = Y, *, known: bool = False) -> None:
        self.inputs, self.answers, self.threads = inputs, targets, list[str]()
        if known:
            self.targets = targets

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, at: int) -> tuple[Any, Any]:
        self.threads.append(threading.current_thread().name)
        return self.inputs[at], int(self.answers[at])


class Table:
    """What this package uses of a `datasets.Dataset`."""

    def __init__(self, columns: Mapping[str, Any], kind: str | None = None) -> None:
        self.columns, self.format = columns, {"type": kind}

    column_names = property(lambda self: list(self.columns))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def with_format(self, kind: str) -> "Table":
        return Table(self.columns, kind)

    def select_columns(self, columns: list[str]) -> "Table":
        return Table({name: self.columns[name] for name in columns}, self.format["type"])

    def add_column(self, name: str, values: list[Any]) -> "Table":
        return Table({**self.columns, name: values})

    def __getitem__(self, at: Any) -> dict[str, Any]:
        return {name: np.asarray(values)[at] for name, values in self.columns.items()}


class Summed(nn.Module):
    """Takes its inputs in two pieces, by place or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(2, 40), nn.Linear(2, 40), nn.Linear(40, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.last(torch.relu(self.one(left) + self.two(right)))  # type: ignore[no-any-return]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def samples_of(data: Any, *, lazy: bool | None = None, columns: Any = None) -> Samples:
    return settle(source_of(data, "train", columns), "train", lazy)


def final(data: Any, model: Any = net, *, method: str = "fedgmr", **more: Any) -> dict[str, Tensor]:
    """The model after a few ticks."""
    task = fedgmr.Task(name="given", model=model, train=data, test=data, holdout=10, **more)
    fleet = [fedgmr.Link(down=1.0, up=1.0, density=density) for density in (1.0, 0.5, 0.2)]
    training = {"steps": 3, "batch_size": 4, "learning_rate": 0.1}
    return fedgmr.simulate(task, method=method, fleet=fleet, seconds=1, training=training).model


GIVEN = {
    "arrays": (X.numpy(), Y.numpy().astype(np.int32)),
    "a tensor dataset": TensorDataset(X, Y),
    "pairs in a list": [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    "a dataset of arrays": Rows(X.numpy()),
    "a subset": Subset(Rows(torch.cat([X, X]), torch.cat([Y, Y]), known=True), list(range(90, 180))),
    "columns": [{"x": x, "label": int(y)} for x, y in zip(X.numpy(), Y, strict=True)],
    "a table": Table({"x": X.numpy(), "label": Y.numpy()}),
    "inputs to be read, with targets": (Subset(X, range(90)), Y),
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("lazy", [False, True])
def test_every_kind_has_the_same_samples(name: str, *, lazy: bool) -> None:
    samples = samples_of(GIVEN[name], lazy=lazy)
    assert (len(samples), samples.lazy, samples.targets.dtype) == (90, lazy, torch.int64)
    assert torch.equal(samples.targets, Y)
    places = torch.tensor([7, 7, 89, 0])
    inputs, targets = samples[places]
    assert torch.equal(inputs, X[places])
    assert torch.equal(targets, Y[places])
    part = samples.part(torch.arange(30, 50)).part(slice(5, 10))
    assert torch.equal(torch.cat([inputs for inputs, _ in part.split(2)]), X[35:40])
    assert [len(targets) for _, targets in part.split(2)] == [3, 2]
    assert isinstance(samples_of(GIVEN[name]).inputs, Tensor), "small, so in memory"


@pytest.mark.parametrize("method", ["fedgmr", "fedavg", "fedasync", "heterofl", "fjord", "fedrolex", "fiarse"])
def test_mappings_and_tuples_train_alike_with_every_method(method: str) -> None:
    by_place = (X[:, :2], X[:, 2:]), Y
    first = final(by_place, Summed, method=method)
    rows = [({"right": x[2:], "left": x[:2]}, int(y)) for x, y in zip(X, Y, strict=True)]
    for other in (final(rows, Summed, method=method), final(rows, Summed, method=method, lazy=True)):
        assert all(torch.equal(first[key], other[key]) for key in first)
    start = fedgmr.Task(name="given", model=Summed, train=by_place, test=by_place).initial_model(0).state_dict()
    assert not any(torch.equal(first[key].cpu(), start[key]) for key in first)


def test_inspection_takes_mappings() -> None:
    data = {"left": X[:, :2], "right": X[:, 2:]}, Y
    task = fedgmr.Task(name="given", model=Summed, train=data, test=data, lazy=True)
    assert fedgmr.inspect(task).groups == (
        (40, 1, ("one.weight", "one.bias", "two.weight", "two.bias", "last.weight")),
    )


def test_names_that_a_prepared_input_has() -> None:
    def halves(x: Tensor) -> dict[str, Tensor]:
        return {"left": x[:, :2], "right": x[:, 2:]}

    first = final((X, Y), Summed, prepare=halves)
    other = final(((X[:, :2], X[:, 2:]), Y), Summed)
    assert all(torch.equal(first[key], other[key]) for key in first)


def test_lazy_data_is_read_by_one_thread_and_gives_the_same_bits() -> None:
    rows = Rows(known=True)
    lazy = final(rows, lazy=True)
    before = final((X, Y))
    assert all(torch.equal(lazy[key], before[key]) for key in before)
    assert set(rows.threads) == {"MainThread", "reading_0"}
    read_here = rows.threads.count("MainThread")
    assert read_here == 2 * (1 + 2), "for each part the first sample, then two for their shape; targets were known"


class Shifted:
    """Adds to every sample what it drew."""

    def draw(self, draws: np.random.Generator, count: int, /) -> Any:
        return draws.random((count, 1), dtype=np.float32)

    def apply(self, inputs: Tensor, drawn: Tensor, /) -> Tensor:
        return inputs + drawn


@pytest.mark.parametrize("method", ["fedgmr", "heterofl", "fjord"])
def test_lazy_data_gives_the_same_bits_with_augmentation_threads_and_clients_that_validate(method: str) -> None:
    def net_with_norm() -> nn.Module:
        layers = (nn.Linear(4, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Dropout(0.3))
        return nn.Sequential(*layers, nn.Linear(60, 3))

    def rows(lazy: bool) -> Any:
        task = fedgmr.Task(
            name="given",
            model=net_with_norm,
            train=Rows(),
            test=Rows(X[:50], Y[:50]),
            lazy=lazy,
            prepare=lambda x: x / 2,
            augment=Shifted(),
            evaluation_batch=16,
        )
        result = fedgmr.simulate(
            task,
            method=method,
            fleet=[fedgmr.Link(down=1.0, up=1.0, density=density) for density in (1.0, 0.5, 0.2)],
            seconds=2,
            partition={"kind": "dirichlet", "alpha": 1.0, "min_samples": 10},
            training={"steps": 3, "batch_size": 4, "learning_rate": 0.1},
            evaluation={"validation": "clients", "client_holdout": 0.3},
            execution={"executor": "threaded", "threads": 2},
            progress=False,
        )
        return [{key: row[key] for key in row if key != "wall"} for row in result.history], result.model

    memory, read = rows(lazy=False), rows(lazy=True)
    assert len(memory[0]) > 1
    assert memory[0] == read[0]
    assert all(torch.equal(memory[1][key], read[1][key]) for key in memory[1])


def test_a_task_made_from_a_lazy_one_reads_as_it_does() -> None:
    task = fedgmr.Task(name="given", model=net, train=Rows(known=True), test=Rows(), lazy=True)
    moved = task.to(torch.device("cpu")).tested_on(9, seed=1)
    assert moved.train.inputs is task.train.inputs
    assert moved.test.inputs is task.test.inputs
    assert len(moved.test[:][0]) == len(moved.test) == 9


def test_targets_that_a_dataset_tells_wrongly_are_read() -> None:
    rows = Rows()
    rows.targets = 2 - Y
    assert torch.equal(samples_of(rows, lazy=True).targets, Y)


@pytest.mark.parametrize("told", [Y.byte(), Y.float(), [f"{at}.png" for at in range(90)], 3, None])
@pytest.mark.parametrize("lazy", [False, True])
def test_targets_are_those_that_samples_have(told: Any, *, lazy: bool) -> None:
    rows = Rows()
    rows.targets = told  # in another type, or something else altogether
    targets = samples_of(rows, lazy=lazy).targets
    assert targets.dtype == torch.int64
    assert torch.equal(targets, Y)


def test_images_have_their_channels_first() -> None:
    grey, colour = (np.arange(size, dtype=np.uint8).reshape(shape) for size, shape in ((6, (2, 3)), (18, (2, 3, 3))))
    made = samples_of([(Image.fromarray(grey), 0), (Image.fromarray(grey), 1)]).inputs
    assert made.tolist() == [[grey.tolist()]] * 2
    made = samples_of([(Image.fromarray(colour), 0)]).inputs
    assert made.dtype == torch.uint8
    assert torch.equal(made[0], torch.from_numpy(colour).permute(2, 0, 1))


def test_columns_by_name_or_found() -> None:
    table = Table({"a": X[:, :2].numpy(), "b": X[:, 2:].numpy(), "y": Y.numpy(), "words": ["w"] * 90})
    named = samples_of(table, columns=(("b", "a"), "y"))
    assert list(named.inputs) == ["b", "a"]
    assert torch.equal(named.inputs["a"], X[:, :2])
    assert torch.equal(samples_of(table, columns=("b", "y")).inputs, X[:, 2:])
    with pytest.raises(ValueError, match=r"train has the columns a, b, y, words \(words is text\): name them, as in"):
        samples_of(table)
    with pytest.raises(ValueError, match=r"columns names c: train has the columns a, b, y, words; name them, as in"):
        samples_of(table, columns=("c", "y"))
    assert "datasets" not in sys.modules, "recognised without the package"


def test_several_sources_one_after_the_other() -> None:
    sources = [source_of(data, "train") for data in (Rows(X[:20], Y[:20]), (X[20:50], Y[20:50]), Rows(X[50:], Y[50:]))]
    for lazy in (False, True):
        samples = settle(joined(sources), "train", lazy)
        inputs, targets = samples[torch.tensor([60, 3, 25, 3, 49])]
        assert torch.equal(inputs, X[[60, 3, 25, 3, 49]])
        assert torch.equal(targets, Y[[60, 3, 25, 3, 49]])
        assert torch.equal(samples.targets, Y)


def test_large_data_is_lazy_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgmr.tasks.given._LARGE", 90 * 16 - 1)  # a sample has four floats
    assert samples_of(Rows()).lazy
    assert not samples_of((X, Y)).lazy, "what is in memory stays there"
    assert not samples_of(Rows(), lazy=False).lazy
    monkeypatch.setattr("fedgmr.tasks.given._LARGE", 90 * 16)
    assert not samples_of(Rows()).lazy


@pytest.mark.parametrize("method", ["fedgmr", "heterofl"])
def test_targets_that_a_loss_leaves_out(method: str) -> None:
    left_out = torch.where(torch.arange(90) % 9 == 0, -100, Y)
    assert Samples(X, left_out).classes(slice(9), 256).tolist() == sorted(set(Y[1:9].tolist()))
    beyond = Samples(X, torch.where(left_out < 0, 255, left_out).to(torch.uint8))
    assert beyond.classes(slice(9), 256).tolist() == [*sorted(set(Y[1:9].tolist())), 255]
    assert beyond.classes(slice(9), 255).tolist() == sorted(set(Y[1:9].tolist()))
    assert beyond.classes(slice(9), 300).tolist() == beyond.classes(slice(9), 256).tolist(), (
        "more than the type can hold"
    )
    model = final((X, left_out), lambda: nn.Sequential(nn.Linear(4, 60), nn.ReLU(), nn.Linear(60, 3)), method=method)
    assert all(torch.isfinite(tensor).all() for tensor in model.values())


def test_targets_that_only_the_loss_leaves_out_are_told() -> None:
    some = torch.where(torch.arange(90) % 9 == 0, -100, Y)
    given: dict[str, Any] = {"name": "t", "model": lambda: nn.Linear(4, 3), "train": (X, Y)}
    with pytest.warns(UserWarning, match=r"t\.test has targets of -100, .*: give .*accuracy\(ignore=-100\)"):
        fedgmr.Task(**given, test=(X, some))
    with warnings.catch_warnings(action="error"):
        fedgmr.Task(**given, test=(X, Y))
        fedgmr.Task(**given, test=(X, some), metric=fedgmr.metrics.accuracy(ignore=-100))


@pytest.mark.parametrize("lazy", [False, True])
def test_data_stays_as_it_is_where_a_task_changes_it_in_place(*, lazy: bool) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets.sub_(1))

    def losses(targets: Tensor, **given: Any) -> list[float]:
        data = X.clone(), targets.clone()
        task = fedgmr.Task(name="t", model=lambda: copy.deepcopy(net), train=data, test=data, lazy=lazy, **given)
        result = fedgmr.simulate(
            task, seconds=6, training={"batch_size": 5}, evaluation={"every_seconds": 1}, progress=False
        )
        assert torch.equal(data[0], X)
        assert torch.equal(data[1], targets)
        return [row["loss"] for row in result.history]

    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    plain = losses(Y, prepare=lambda x: x * 2)
    assert len(plain) > 4
    assert losses(Y + 1, prepare=lambda x: x.mul_(2), loss=loss) == plain


def test_executors_for_one_tensor_in_memory_are_told() -> None:
    def single(data: Any, model: Any = net, **more: Any) -> bool:
        task = fedgmr.Task(name="given", model=model, train=data, test=data, **more)
        order = SampleOrder([np.arange(9)], seed=0, batch_size=2)
        return LocalWork(task=task, order=order, rule=PlainSGD(), steps=1, seed=0).single

    assert single((X, Y))
    assert single(Rows())
    assert not single(Rows(), lazy=True)
    assert not single(((X[:, :2], X[:, 2:]), Y), Summed)
    assert not single((X, Y), Summed, prepare=lambda x: (x[:, :2], x[:, 2:]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("lazy", [False, True])
def test_auto_takes_the_plain_loop_on_a_gpu(*, lazy: bool) -> None:
    data = ((X[:, :2], X[:, 2:]), Y)
    task = fedgmr.Task(name="given", model=Summed, train=data, test=data, holdout=10, lazy=lazy)
    link = fedgmr.Link(down=1.0, up=1.0)
    result = fedgmr.simulate(task, method="fedavg", fleet=[link], seconds=1, device="cuda", progress=False)
    assert result.recipe.execution.executor == "sequential"
    assert result.history[-1]["tick"] > 0
