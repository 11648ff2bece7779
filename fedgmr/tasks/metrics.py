"""Metrics: what a task is measured by, with a name, a unit and a direction. In Python they are `fedgmr.metrics`.

A task has one metric that leads (restoration, ranking, targets follow it) and may record others beside it. Values are
pooled over batches: a measure returns sums and how many they are over. Read next: `task.py`; docs/metrics.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgmr.reading import Reading

Count = int | Tensor  # a tensor where the host would have to wait for it
Measure = Callable[[Tensor, Tensor], tuple[Tensor, Count]]  # (outputs, targets) -> (sums, number counted) of a batch
Pooled = Callable[[Sequence[float], int], float]  # (sums over all batches, number counted) -> the metric


def summed(loss: Tensor, count: Count) -> Tensor:
    """The sum of losses whose mean is given; a mean over nothing is no number, and would make none of all batches."""
    if isinstance(count, int):
        return loss * count if count else torch.zeros_like(loss)
    return (loss * count).where(count > 0, 0)


def mean(sums: Sequence[float], count: int) -> float:
    """The first sum by the number counted."""
    return sums[0] / max(1, count)


@dataclass(frozen=True, kw_only=True)
class Metric(Reading):
    """A measure and how its values are read."""

    measure: Measure
    pooled: Pooled = mean  # the value from the sums of all batches
    range: tuple[float, float] | None = None  # that values can have; none: of a share 0 to 1, else no bounds
    classes: bool = False  # it counts right classes, so targets are whole numbers

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.measure, Among):
            object.__setattr__(self, "classes", True)

    @property
    def scores(self) -> tuple[float, float]:
        """The lowest and the highest score that there can be."""
        low, high = self.range or ((0.0, 1.0) if self.share else (-math.inf, math.inf))
        return (low, high) if self.higher_is_better else (-high, -low)


def class_dim(outputs: Tensor, targets: Tensor) -> int:
    """The dimension of the classes: the second where one target per place fits that alone (pixels), else the last."""
    places = outputs.shape[:1] + outputs.shape[2:]
    return 1 if outputs.dim() > 2 and targets.shape == places != outputs.shape[:-1] else outputs.dim() - 1


@dataclass(frozen=True)
class Among:
    """A measure: whether the target is among the `k` highest outputs; `ignore`: a target that does not count.

    The classes are in the last dimension, or in the second one (pixels).
    """

    k: int = 1
    ignore: int | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Count]:
        """How many are, and how many targets there were."""
        dim = class_dim(outputs, targets)
        if self.k > outputs.shape[dim]:
            raise ValueError(f"there are {outputs.shape[dim]} classes, which are fewer than {self.k}")
        highest = outputs.argmax(dim, keepdim=True) if self.k == 1 else outputs.topk(self.k, dim).indices
        return self.summed((highest == _alike(targets, highest.select(dim, 0)).unsqueeze(dim)).any(dim), targets)

    def counted(self, targets: Tensor) -> Tensor:
        """Which targets count."""
        return torch.ones_like(targets, dtype=torch.bool) if self.ignore is None else targets != self.ignore

    def summed(self, right: Tensor, targets: Tensor) -> tuple[Tensor, Count]:
        """The same for targets of which it is known whether they are."""
        if self.ignore is None:
            return right.sum(), targets.numel()
        counted = self.counted(targets)
        return (right & counted).sum(), counted.sum()


top1 = Among()


def accuracy(*, ignore: int | None = None) -> Metric:
    """Share of right predictions, what a task has unless it says otherwise; `ignore`: a target that does not count."""
    return Metric(measure=Among(ignore=ignore))


def top_k(k: int, *, ignore: int | None = None) -> Metric:
    """Share of targets among the k highest outputs; `ignore`: a target that does not count."""
    return Metric(name=f"top-{k} accuracy", measure=Among(k, ignore))


def recall(classes: int, of: Literal["mean", "worst"] | int = "mean") -> Metric:
    """Recall: of the samples of a class, the share that is predicted right.

    Args:
        classes: how many there are.
        of: the mean over the classes that occur, the worst of them, or one class by its number.
    """
    if of not in ("mean", "worst", *range(classes)):
        raise ValueError(f"of is {of!r}: give mean, worst, or the number of a class, 0 to {classes - 1}.")
    name = f"recall of class {of}" if isinstance(of, int) else f"{of} recall"
    measure, value = partial(_by_class, classes), partial(_recall, classes, of)
    return Metric(name=name, measure=measure, pooled=value, classes=True)


def mae(unit: str = "", digits: int = 3) -> Metric:
    """Mean absolute error, in the unit of the targets."""
    return Metric(
        name="MAE", measure=_absolute, unit=unit, digits=digits, higher_is_better=False, range=(0.0, math.inf)
    )


def rmse(unit: str = "", digits: int = 3) -> Metric:
    """Root of the mean squared error over all samples, in the unit of the targets."""
    return Metric(
        name="RMSE",
        measure=_squared,
        pooled=_root,
        unit=unit,
        digits=digits,
        higher_is_better=False,
        range=(0.0, math.inf),
    )


def perplexity(
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy, *, ignore: int | None = None
) -> Metric:
    """The exponential of the mean loss; `ignore`: a target that the loss leaves out."""
    return Metric(
        name="perplexity",
        measure=partial(_weighed, loss, ignore),
        pooled=_exponential,
        unit="",
        higher_is_better=False,
        range=(1.0, math.inf),
    )


def _alike(targets: Tensor, wanted: Tensor) -> Tensor:
    """The targets, if there is one for each; PyTorch would compare every one with every other instead."""
    if targets.shape != wanted.shape:
        raise ValueError(f"there are targets of shape {list(targets.shape)} for outputs of shape {list(wanted.shape)}")
    return targets


def _counted(targets: Tensor, ignore: int | None) -> Count:
    return targets.numel() if ignore is None else (targets != ignore).sum()


def _by_class(classes: int, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """By class the right predictions, then by class the targets."""
    chosen = outputs.argmax(class_dim(outputs, targets))
    right = (chosen == _alike(targets, chosen)).flatten()
    # Neither bincount nor one_hot, which wait for a GPU.
    own = targets.flatten().unsqueeze(-1) == torch.arange(classes, device=targets.device)
    return torch.cat([(own & right.unsqueeze(-1)).sum(0), own.sum(0)]), targets.numel()


def _recall(classes: int, of: str | int, sums: Sequence[float], count: int) -> float:
    shares = [right / total if total else math.nan for right, total in zip(sums[:classes], sums[classes:], strict=True)]
    if isinstance(of, int):
        return shares[of]
    known = [share for share in shares if not math.isnan(share)] or [0.0]
    return min(known) if of == "worst" else math.fsum(known) / len(known)


def _differences(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.numel() != targets.numel() or len(outputs) != len(targets):
        _alike(targets, outputs)
    return outputs.reshape(targets.shape).double() - targets


def _absolute(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return _differences(outputs, targets).abs().sum(), targets.numel()


def _squared(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    return _differences(outputs, targets).square().sum(), targets.numel()


def _weighed(
    loss: Callable[[Tensor, Tensor], Tensor], ignore: int | None, outputs: Tensor, targets: Tensor
) -> tuple[Tensor, Count]:
    count = _counted(targets, ignore)
    return summed(loss(outputs, targets), count), count


def _root(sums: Sequence[float], count: int) -> float:
    return math.sqrt(mean(sums, count))


def _exponential(sums: Sequence[float], count: int) -> float:
    power = mean(sums, count)
    return math.inf if power > 700 else math.exp(power)
