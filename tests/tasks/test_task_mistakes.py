"""Mistakes in the arguments of a task: one sentence each, when the task is made, with the argument and the fix."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fedgmr
from tasks.test_given import Table

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
NET = nn.Linear(4, 3)
GAPS = torch.where(torch.arange(48).reshape(12, 4) == 29, float("nan"), X)  # at sample 7
ROWS = [(x, int(y)) for x, y in zip(X, Y, strict=True)]
TEXTS = [{"text": "a b", "label": 0}, {"text": "c d", "label": 1}]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(ROWS)


class Noisy(TensorDataset):
    def __getitem__(self, at: int) -> Any:
        return self.tensors[0][at] + random.random(), self.tensors[1][at]


class DatasetDict(dict[str, Any]):
    """As Hugging Face's: the splits by name."""


class Split(nn.Linear):
    """Returns two tensors."""

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs), inputs


class OwnWord(nn.Linear):
    """Looks at values, so it must be tried with weights."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * (2 if inputs.sum() > 0 else 1)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    # The model.
    "a module": (
        {"model": NET},
        r"t\.model is a module, Linear: give a function that makes a fresh one, such as lambda",
    ),
    "one module for all": ({"model": lambda: NET}, r"t\.model returns the same module every time: let it make a fresh"),
    "no function": ({"model": "resnet18"}, r"t\.model is 'resnet18': give a function\."),
    "a class that needs arguments": (
        {"model": nn.Linear},
        r"t\.model cannot make a module \(.*missing 2 required.*\): give a function that needs no arguments",
    ),
    "no module made": ({"model": lambda: 3}, r"t\.model makes a int: let it return an nn\.Module\."),
    "two outputs": ({"model": lambda: Split(4, 3)}, r"t\.model returns tuple: let it return one tensor of outputs\."),
    # The data's kind.
    "a file's name": (
        {"train": "train.csv"},
        r"t\.train is 'train\.csv': read the file first; give \(inputs, targets\)",
    ),
    "a path": ({"test": Path("x") / "y"}, r"t\.test is 'x/y': read the file first"),
    "nothing": ({"train": None}, r"t\.train is a NoneType: give \(inputs, targets\), a map-style dataset or a table"),
    "inputs alone": ({"train": X}, r"t\.train is a Tensor alone: give \(inputs, targets\)\."),
    "a loader": (
        {"train": DataLoader(TensorDataset(X, Y))},
        r"t\.train is a DataLoader: .*give its dataset, loader\.d",
    ),
    "a stream": ({"train": Stream()}, r"t\.train is a Stream, which has no sample i: give"),
    "three parts": (
        {"train": (X, Y, Y)},
        r"t\.train is a tuple of 3 entries: give \(inputs, targets\); inputs may be a",
    ),
    "an empty sample": ({"train": [()]}, r"t\.train\[0\] is 0 entries: let every sample be \(input, target\)"),
    "no clients": ({"train": {}}, r"t\.train is empty: give a dataset per client, at least one\."),
    "arrays by name": ({"train": {"x": X, "y": Y}}, r"t\.train is a dict: give \(inputs, targets\)"),
    "all splits": (
        {"train": DatasetDict(train=ROWS)},
        r"t\.train is a DatasetDict of train: give one of them, as data\[",
    ),
    "samples of three": (
        {"train": [(X[0], 1, 2)]},
        r"t\.train\[0\] is 3 entries: let every sample be \(input, target\)",
    ),
    "samples without targets": ({"train": list(X)}, r"t\.train\[0\] is Tensor: let every sample be \(input, target\)"),
    "no samples": ({"train": []}, r"t\.train has 0 inputs and 0 targets: give as many of each, at least one\."),
    "random transforms": (
        {"train": Noisy(X, Y), "lazy": True},
        r"t\.train draws random numbers while a sample is read",
    ),
    "words": (
        {"train": (np.array(["a"] * 12), Y)},
        r"t\.train's inputs holds entries of type <U1: give tensors or arrays of n",
    ),
    "shapes": (
        {"train": [(X[0], 0), (X[1, :3], 1)]},
        r"t\.train's inputs has the shapes \(4,\) and \(3,\): give all sam",
    ),
    "unclear columns": (
        {"train": TEXTS},
        r"t\.train has the columns text, label \(text is text\): name them, as in col",
    ),
    "a wrong column": (
        {"train": TEXTS, "columns": ("x", "label")},
        r"columns names x: t\.train has the columns text, la",
    ),
    "one column": ({"train": TEXTS, "columns": "text"}, r"columns is 'text': give the inputs and the target, as in"),
    "rows of different lengths": (
        {"train": Table({"x": np.array([[1], [1, 2]], dtype=object), "y": np.zeros(2)})},
        r"t\.train\['x'\] holds rows of different lengths: give tensors or arrays of numbers of one type\.",
    ),
    "lists of different lengths": (
        {"train": ([[1.0], [1.0, 2.0]], [0, 1])},
        r"t\.train's inputs holds rows of different lengths: give tensors",
    ),
    "a list of words": ({"train": (["a", "b"], [0, 1])}, r"t\.train's inputs holds entries of type <U1: give tensors"),
    "numbers of two types": (
        {"train": (np.array([[True, 1.5]] * 12, dtype=object), Y)},
        r"t\.train's inputs holds entries of type bool and float: give tensors or arrays of numbers of one type\.",
    ),
    "no number among them": (
        {"train": [(X[0], 1), (X[1], None)]},
        r"t\.train's targets make no tensor \(.*NoneType\): give a number for each\.",
    ),
    "real numbers after whole ones": (
        {"train": [(X[0], target) for target in (1, 2, 2.5)]},
        r"t\.train has samples of int64 and of float32: give all one type of numbers\.",
    ),
    "another shape in a later chunk": (
        {"train": [(X[0], 0)] * 512 + [(X[0, :3], 0)] * 512},
        r"t\.train has samples of the shapes \(4,\) and \(3,\): give all one shape, or pad them\.",
    ),
    "one value in place of several": (  # which PyTorch would repeat
        {"train": [(X[0], 0)] * 512 + [(X[0, :1], 0)] * 512},
        r"t\.train has samples of the shapes \(4,\) and \(1,\): give all one shape",
    ),
    "a column that comes and goes": (
        {"train": [{"x": X[0], "y": 1}, {"y": 1}]},
        r"t\.train has a sample that lacks a part \('x'\): let all samples be as t\.train\[0\]\.",
    ),
    "a sample without target": (
        {"train": [(X[0], 1), (X[0],)]},
        r"t\.train has a sample that lacks a part \(tuple index out of range\): let all samples be as",
    ),
    # Lengths, types, ranges.
    "fewer targets": ({"train": (X, Y[:5])}, r"t\.train has 12 inputs and 5 targets: give as many of each"),
    "uneven inputs": ({"train": ((X, X[:7]), Y)}, r"t\.train's inputs have 7 and 12 entries: give as many in each\."),
    "a class too many": (
        {"train": (X, Y + 1)},
        r"t\.train has the target 3 at sample 2, .* for classes 0 to 2: count cl",
    ),
    "a class below": (
        {"test": (X, Y - 1)},
        r"t\.test has the target -1 at sample 0, and the model has outputs for clas",
    ),
    "double inputs": (
        {"train": (X.double(), Y), "test": (X.double(), Y)},
        r"t\.model cannot take two samples, inputs of float64 \[2, 4\] \(.*\): the model computes in float32; conver",
    ),
    "bytes": (
        {"train": (X.byte(), Y), "test": (X.byte(), Y)},
        r"inputs of uint8 .* prepare=lambda x: x\.to\(torch\.floa",
    ),
    "too wide inputs": (
        {"train": (X[:, :3], Y), "test": (X[:, :3], Y)},
        r"t\.model cannot take two samples, inputs of float32 \[2, 3\] \(.*\): make model and data fit each other\.",
    ),
    "too wide for a model with values": (
        {"model": lambda: OwnWord(5, 3)},
        r"t\.model cannot take two samples, inputs of float32 \[2, 4\] \(.*\): make model and data fit each other\.",
    ),
    "sparse inputs": (
        {"train": (X.to_sparse(), Y)},
        r"t\.train's inputs is a sparse tensor: give it dense, by to_dense\(\)\.",
    ),
    "a gap in the inputs": (
        {"train": (GAPS, Y), "evaluation_batch": 5},
        r"t\.train holds NaN or infinity at sample 7, and the loss there is no number: leave such samples out, or fill",
    ),
    "a gap in the targets": (
        {"train": (X, GAPS[:, :3]), "test": (X, X[:, :3]), "loss": nn.MSELoss(), "metric": fedgmr.metrics.mae()},
        r"t\.train holds NaN or infinity at sample 7, and the loss there is no number",
    ),
    "different test data": (
        {"test": (X.double(), Y)},
        r"t\.train has inputs of float32 with 1 dimensions, .* and t\.test has inputs of float64 with .*: make both ",
    ),
    # Users.
    "too few users": ({"users": ["a", "b"]}, r"t\.users has 2 entries: give one per training sample, 12\."),
    "users twice": (
        {"train": [(X, Y), (X, Y)], "users": [0] * 24},
        r"t\.users is given and t\.train has a dataset per",
    ),
    "no such column": ({"users": "writer"}, r"t\.users is 'writer': t\.train has no columns; name one of them"),
    # The rest.
    "no name": ({"name": ""}, r"name is '': give the task a short name\."),
    "no loss": ({"loss": "cross_entropy"}, r"t\.loss is 'cross_entropy': give a function\."),
    "no metric": ({"metric": "accuracy"}, r"t\.metric is 'accuracy': give a fedgmr\.Metric"),
    "metrics in a list": ({"also": ["mae"]}, r"t\.also is \['mae'\]: give a tuple of fedgmr\.Metric\."),
    "an augmentation": ({"augment": abs}, r"t\.augment is <.*abs>: give an object with the methods draw and apply\."),
    "one pattern": (
        {"keep": "weight"},
        r"t\.keep is 'weight': give a tuple of name patterns, such as \('head\.\*',\)\.",
    ),
    "lazy words": ({"lazy": "yes"}, r"t\.lazy is 'yes': give True, False or None\."),
    "no batch": ({"evaluation_batch": 0}, r"t\.evaluation_batch is 0: give at least 1\."),
    "a share in words": (
        {"holdout": "5%"},
        r"t\.holdout is '5%': give a number of samples, or a share between 0 and 1",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_one_sentence(name: str) -> None:
    given, words = MISTAKES[name]
    good: dict[str, Any] = {"name": "t", "model": lambda: nn.Linear(4, 3), "train": (X, Y), "test": (X, Y)}
    fedgmr.Task(**good)
    with pytest.raises(ValueError, match=words) as refused:
        fedgmr.Task(**(good | given))
    text = str(refused.value)
    assert "\n" not in text
    assert text.endswith(".")


def test_nothing_is_refused_that_works() -> None:
    ignored = torch.where(Y == 0, -100, Y)
    for given in (
        {"train": (X, ignored)},  # left out of the cross-entropy
        {"model": lambda: OwnWord(4, 3)},
        {"train": (X.byte(), Y), "test": (X.byte(), Y), "prepare": lambda x: x.float() / 255},
        {"model": lambda: nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(20, 3))}
        | {part: (X.abs().long(), Y) for part in ("train", "test")},
        {"train": (GAPS, Y), "prepare": torch.nan_to_num_},
        {"train": (X[:, None].expand(-1, 5, -1), Y)} | {"test": (X[:, None], Y), "prepare": lambda x: x.mean(1)},
    ):
        good: dict[str, Any] = {"name": "t", "model": lambda: nn.Linear(4, 3), "train": (X, Y), "test": (X, Y)}
        assert len(fedgmr.Task(**(good | given)).train) == 12


def test_a_large_model_is_tried_without_its_weights() -> None:
    devices = []

    def large() -> nn.Module:
        devices.append(torch.empty(0).device.type)
        return nn.Sequential(nn.Linear(4, 8_000_000), nn.Linear(8_000_000, 3))

    fedgmr.Task(name="t", model=large, train=(X, Y), test=(X, Y))
    assert devices == ["meta", "meta"]
    with pytest.raises(ValueError, match="target 3 at sample 2"):
        fedgmr.Task(name="t", model=large, train=(X, Y + 1), test=(X, Y))
    assert set(devices) == {"meta"}
