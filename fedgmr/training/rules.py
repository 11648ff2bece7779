"""Local rules: what a client does with one mini-batch.

Plain SGD; the width methods' SGD with HeteroFL's scaler and masked loss; FjORD's ordered dropout; FIARSE's
thresholded SGD. A rule works on a bench (`bench.py`) and holds no state: every draw is named by (seed, client,
mini-batch).
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fedgmr.exchange import ClientTask
from fedgmr.seeding import generator
from fedgmr.training.submodel.workspace import Bench, LocalRun

Norm = Literal["running", "static", "batch", "per_width"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """One mini-batch of a client."""

    inputs: Tensor
    targets: Tensor
    level: int  # of the sub-model it trains


class LocalRule(Protocol):
    """What a client does with one mini-batch."""

    kind: ClassVar[str]

    @property
    def norm(self) -> Norm:
        """How batch-norm statistics are kept; see `WidthSGD.norm`."""
        ...

    @property
    def scaler(self) -> bool | None:
        """Whether hidden activations are divided by the width in training; None: where batch norm absorbs it."""
        ...

    @property
    def masked_loss(self) -> bool:
        """Whether classes a client has not are left out of its loss."""
        ...

    def level(self, task: ClientTask, number: int, seed: int) -> int:
        """The level that the client's mini-batch `number` trains."""
        ...

    def step(self, bench: Bench, batch: Batch) -> Tensor:
        """Train on the mini-batch; returns its detached loss."""
        ...


@dataclass(frozen=True, kw_only=True)
class _OwnLevel:
    """Every mini-batch trains the task's sub-model."""

    def level(self, task: ClientTask, number: int, seed: int) -> int:
        """The task's."""
        return task.level


@dataclass(frozen=True, kw_only=True)
class PlainSGD(_OwnLevel):
    """SGD without momentum; with `proximal` > 0 the term (proximal/2)·||w - start||² is added to the loss."""

    kind: ClassVar[str] = "sgd"
    norm: ClassVar[Norm] = "running"
    scaler: ClassVar[bool] = False
    masked_loss: ClassVar[bool] = False
    proximal: float = field(default=0.0, metadata={"at_least": 0, "help": "FedProx / FedAsync proximal weight"})

    def step(self, bench: Bench, batch: Batch) -> Tensor:
        """Forward, backward, one step."""
        run = bench.run()
        pull = self._pull(run) if self.proximal else None
        loss = run.loss_on(batch.inputs, batch.targets)
        run.descend(run.gradients(loss if pull is None else loss + pull))
        return loss.detach()

    def _pull(self, run: LocalRun) -> Tensor:
        distances = [(p - s).square().sum() for p, s in zip(run.parameters, run.start, strict=True)]
        return torch.stack(distances).sum() * (self.proximal / 2)


@dataclass(frozen=True, kw_only=True)
class WidthSGD(_OwnLevel):
    """SGD on a narrower network, as HeteroFL and FedRolex do it."""

    kind: ClassVar[str] = "width_sgd"
    scaler: bool | None = field(
        default=None,
        metadata={"help": "divide hidden activations by the width in training; none: where the model has batch norm"},
    )
    masked_loss: bool = field(default=True, metadata={"help": "logits of classes the client has not are set to 0"})
    norm: Literal["running", "static", "batch"] = field(
        default="static",
        metadata={
            "help": "batch norm: running = clients track, the server averages; static = batch statistics in training, "
            "the server builds statistics before a test; batch = batch statistics in the test too"
        },
    )

    def step(self, bench: Bench, batch: Batch) -> Tensor:
        """Forward, backward, one step; the bench has put scaler and masked loss in place."""
        run = bench.run()
        loss = run.loss_on(batch.inputs, batch.targets)
        run.descend(run.gradients(loss))
        return loss.detach()


@dataclass(frozen=True, kw_only=True)
class OrderedDropout:
    """FjORD: every mini-batch trains one width drawn uniformly from those up to the client's own."""

    kind: ClassVar[str] = "ordered_dropout"
    scaler: ClassVar[bool] = False
    masked_loss: ClassVar[bool] = False
    norm: ClassVar[Norm] = "per_width"
    distillation: bool = field(
        default=False, metadata={"help": "also train the drawn width on the predictions of the client's own width"}
    )
    soft_targets: Literal["softmax", "sigmoid"] = field(
        default="softmax", metadata={"help": "what turns the teacher's outputs into targets: sigmoid for a BCE loss"}
    )

    def level(self, task: ClientTask, number: int, seed: int) -> int:
        """Drawn uniformly from the task's level and those below."""
        return int(generator(seed, "width", task.client, number).integers(task.level + 1))

    def step(self, bench: Bench, batch: Batch) -> Tensor:
        """One step at the drawn width; with distillation a step at the own width and the drawn one, gradients added."""
        if not self.distillation or batch.level == bench.task.level:
            run = bench.run(batch.level)
            loss = run.loss_on(batch.inputs, batch.targets)
            run.descend(run.gradients(loss))
            return loss.detach()
        own = bench.run()
        outputs = own.module(batch.inputs)
        loss = own.loss(outputs, batch.targets)
        gradients = own.gradients(loss)
        narrow = bench.run(batch.level)
        student = narrow.module(batch.inputs)
        narrow.descend(narrow.gradients(self._distil(student, outputs.detach())))
        # Both gradients were taken at the same weights; the narrow step is in the client's values already.
        bench.run().descend(gradients)
        return loss.detach()

    def _distil(self, student: Tensor, teacher: Tensor) -> Tensor:
        if self.soft_targets == "sigmoid":
            return functional.binary_cross_entropy_with_logits(student, teacher.sigmoid())
        return functional.cross_entropy(student, teacher.softmax(-1))


@dataclass(frozen=True, kw_only=True)
class ThresholdedSGD(_OwnLevel):
    """FIARSE: only weights with |w| >= theta take part; the mask's derivative scales their gradient.

    theta is the smallest magnitude in the sub-model as received, fixed for the task. The forward pass uses
    w·1[|w| >= theta]; a weight that falls below theta is frozen for the rest of the task; the effective gradient of a
    kept weight is g·(1 + 2·theta·|w| / (|w| + theta)²).
    """

    kind: ClassVar[str] = "thresholded_sgd"
    scaler: ClassVar[bool] = False
    masked_loss: ClassVar[bool] = False
    norm: Literal["running", "static", "batch"] = field(default="static", metadata={"help": "as for width_sgd"})
    derivative: bool = field(default=True, metadata={"help": "false: leave the mask's derivative out"})
    scope: Literal["global", "layerwise"] = field(default="global", metadata={"help": "one theta, or one per tensor"})

    def step(self, bench: Bench, batch: Batch) -> Tensor:
        """One step of the kept weights."""
        run = bench.run()
        thetas = self._thresholds(run)
        whole = run.dropping.hide(run, thetas)
        loss = run.loss_on(batch.inputs, batch.targets)
        run.dropping.descend(run, whole, run.gradients(loss), thetas, derivative=self.derivative)
        return loss.detach()

    def _thresholds(self, run: LocalRun) -> list[Tensor | None]:
        """Theta per parameter, from the sub-model as received; None for normalisation parameters, never masked."""
        if "thetas" not in run.notes:
            smallest = [
                None if place.norm else _smallest(parameter.detach(), outside)
                for place, parameter, outside in zip(run.places, run.parameters, run.masks, strict=True)
            ]
            ranked = [theta for theta in smallest if theta is not None]
            least = torch.stack(ranked).min() if ranked else None
            layerwise = self.scope == "layerwise"
            run.notes["thetas"] = [theta if layerwise or theta is None else least for theta in smallest]
        thetas: list[Tensor | None] = run.notes["thetas"]
        return thetas


def _smallest(weight: Tensor, outside: Tensor | None) -> Tensor:
    """The smallest magnitude of a tensor inside the sub-model; infinite where none of it is inside."""
    size = weight.abs()
    return (size if outside is None else size.masked_fill(outside, torch.inf)).min()
