"""The exchange between the server and a fleet: tasks out, updates and news back.

A task names the global model and the level map it was cut from instead of carrying a copy: the simulated fleet
trains from these directly, the Flower fleet encodes them (`fedgmr.wire`). An update carries a sub-model's values in
level order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgmr.submodels.levels import LevelMap

DIVERGED = "client-diverged"  # the reason of a client whose own training was not finite


@dataclass(frozen=True, kw_only=True)
class ClientProfile:
    """The server's knowledge of a client before the first task."""

    density: float
    samples: int  # 0: not known yet
    seconds: float | None = None  # of a task, as its link promises; None: not known
    declared: bool = False  # by the client itself, so nobody vouches for the number


@dataclass(frozen=True, kw_only=True, eq=False)
class Shipment:
    """The part of a task that decides how many bytes it moves and how long it takes."""

    client: int
    level: int
    levels: LevelMap
    map_version: int
    first_batch: int  # mini-batches this client has been given before


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientTask(Shipment):
    """One piece of work for one client."""

    version: int  # merges done at dispatch
    model: Tensor  # the global model at `version`, shared by all tasks of that version
    buffers: Tensor
    learning_rate: float
    memory: Tensor | None = None  # natural order: what the client's optimiser remembers; given to it where it trains


@dataclass(frozen=True, kw_only=True)
class Report:
    """A client's validation metric of the sub-model it received, on its own held-out samples."""

    metric: float
    samples: int

    @property
    def metric_sum(self) -> float:
        """The metric times the samples; dividing it gives the very metric back where that is a share of samples."""
        total = self.metric * self.samples
        if not math.isfinite(total):
            return total
        return float(round(total)) if round(total) / self.samples == self.metric else total


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """A client's answer to a task."""

    client: int
    version: int
    values: Tensor  # level order, the length of the sub-model
    buffers: Tensor
    loss: float | Tensor  # mean over the local steps; a tensor while a device still computes it
    report: Report | None = None
    natural: bool = False  # the values are a whole model's in natural order instead
    memory: Tensor | None = None  # the client's for its next task; it never travels

    def kept_where(self, sound: Tensor, task: ClientTask) -> "Update":
        """This update if `sound` is true, else one that brings back what its task has given; nobody waits to see."""
        natural = self.natural or task.levels.order is None
        start = task.model if natural else task.levels.pack(task.model, task.level)
        return replace(
            self,
            values=torch.where(sound, self.values, start),
            buffers=torch.where(sound, self.buffers, task.buffers[: len(self.buffers)]),
            memory=None if self.memory is None else torch.where(sound, self.memory, 0),
        )


@dataclass(frozen=True, kw_only=True)
class News:
    """Something a fleet tells the server about one client, beside its updates."""

    client: int
    lost: bool = False  # its task will never come back
    refused: bool = False  # because its answer could not be read
    samples: int | None = None  # it has joined, with so many samples
    classes: Sequence[int] = ()  # of these samples, where the server has asked for them
    seconds: float | None = None  # its last task took so long, from dispatch to arrival
    level: int | None = None  # the highest level whose round fits the period


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The server's word on an update that it has not merged as it came, or that has changed nothing."""

    client: int
    reason: str  # a word to count
    merged: bool = False  # all the same, after its change was shortened


class Diverged(ArithmeticError):  # noqa: N818 - what happened, as the command line reports it
    """A client's training produced a non-finite loss or weights, or that of most clients leaves all bounds."""

    def __init__(
        self, client: int, tick: int, sign: str = "loss or weights not finite", verdicts: Sequence[Verdict] = ()
    ) -> None:
        """`verdicts` of the merge or the losses that have shown it, which nobody has heard."""
        super().__init__(
            f"The training of client {client} diverged ({sign}) at tick {tick}: lower training.learning_rate."
        )
        self.client, self.tick, self.sign, self.verdicts = client, tick, sign, verdicts

    def __reduce__(self) -> tuple[type["Diverged"], tuple[int, int, str]]:
        """Cross to another process with its parts, not with its sentence."""
        return Diverged, (self.client, self.tick, self.sign)
