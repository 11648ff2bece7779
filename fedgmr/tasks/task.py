"""Task: what is learned. Model + data + loss + metric, as one object a user writes in about 20 lines.

`examples/own_task.py` shows one. Built-in tasks are functions that return a Task; `named_task` finds them, or a
user's own by import path "package.module:function".
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.seeding import borrowed_generator, derived_seed, generator
from fedgmr.settings.build import imported
from fedgmr.settings.refusals import SettingError, suggestion
from fedgmr.submodels.inputs import Inputs
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.checks import check_arguments, check_data
from fedgmr.tasks.columns import Columns
from fedgmr.tasks.given import settle, source_of
from fedgmr.tasks.metrics import Measure, Metric, top1
from fedgmr.tasks.owners import training_samples
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.trial import check_metrics

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
Drawn = NDArray[np.float32]  # the numbers that an augmentation drew: [samples, as many as it needs]


class Augmentation(Protocol):
    """Random changes to the inputs of a training mini-batch: first the draws, then the changes."""

    def draw(self, draws: np.random.Generator, count: int, /) -> Drawn:
        """The numbers for `count` samples, one row each; all that is random."""

    def apply(self, inputs: Any, drawn: Tensor, /) -> Inputs:
        """The prepared inputs, changed; a function of tensors on one device that never waits for their values."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Model, data, loss and metric."""

    name: str  # short, for directories and tables
    model: Callable[[], nn.Module]  # makes a fresh module; called under the run's seed
    train: Samples | Any  # of all clients together; a partition deals them out; docs/own-data.md has what it takes
    test: Samples | Any  # the global model is evaluated on these
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy  # mean loss of (outputs, targets)
    metric: Metric | Measure = top1  # the leading one; a bare measure is an accuracy, a share of which more is better
    also: tuple[Metric, ...] = ()  # recorded beside it
    prepare: Callable[[Any], Inputs] | None = None  # applied to every batch's inputs on the device: bytes to floats
    augment: Augmentation | None = None  # changes the prepared inputs of every training batch at random
    users: Tensor | Any = None  # of every training sample, or the name of a column, or a partitioner: who owns it
    holdout: int | float = 0.05  # training samples (a number or a share) the server holds out for validation
    keep: tuple[str, ...] = ()  # name patterns of parameters always kept although their layer is prunable
    prune: tuple[str, ...] = ()  # name patterns of parameters that are prunable although the rule keeps them
    columns: Columns | None = None  # of tables: the inputs' (one, or several), the target's; None: as they are named
    lazy: bool | None = None  # whether inputs are read when they are needed; None: datasets of more than 2 GiB
    evaluation_batch: int = 1000  # most samples in one forward pass of an evaluation, for memory alone
    title: str = ""  # for people; defaults to the name
    stand_in: str | None = None  # a sentence where the data stands in for other data; repeated in every output

    def __post_init__(self) -> None:
        check_arguments(self)
        where, settled = f"{self.name}.test", isinstance(self.train, Samples)
        test = settle(source_of(self.test, where, self.columns, self.users), where, self.lazy)
        train, users = training_samples(self.name, self.train, self.users, test, self.columns, self.lazy)
        for key, value in {"train": train, "test": test, "users": users}.items():
            object.__setattr__(self, key, value)
        check_metrics(self.name, self.metrics, self.loss, self.train.targets)
        if not settled:  # another task made from one that was tried
            check_data(self)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {len(self.train):,} training and {len(self.test):,} test samples)"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics, the leading one first."""
        leading = self.metric if isinstance(self.metric, Metric) else Metric(measure=self.metric)
        return (leading, *self.also)

    def led_by(self, name: str) -> "Task":
        """The same task with the metric of this name as the leading one."""
        metrics = {metric.name: metric for metric in self.metrics}
        if name not in metrics:
            known = suggestion(name, list(metrics))
            raise SettingError(f"evaluation.metric is {name!r}, and {self.name} does not record it: {known}")
        leading = metrics.pop(name)
        return dataclasses.replace(self, metric=leading, also=tuple(metrics.values()))

    def layout(self) -> Layout:
        """The flat layout of the model."""
        return self._layout

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.initial_model(0), keep=self.keep, prune=self.prune)

    def initial_model(self, seed: int) -> nn.Module:
        """A fresh model whose initial weights belong to `seed`."""
        with borrowed_generator():
            torch.manual_seed(derived_seed(seed, "model"))
            return self.model()

    def inputs(self, batch: Inputs) -> Inputs:
        """The model's inputs for a batch of stored inputs."""
        return batch if self.prepare is None else self.prepare(batch)

    def example(self, count: int) -> Inputs:
        """The model's inputs for the first training samples."""
        return self.inputs(self.train[:count][0])

    def hold_out(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(training indices for the clients, training indices the server validates on), drawn by the seed."""
        total = len(self.train)
        count = self.holdout if isinstance(self.holdout, int) else round(self.holdout * total)
        if not 0 < count < total:
            raise ValueError(f"{self.name}.holdout is {self.holdout}: it must leave samples on both sides of {total}.")
        order = generator(seed, "holdout").permutation(total)
        return np.sort(order[count:]), np.sort(order[:count])

    def tested_on(self, count: int, seed: int) -> "Task":
        """The same task with `count` of its test samples, drawn by the seed; the title says so."""
        total = len(self.test)
        if count >= total:
            return self
        chosen = torch.from_numpy(np.sort(generator(seed, "test").permutation(total)[:count]))
        title = f"{self.title or self.name}, {count:,} of {total:,} test samples"
        return dataclasses.replace(self, test=self.test.part(chosen.to(self.test.device)), title=title)

    def to(self, device: torch.device) -> "Task":
        """The same task with its data on `device`."""
        return dataclasses.replace(self, train=self.train.to(device), test=self.test.to(device))


def named_task(name: str, options: Mapping[str, Any], seed: int) -> Task:
    """The task `name` (built in, or an import path) made with `options` under `seed`."""
    factory = task_factory(name)
    try:
        accepted = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:  # no function, or one that tells nothing of itself
        raise SettingError(f"task.name is {name!r}: give a function that returns a fedgmr Task.") from error
    open_ended = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for key in options:
        if key == "seed" or (key not in accepted and not open_ended):
            known = [k for k in accepted if k != "seed"]
            raise SettingError(f"task.options.{key} is not a known key: {suggestion(key, known, 'task.options.')}")
    given = {**options, "seed": seed} if "seed" in accepted or open_ended else dict(options)
    for key, parameter in accepted.items():
        if parameter.default is parameter.empty and parameter.kind in _NAMED and key not in given:
            raise SettingError(f"task.options.{key} is missing: {name} needs it.")
    task = factory(**given)
    if not isinstance(task, Task):
        raise SettingError(f"task.name is {name!r}, which returned {type(task).__name__}: return a fedgmr Task.")
    return task


def task_factory(name: str) -> Callable[..., Task]:
    """The function that makes the task `name`."""
    from fedgmr.tasks import BUILT_IN

    if ":" in name:
        return imported(name, "task.name")  # type: ignore[no-any-return]
    if name not in BUILT_IN:
        raise SettingError(f"task.name is {name!r}: {suggestion(name, list(BUILT_IN))}")
    return getattr(importlib.import_module(f"fedgmr.tasks.{name}"), name)  # type: ignore[no-any-return]
