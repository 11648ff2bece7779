"""Real tables and partitioners, where the packages `datasets` and `flwr-datasets` are installed."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedgmr

datasets = pytest.importorskip("datasets")
partitioners = pytest.importorskip("flwr_datasets.partitioner")

DRAWS = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=DRAWS), torch.randint(3, (60,), generator=DRAWS)


def task(**more: object) -> fedgmr.Task:
    owner = [f"user {at % 7}" for at in range(60)]
    table = datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist(), "owner": owner})
    given = {"train": table, "test": table.remove_columns("owner"), "columns": ("x", "label"), **more}
    return fedgmr.Task(name="table", model=lambda: nn.Linear(4, 3), **given)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_table(*, lazy: bool) -> None:
    made = task(users="owner", lazy=lazy)
    assert torch.equal(made.train[:][0], X)
    assert torch.equal(made.train.targets, Y)
    assert made.users.tolist() == [at % 7 for at in range(60)]
    assert torch.equal(made.test[torch.tensor([9, 2])][0], X[[9, 2]])


def test_images_of_a_table_have_their_channels_first() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = [np.full((2, 3, 3), shade, dtype=np.uint8) * np.array([1, 2, 3], dtype=np.uint8) for shade in range(6)]
    table = datasets.Dataset.from_dict(
        {"image": [image.fromarray(one) for one in pixels], "label": [0, 1, 2] * 2},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int32")}),
    )
    for lazy in (False, True):
        made = fedgmr.Task(
            name="pictures",
            model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 3)),
            train=table,
            test=table,
            prepare=lambda x: x / 255,
            lazy=lazy,
        )
        inputs, targets = made.train[:]
        assert inputs.dtype == torch.uint8
        assert inputs[:, :, 0, 0].tolist() == [[shade, 2 * shade, 3 * shade] for shade in range(6)]
        assert (inputs.shape, targets.tolist()) == ((6, 3, 2, 3), [0, 1, 2] * 2)


def test_partitioners_deal() -> None:
    naturally = partitioners.NaturalIdPartitioner(partition_by="owner")
    assert torch.bincount(task(users=naturally).users).tolist() == [9, 9, 9, 9, 8, 8, 8]
    by_class = partitioners.PathologicalPartitioner(num_partitions=3, partition_by="label", num_classes_per_partition=1)
    for train in (task().train, (X, Y)):
        made = task(train=train, users=by_class)
        classes = [set(made.train.targets[made.users == part].tolist()) for part in range(3)]
        assert sorted(map(len, classes)) == [1, 1, 1]
        assert len(made.train) == 60


def test_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "hugging_face.py"), run_name="__main__")
    first, *_, last = capsys.readouterr().out.splitlines()
    assert float(first.split()[1]) < 0.6 < 0.9 < float(last.split()[1])
