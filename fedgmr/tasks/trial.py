"""Losses and metrics that cannot belong together, told before the first step.

Some are seen when a task is made; the rest by one forward pass over two samples before a run. PyTorch would broadcast
shapes that do not fit and go on, and an accuracy of real numbers would be 0 for ever.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.settings.refusals import say_in_one_line
from fedgmr.submodels.inputs import Inputs, leaves, outputs_of
from fedgmr.tasks.collation import type_of
from fedgmr.tasks.metrics import Metric, class_dim

if TYPE_CHECKING:
    from fedgmr.tasks.task import Task

_OF_NUMBERS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
_INSTEAD = "a metric such as fedgmr.metrics.mae()"


def check_metrics(
    task: str, metrics: Sequence[Metric], loss: Callable[[Tensor, Tensor], Tensor], targets: Tensor
) -> None:
    """Refuse metrics of one name, and those that count right classes where there are none."""
    names = [metric.name for metric in metrics]
    if len(set(names)) < len(names):
        raise ValueError(f"{task} has the metrics {', '.join(names)}: give each a name of its own.")
    counting = [metric.name for metric in metrics if metric.classes]
    if counting and targets.is_floating_point():
        raise ValueError(
            f"{task} has targets of type {type_of(targets)} and the metric {counting[0]}, "
            f"which counts right classes: give whole numbers as targets, or {_INSTEAD}."
        )
    word = getattr(loss, "__name__", type(loss).__name__)
    if counting and word in _OF_NUMBERS:
        raise ValueError(
            f"{task} has the loss {word} and the metric {counting[0]}, which counts right classes: give {_INSTEAD}."
        )


@torch.no_grad()
def try_task(task: "Task", model: nn.Module) -> None:
    """Pass two training samples through a model, the loss and the metrics; ValueError where they do not fit."""
    inputs, targets = task.train[:2]
    training = model.training
    try:
        outputs = outputs_of(model.eval(), task.inputs(inputs))
    except Exception as error:
        raise ValueError(_failure(task, "model", inputs, None, error)) from error
    finally:
        model.train(training)
    if not isinstance(outputs, Tensor):
        raise ValueError(f"{task.name}.model returns {type(outputs).__name__}: let it return one tensor of outputs.")
    try_outputs(task, outputs, targets)


@torch.no_grad()
def try_outputs(task: "Task", outputs: Tensor, targets: Tensor) -> None:
    """Try the loss and the metrics on the outputs for two samples; ValueError where they do not fit."""
    _try_loss(task, outputs, targets)
    for metric in task.metrics:
        if metric.classes:
            _check_classes(task, metric, outputs, targets)
        try:
            total, count = metric.measure(outputs, targets)
        except Exception as error:
            raise ValueError(_failure(task, f"metric {metric.name}", outputs, targets, error)) from error
        if not isinstance(total, Tensor | int | float) or not _is_count(count):
            raise ValueError(
                f"{task.name}'s metric {metric.name} returns {_kind(total)} and {_kind(count)}: return the sum over "
                "the batch as a tensor, and the number counted as an int or as a tensor of one whole number."
            )
        _check_value(task, metric, torch.as_tensor(total), torch.as_tensor(count))


def _is_count(count: object) -> bool:
    if isinstance(count, Tensor):
        return count.numel() == 1 and not count.is_floating_point()
    return isinstance(count, int)


def _kind(found: object) -> str:
    if isinstance(found, Tensor) and found.numel() > 1:
        return f"a Tensor of shape {list(found.shape)}"
    return f"a Tensor of {type_of(found)}" if isinstance(found, Tensor) else type(found).__name__


def _try_loss(task: "Task", outputs: Tensor, targets: Tensor) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using a target size")  # it would be broadcast
            loss = task.loss(outputs, targets)
    except Exception as error:
        raise ValueError(_failure(task, "loss", outputs, targets, error)) from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"{task.name}.loss returns {found}: let it return the mean over the batch as one number.")


def _check_classes(task: "Task", metric: Metric, outputs: Tensor, targets: Tensor) -> None:
    dim, shape = class_dim(outputs, targets), list(outputs.shape)
    if outputs.dim() and shape[dim] == 1:
        raise ValueError(
            f"{task.name}.model has one output for each target (shape {shape}) and the metric {metric.name} takes the "
            f"largest of several: give one output for each class, or a metric of your own."
        )
    either = outputs.dim() > 2 and targets.shape == outputs.shape[:1] + outputs.shape[2:] == outputs.shape[:-1]
    if either and task.loss is functional.cross_entropy:
        raise ValueError(
            f"{task.name}.model has outputs of shape {shape}, with classes in the second dimension for cross_entropy "
            f"and in the last for the metric {metric.name}: give a metric of your own."
        )


def _check_value(task: "Task", metric: Metric, total: Tensor, count: Tensor) -> None:
    """Refuse a value that the metric cannot have: most often an error that is not declared as one."""
    if total.is_meta or count.is_meta:
        return
    value = metric.pooled(total.double().reshape(-1).tolist(), int(count))
    (low, high), slack = metric.scores, 1e-6
    if math.isfinite(value) and not low - slack <= metric.score(value) <= high + slack:
        unit = f"the unit {metric.unit}" if metric.share and metric.range is None else "its range"
        raise ValueError(
            f"{task.name}'s metric {metric.name} is {value:g} on two samples, which {unit} rules out: give "
            "fedgmr.Metric(measure=..., name=..., unit=..., higher_is_better=...) as it is."
        )


def _failure(task: "Task", part: str, given: Inputs, targets: Tensor | None, error: Exception) -> str:
    reason = say_in_one_line(error).rstrip(".")
    shapes = " and ".join(str(list(tensor.shape)) for tensor in leaves(given))
    told = f"inputs of shape {shapes}" if targets is None else f"outputs of shape {shapes}"
    if targets is not None:
        told += f" and {type_of(targets)} targets of shape {list(targets.shape)}"
    return f"{task.name}'s {part} fails on two samples, with {told} ({reason}): make them fit each other."
