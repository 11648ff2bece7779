"""Mistakes in a task, told when it is made: arguments of a wrong kind, a model that cannot take the data, wrong labels.

A large model is tried without weights (PyTorch's meta device) where it can be, so that it costs nothing here. Read
next: `trial.py`, loss and metrics; `given.py`, which refuses data.
"""

import math
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.seeding import borrowed_generator
from fedgmr.settings.refusals import say_in_one_line
from fedgmr.submodels.inputs import Inputs, each, leaves, outputs_of
from fedgmr.tasks.collation import type_of
from fedgmr.tasks.metrics import Among, Metric, class_dim
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.trial import try_outputs

if TYPE_CHECKING:
    from fedgmr.tasks.task import Task

# Parameters up to which a model is tried with its weights: that sees wrong number formats, too, and takes less time
# than PyTorch needs to get ready for tensors without values.
_SMALL = 50_000_000
_IGNORED = -100  # the class that PyTorch's cross-entropy leaves out


def check_arguments(task: "Task") -> None:
    """Refuse arguments of a wrong kind."""
    name = task.name
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {name!r}: give the task a short name.")
    if isinstance(task.model, nn.Module):
        raise ValueError(
            f"{name}.model is a module, {type(task.model).__name__}: give a function that makes a fresh one, such as "
            "lambda: MyNet()."
        )
    for key in ("model", "loss", "prepare"):
        value = getattr(task, key)
        if not callable(value) and not (key == "prepare" and value is None):
            raise ValueError(f"{name}.{key} is {value!r}: give a function.")
    if not isinstance(task.metric, Metric) and not callable(task.metric):
        raise ValueError(f"{name}.metric is {task.metric!r}: give a fedgmr.Metric, such as fedgmr.metrics.mae().")
    if not isinstance(task.also, tuple) or not all(isinstance(metric, Metric) for metric in task.also):
        raise ValueError(f"{name}.also is {task.also!r}: give a tuple of fedgmr.Metric.")
    if task.augment is not None and not all(hasattr(task.augment, part) for part in ("draw", "apply")):
        raise ValueError(f"{name}.augment is {task.augment!r}: give an object with the methods draw and apply.")
    for key in ("keep", "prune"):
        value = getattr(task, key)
        if isinstance(value, str) or not all(isinstance(pattern, str) for pattern in value):
            raise ValueError(f"{name}.{key} is {value!r}: give a tuple of name patterns, such as ('head.*',).")
    if task.lazy not in (None, True, False):
        raise ValueError(f"{name}.lazy is {task.lazy!r}: give True, False or None.")
    if not isinstance(task.evaluation_batch, int) or task.evaluation_batch < 1:
        raise ValueError(f"{name}.evaluation_batch is {task.evaluation_batch!r}: give at least 1.")
    if isinstance(task.holdout, bool) or not isinstance(task.holdout, int | float):
        raise ValueError(f"{name}.holdout is {task.holdout!r}: give a number of samples, or a share between 0 and 1.")


def check_data(task: "Task") -> None:
    """Refuse data that the model, the loss or a metric cannot take, and classes that the model has no output for."""
    kinds = {part: _kind(getattr(task, part)) for part in ("train", "test")}
    if kinds["train"] != kinds["test"]:
        told = " and ".join(f"{task.name}.{part} has {kind}" for part, kind in kinds.items())
        raise ValueError(f"{told}: make both alike.")
    bare = _made(task)
    for part, samples in (("train", task.train), ("test", task.test)):
        inputs, targets = samples[:2]
        outputs = _outputs(task, bare, task.inputs(each(Tensor.cpu, inputs)))
        if outputs is not None:
            _check_range(task, part, samples.targets, outputs, targets)
            try_outputs(task, outputs, targets.cpu())
            if not samples.lazy:
                _check_numbers(task, part, samples)


def _kind(samples: Samples) -> str:
    """The kind of samples in words; sizes are left out, because those of texts and images may differ."""
    inputs, targets = samples[:1]
    names = f" by the names {', '.join(inputs)}" if isinstance(inputs, dict) else ""
    kinds = ", ".join(f"{type_of(tensor)} with {tensor.dim() - 1} dimensions" for tensor in leaves(inputs))
    return f"inputs{names} of {kinds}, and targets of {type_of(targets)} with {targets.dim() - 1} dimensions"


def _made(task: "Task") -> nn.Module:
    """The model, without weights where that is possible."""
    try:
        with borrowed_generator(), torch.device("meta"):
            first, second = task.model(), task.model()
    except Exception:
        try:
            first, second = task.initial_model(0), task.initial_model(0)
        except Exception as error:
            raise ValueError(
                f"{task.name}.model cannot make a module ({say_in_one_line(error)}): give a function that needs no "
                "arguments, such as lambda: MyNet()."
            ) from error
    if not isinstance(first, nn.Module):
        raise ValueError(f"{task.name}.model makes a {type(first).__name__}: let it return an nn.Module.")
    if first is second:
        raise ValueError(
            f"{task.name}.model returns the same module every time: let it make a fresh one, such as "
            "lambda: copy.deepcopy(net)."
        )
    return first.eval()


@torch.no_grad()
def _outputs(task: "Task", bare: nn.Module, prepared: Inputs) -> Tensor | None:
    """Outputs as the model's for these inputs, by their shape at least; None where only another device can tell."""
    found: Tensor | None = None
    if sum(parameter.numel() for parameter in bare.parameters()) > _SMALL:
        with suppress(Exception):  # of a model that looks at values, or has its weights already
            found = outputs_of(bare, each(lambda tensor: tensor.to("meta"), prepared))
    if found is None:
        model = task.initial_model(0).eval()
        try:
            found = outputs_of(model, prepared)
        except Exception as error:
            if torch.cuda.is_available():  # it may be for a GPU alone; a run tries it there
                return None
            raise ValueError(_failure(task, model, prepared, error)) from error
    if not isinstance(found, Tensor):
        raise ValueError(f"{task.name}.model returns {type(found).__name__}: let it return one tensor of outputs.")
    return torch.zeros(found.shape, dtype=found.dtype) if found.is_meta else found


def _failure(task: "Task", model: nn.Module, prepared: Inputs, error: Exception) -> str:
    reason = say_in_one_line(error).rstrip(".")
    shapes = " and ".join(f"{type_of(tensor)} {list(tensor.shape)}" for tensor in leaves(prepared))
    fix = "make model and data fit each other"
    weights = {p.dtype for p in model.parameters() if p.is_floating_point()}
    types = {tensor.dtype for tensor in leaves(prepared)}
    if len(weights) == 1 and not weights & types and not (types <= {torch.int64} and _looks_up(model)):
        wanted = str(next(iter(weights))).removeprefix("torch.")
        fix = f"the model computes in {wanted}; convert the inputs, by prepare=lambda x: x.to(torch.{wanted}) or before"
    return f"{task.name}.model cannot take two samples, inputs of {shapes} ({reason}): {fix}."


@torch.no_grad()
def _check_numbers(task: "Task", part: str, samples: Samples) -> None:
    """Refuse data that is NaN or infinite, unless the loss is a number all the same: a model may fill gaps."""
    before = 0
    for inputs, targets in samples.split(math.ceil(len(samples) / task.evaluation_batch)):
        numbers = [tensor.float() for tensor in (*leaves(inputs), targets) if tensor.is_floating_point()]
        gaps = sum(tensor.isfinite().logical_not().reshape(len(targets), -1).any(1).cpu() for tensor in numbers)
        if isinstance(gaps, Tensor) and gaps.any():
            outputs = outputs_of(task.initial_model(0).eval(), task.inputs(each(Tensor.cpu, inputs)))
            if not task.loss(outputs, targets.cpu()).isfinite():
                at = before + int(gaps.nonzero()[0])
                raise ValueError(
                    f"{task.name}.{part} holds NaN or infinity at sample {at}, and the loss there is no number: leave "
                    "such samples out, or fill them in."
                )
        before += len(targets)


def _looks_up(model: nn.Module) -> bool:
    return any(isinstance(layer, nn.Embedding) for layer in model.modules())


def _check_range(task: "Task", part: str, targets: Tensor, outputs: Tensor, like: Tensor) -> None:
    crossing = task.loss is functional.cross_entropy or isinstance(task.loss, nn.CrossEntropyLoss)
    if not crossing or targets.is_floating_point() or outputs.dim() < 2:
        return
    classes = outputs.shape[class_dim(outputs, like)]
    ignored = getattr(task.loss, "ignore_index", _IGNORED)
    wrong = torch.nonzero(((targets < 0) | (targets >= classes)) & (targets != ignored))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise ValueError(
            f"{task.name}.{part} has the target {int(targets[at])} at sample {at[0]}, and the model has outputs for "
            f"classes 0 to {classes - 1}: count classes from 0, or give the model more outputs."
        )
    counting = next((m.name for m in task.metrics if isinstance(m.measure, Among) and m.measure.ignore is None), None)
    if part == "test" and counting is not None and bool((targets == ignored).any()):
        warnings.warn(
            f"{task.name}.test has targets of {ignored}, which the loss leaves out and {counting} counts as wrong: "
            f"give fedgmr.metrics.accuracy(ignore={ignored}).",
            stacklevel=2,
        )
