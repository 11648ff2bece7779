"""Local rules: how a client trains on one mini-batch.

Plain SGD; the width methods' SGD with HeteroFL's scaler and masked loss; FjORD's ordered dropout; FIARSE's
thresholded SGD. A rule works in a workspace (`submodel/workspace.py`) and holds no state: every draw is named by (seed,
client, mini-batch). A rule also says what an executor has to know about it, so that a user's own rule is captured or
stacked wherever it can be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgmr.exchange import ClientTask
from fedgmr.seeding import generator
from fedgmr.submodels.inputs import Inputs, outputs_of
from fedgmr.submodels.layout import Ranks
from fedgmr.training.optimizers import Optimizer
from fedgmr.training.submodel.workspace import SubModel, Workspace

Norm = Literal["tracked", "batch"]


@dataclass(frozen=True, kw_only=True)
class Stacking:
    """The weights that take part in a step of the stacked executor; see MODE in `stacked/row_kernels.py`."""

    mode: Literal["all", "threshold", "level"] = "all"
    derivative: bool = False  # of the threshold's mask
    ranks: Ranks = "everything"  # the tensors that have a threshold
    narrow: bool = False  # sub-models are by width: where a range of channels is enough, no others are computed


@dataclass(frozen=True, kw_only=True)
class LocalRule:
    """The training on one mini-batch. Your own rule gives `kind`, and overrides what differs."""

    kind: ClassVar[str]
    needs_mask: ClassVar[bool] = False  # the rule looks at which weights are outside the sub-model (`SubModel.masks`)
    per_width: ClassVar[bool] = False  # batch-norm statistics are kept once per width

    def __init_subclass__(cls) -> None:
        """A rule with a step of its own that says nothing of stacks is not stacked, whatever its parent says."""
        if "step" in vars(cls) and "stacking" not in vars(cls):
            cls.stacking = LocalRule.stacking  # type: ignore[method-assign]

    @property
    def norm(self) -> Norm:
        """Whether clients track batch-norm statistics and send them back; see `WidthSGD.norm`."""
        return "tracked"

    @property
    def scaler(self) -> bool | None:
        """Whether hidden activations are divided by the width in training; None: where batch norm absorbs it."""
        return False

    @property
    def masked_loss(self) -> bool:
        """Whether classes that a client does not have are left out of its loss."""
        return False

    @property
    def tracks_statistics(self) -> bool:
        """Whether clients train batch-norm statistics and send them back."""
        return self.norm == "tracked"

    @property
    def stacking(self) -> Stacking | None:
        """The form of this rule's steps with SGD in the stacked executor; None if it cannot do them."""
        return None

    def capturable(self, optimizer: Optimizer) -> bool:
        """Whether a task's steps with this optimiser can be captured as a CUDA graph: none waits for the device."""
        return True

    def level(self, task: ClientTask, number: int, seed: int) -> int:
        """Choose the level that the client's mini-batch `number` trains."""
        return task.level

    def step(self, workspace: Workspace, inputs: Inputs, targets: Tensor, level: int) -> Tensor:
        """Train on the mini-batch at `level`, which `self.level` chose; returns the detached loss."""
        sub = workspace.open(level)
        loss = sub.loss_on(inputs, targets)
        sub.descend(sub.gradients(loss))
        return loss.detach()


@dataclass(frozen=True, kw_only=True)
class PlainSGD(LocalRule):
    """A step of the optimiser; with `proximal` > 0 the term (proximal/2)·||w - start||² is added to the loss."""

    kind: ClassVar[str] = "sgd"
    proximal: float = field(
        default=0.0, metadata={"at_least": 0, "help": "weight μ of (μ/2)·‖w - start‖², as in FedProx and FedAsync"}
    )

    @property
    def stacking(self) -> Stacking | None:
        """All weights take part; there is no proximal term in a stack."""
        return None if self.proximal else Stacking()

    def step(self, workspace: Workspace, inputs: Inputs, targets: Tensor, level: int) -> Tensor:
        """Forward, backward, one step; the proximal term is in the gradients and not in the loss returned."""
        if not self.proximal:
            return super().step(workspace, inputs, targets, level)
        sub = workspace.open()
        distances = [(p - s).square().sum() for p, s in zip(sub.parameters, sub.start, strict=True)]
        pull = torch.stack(distances).sum() * (self.proximal / 2)
        loss = sub.loss_on(inputs, targets)
        sub.descend(sub.gradients(loss + pull))
        return loss.detach()


def _norm() -> Any:
    """The key of rules whose sub-models are too different for averaged statistics."""
    told = (
        "the statistics of batch norm in training. `tracked`: clients track them, the server averages them; `batch`: "
        "nobody does. For tests see `evaluation.norm`"
    )
    return field(default="batch", metadata={"help": told})


@dataclass(frozen=True, kw_only=True)
class WidthSGD(LocalRule):
    """SGD on a narrower network, as HeteroFL and FedRolex do it."""

    kind: ClassVar[str] = "width_sgd"
    scaler: bool | None = field(
        default=None,
        metadata={"help": "divide hidden activations by the width in training; `null`: if the model has batch norm"},
    )
    masked_loss: bool = field(
        default=True, metadata={"help": "leave the classes that a client does not have out of its loss"}
    )
    norm: Norm = _norm()

    @property
    def stacking(self) -> Stacking | None:
        """All weights of the narrow network take part."""
        return Stacking(narrow=True)


@dataclass(frozen=True, kw_only=True)
class OrderedDropout(LocalRule):
    """FjORD: every mini-batch trains one of the widths up to the client's own, drawn uniformly or in turn."""

    kind: ClassVar[str] = "ordered_dropout"
    per_width: ClassVar[bool] = True
    order: Literal["random", "cycle"] = field(
        default="random",
        metadata={
            "help": (
                "each mini-batch draws its width, uniformly; `cycle`: mini-batch i of a task trains width i mod "
                "their number, from the smallest"
            )
        },
    )
    widths: tuple[float, ...] | None = field(
        default=None,
        metadata={
            "help": (
                "the densities of `method.ladder` that are trained beside a client's own; `null`: all below its own"
            )
        },
    )
    distillation: bool = field(
        default=False, metadata={"help": "also train the drawn width on the predictions of the client's own width"}
    )
    soft_targets: Literal["softmax", "sigmoid"] = field(
        default="softmax", metadata={"help": "how those become targets; `sigmoid` for a binary cross-entropy"}
    )

    @property
    def stacking(self) -> Stacking | None:
        """The weights of the mini-batch's width take part."""
        return None if self.distillation else Stacking(mode="level", narrow=True)

    def capturable(self, optimizer: Optimizer) -> bool:
        """Distillation changes widths within a step; an optimiser with a memory of its own forgets between widths."""
        return not self.distillation and optimizer.memory != "own"

    def level(self, task: ClientTask, number: int, seed: int) -> int:
        """Choose from the task's level and those below; in turn, a task's first mini-batch has the smallest."""
        choices: Sequence[int] = range(task.level + 1)
        if self.widths is not None:
            below = enumerate(task.levels.ladder[: task.level])
            choices = [*(level for level, density in below if density in self.widths), task.level]
        if self.order == "cycle":
            return choices[(number - task.first_batch) % len(choices)]
        return choices[int(generator(seed, "width", task.client, number).integers(len(choices)))]

    def step(self, workspace: Workspace, inputs: Inputs, targets: Tensor, level: int) -> Tensor:
        """One step at the drawn width; with distillation a step at the own width and the drawn one, gradients added."""
        if not self.distillation or level == workspace.task.level:
            return super().step(workspace, inputs, targets, level)
        own = workspace.open()
        outputs = outputs_of(own.module, inputs)
        loss = own.loss(outputs, targets)
        gradients = own.gradients(loss)
        narrow = workspace.open(level)
        student = outputs_of(narrow.module, inputs)
        teacher = outputs.detach()
        if self.soft_targets == "sigmoid":
            distilled = functional.binary_cross_entropy_with_logits(student, teacher.sigmoid())
        else:
            distilled = functional.cross_entropy(student, teacher.softmax(-1))
        narrow.descend(narrow.gradients(distilled))
        # Both gradients were taken at the same weights; the narrow step is in the client's values already.
        workspace.open().descend(gradients)
        return loss.detach()


@dataclass(frozen=True, kw_only=True)
class ThresholdedSGD(LocalRule):
    """FIARSE: only weights with |w| >= theta take part; the mask's derivative scales their gradient.

    theta is the smallest magnitude in the sub-model as received, fixed for the task. The forward pass uses
    w·1[|w| >= theta]; a weight that falls below theta is frozen for the rest of the task; the effective gradient of a
    kept weight is g·(1 + 2·theta·|w| / (|w| + theta)²).
    """

    kind: ClassVar[str] = "thresholded_sgd"
    needs_mask: ClassVar[bool] = True
    norm: Norm = _norm()
    derivative: bool = field(default=True, metadata={"help": "scale gradients by the derivative of the mask"})
    scope: Literal["global", "layerwise"] = field(
        default="global", metadata={"help": "one threshold for the model, or `layerwise`: one per tensor"}
    )
    ranks: Ranks = field(
        default="everything", metadata={"help": "the tensors that have a threshold, as in `method.ranking.ranks`"}
    )

    @property
    def stacking(self) -> Stacking | None:
        """The weights above the client's threshold take part; a stack has one threshold per client."""
        if self.scope != "global":
            return None
        return Stacking(mode="threshold", derivative=self.derivative, ranks=self.ranks)

    def step(self, workspace: Workspace, inputs: Inputs, targets: Tensor, level: int) -> Tensor:
        """One step of the kept weights."""
        sub = workspace.open()
        thetas = self._thresholds(sub)
        whole = sub.dropping.hide(sub, thetas)
        loss = sub.loss_on(inputs, targets)
        sub.dropping.descend(sub, whole, sub.gradients(loss), thetas, derivative=self.derivative)
        return loss.detach()

    def _thresholds(self, sub: SubModel) -> list[Tensor | None]:
        """Theta per parameter, from the sub-model as received; None for what is not ranked, which is never masked."""
        if "thetas" not in sub.notes:
            places = sub.cut.module.layout.parameters
            smallest = [
                _smallest(parameter.detach(), outside) if place.ranked(self.ranks) else None
                for place, parameter, outside in zip(places, sub.parameters, sub.masks, strict=True)
            ]
            ranked = [theta for theta in smallest if theta is not None]
            least = torch.stack(ranked).min() if ranked else None
            layerwise = self.scope == "layerwise"
            sub.notes["thetas"] = [theta if layerwise or theta is None else least for theta in smallest]
        thetas: list[Tensor | None] = sub.notes["thetas"]
        return thetas


def _smallest(weight: Tensor, outside: Tensor | None) -> Tensor:
    """Find the smallest magnitude of a tensor inside the sub-model; infinite where none of it is inside."""
    size = weight.abs()
    return (size if outside is None else size.masked_fill(outside, torch.inf)).min()
