"""Data that belongs to clients already: datasets per client, users, partitioners."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedgmr
from fedgmr.experiments.arguments import recipe_of
from fedgmr.experiments.assembly import assemble, resolve
from fedgmr.tasks.partition import IID, ByUser
from tasks.test_given import Table

X, Y = torch.arange(24.0).view(12, 2), torch.arange(12) % 3
PARTS = (slice(0, 5), slice(5, 6), slice(6, 12))
OWNERS = [0] * 5 + [1] + [2] * 6


class Halves:
    """What this package uses of a partitioner of `flwr-datasets`; the last sample goes to nobody."""

    num_partitions = 2

    def __init__(self) -> None:
        self._dataset: Any = None

    @property
    def dataset(self) -> Any:
        return self._dataset

    @dataset.setter
    def dataset(self, value: Any) -> None:
        if self._dataset is not None:
            raise ValueError("assigned only once")
        self._dataset = value

    def load_partition(self, number: int) -> Mapping[str, Any]:
        columns: dict[str, Any] = self.dataset[np.arange(number, 11, 2)]
        return columns


def task(train: Any, **more: Any) -> fedgmr.Task:
    return fedgmr.Task(name="owned", model=lambda: nn.Linear(2, 3), train=train, test=(X, Y), **more)


def dealt(made: fedgmr.Task, clients: int, **sections: Any) -> list[list[int]]:
    """The samples that each client gets, where nothing is held out."""
    fleet = [fedgmr.Link(down=1.0, up=1.0)] * clients
    sections = {"evaluation": {"validation": "test"}, "training": {"batch_size": 1}, **sections}
    sections["execution"] = {"executor": "sequential"}
    recipe = recipe_of(made, "fedavg", fleet, {"seconds": 1.0}, sections)
    run = assemble(resolve(recipe, made), made)
    order: Any = run.fleet.executor
    return [part.tolist() for part in order.work.order.parts]


PER_CLIENT = {
    "pairs in a list": [(X[part], Y[part]) for part in PARTS],
    "named pairs": {name: (X[part], Y[part]) for name, part in zip("zxy", PARTS, strict=True)},
    "datasets": [TensorDataset(X[part], Y[part]) for part in PARTS],
    "lists of samples": [[(X[at], int(Y[at])) for at in range(part.start, part.stop)] for part in PARTS],
    "tables": {name: Table({"x": X[p].numpy(), "label": Y[p].numpy()}) for name, p in zip("abc", PARTS, strict=True)},
}


@pytest.mark.parametrize("name", PER_CLIENT)
@pytest.mark.parametrize("lazy", [None, True])
def test_a_dataset_per_client(name: str, *, lazy: bool | None) -> None:
    made = task(PER_CLIENT[name], lazy=lazy)
    assert made.users.tolist() == OWNERS
    assert made.train.lazy == bool(lazy)
    assert torch.equal(made.train[:][0], X)
    assert torch.equal(made.train.targets, Y)
    assert dealt(made, 3) == [[0, 1, 2, 3, 4], [5], [6, 7, 8, 9, 10, 11]], "by user is the default"
    assert dealt(made, 2) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11]], "the last takes the remainder"


@pytest.mark.parametrize(
    ("users", "numbers"),
    [
        (["bob"] * 7 + ["al"] * 5, [0] * 7 + [1] * 5),  # in the order they are met
        (np.array([7] * 7 + [4] * 5), [7] * 7 + [4] * 5),
        (torch.tensor([7] * 7 + [4] * 5), [7] * 7 + [4] * 5),
        ([("a", 1)[at % 2] for at in range(12)], [0, 1] * 6),
    ],
)
def test_users_of_any_kind(users: Any, numbers: list[int]) -> None:
    made = task((X, Y), users=users)
    assert made.users.tolist() == numbers
    assert made.users.dtype == torch.int64
    assert dealt(made, 2, partition="iid") != dealt(made, 2)


def test_the_default_partition() -> None:
    link = [fedgmr.Link(down=1.0, up=1.0)]
    assert recipe_of(task((X, Y), users=OWNERS), "fedavg", link, {"seconds": 1.0}, {}).partition == ByUser()
    assert recipe_of(task((X, Y)), "fedavg", link, {"seconds": 1.0}, {}).partition == IID()


def test_a_column_names_the_user() -> None:
    rows = [{"x": X[at], "y": int(Y[at]), "writer": "abcd"[at // 3]} for at in range(12)]
    table = Table({"x": X.numpy(), "y": Y.numpy(), "writer": ["abcd"[at // 3] for at in range(12)]})
    for data in (rows, table):
        made = task(data, users="writer", columns=("x", "y"))
        assert made.users.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert torch.equal(task(data, users="writer").train[:][0], X), "which is then no input"
    with pytest.raises(ValueError, match=r"owned\.users is 'who': owned\.train has the columns x, y, writer; name"):
        task(rows, users="who", columns=("x", "y"))


def test_a_partitioner_deals() -> None:
    partitioner = Halves()
    table = Table({"x": X.numpy(), "label": Y.numpy()})
    for _ in range(2):  # the same object serves again
        made = task(table, users=partitioner)
        assert made.users.tolist() == [0, 1] * 5 + [0]
        assert torch.equal(made.train[:][0], X[:11])
        assert dealt(made, 2) == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]]
    partitioner.dataset = table
    with pytest.raises(ValueError, match=r"users is a Halves that has a dataset already \(assigned only once\): "):
        task(table, users=partitioner)
