"""One client's local training as a plain loop: the oracle every faster executor must agree with.

A sub-model is trained inside the full-size module: coordinates outside it are zero before and after every step
(section 3.2). The module's parameters alias one flat vector, so loading a task and reading its result are single
operations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask, Report, Update
from fedgmr.seeding import derived_seed
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.partition import Indices, SampleOrder
from fedgmr.tasks.task import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalRun:
    """What a local rule works on during one task."""

    task: ClientTask
    module: nn.Module
    parameters: list[Tensor]
    flat: Tensor  # the parameters' storage
    outside: Tensor | None  # bool [N]: coordinates that stay zero; None for the whole model
    loss: Callable[[Tensor, Tensor], Tensor]
    layout: Layout

    @cached_property
    def start(self) -> list[Tensor]:
        """The sub-model as received, one tensor per parameter."""
        model = self.task.model if self.outside is None else self.task.model.masked_fill(self.outside, 0)
        return self.layout.views(model)

    def descend(self, loss: Tensor) -> None:
        """One step of plain SGD on `loss` within the sub-model."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_add_(self.parameters, gradients, alpha=-self.task.learning_rate)
            if self.outside is not None:
                self.flat.masked_fill_(self.outside, 0)


class LocalRule(Protocol):
    """What a client does with one mini-batch."""

    kind: ClassVar[str]

    def step(self, run: LocalRun, inputs: Tensor, targets: Tensor) -> Tensor:
        """Train on the mini-batch; returns its detached loss."""
        ...


@dataclass(frozen=True, kw_only=True)
class PlainSGD:
    """SGD without momentum; with `proximal` > 0 the term (proximal/2)·||w - start||² is added to the loss."""

    kind: ClassVar[str] = "sgd"
    proximal: float = field(default=0.0, metadata={"at_least": 0, "help": "FedProx / FedAsync proximal weight"})

    def step(self, run: LocalRun, inputs: Tensor, targets: Tensor) -> Tensor:
        """Forward, backward, one step."""
        loss = run.loss(run.module(inputs), targets)
        run.descend(loss if self.proximal == 0 else loss + self._pull(run))
        return loss.detach()

    def _pull(self, run: LocalRun) -> Tensor:
        distances = [(p - s).square().sum() for p, s in zip(run.parameters, run.start, strict=True)]
        return torch.stack(distances).sum() * (self.proximal / 2)


class LocalTrainer:
    """Trains one task at a time in one module; owns the module and its storage."""

    def __init__(
        self,
        task: Task,
        layout: Layout,
        order: SampleOrder,
        *,
        steps: int,
        seed: int,
        rule: LocalRule,
        held_out: Sequence[Indices] | None = None,
    ) -> None:
        """`held_out` are each client's own validation samples, where clients report the metric."""
        self.task, self.layout, self.order = task, layout, order
        self.steps, self.seed, self.rule, self.held_out = steps, seed, rule, held_out
        self.device = task.train[0].device
        self.flat = torch.zeros(layout.size, dtype=layout.dtype, device=self.device)
        self.buffers = torch.zeros(layout.buffer_size, dtype=layout.dtype, device=self.device)
        self.module = task.initial_model(seed).to(self.device).train()
        layout.bind(self.module, self.flat, self.buffers)
        named = dict(self.module.named_parameters())
        self.parameters: list[Tensor] = [named[place.name] for place in layout.parameters]
        self._outside: dict[int, Tensor] = {}
        self._outside_version = -1

    def train(self, task: ClientTask) -> Update:
        """The update a client sends back for `task`; a function of the task alone."""
        self._load(task)
        report = self._report(task)
        run = LocalRun(
            task=task,
            module=self.module,
            parameters=self.parameters,
            flat=self.flat,
            outside=self._outside_of(task),
            loss=self.task.loss,
            layout=self.layout,
        )
        batches = torch.from_numpy(self.order.batches(task.client, task.first_batch, self.steps)).to(self.device)
        inputs, targets = self.task.train
        total = torch.zeros((), dtype=self.layout.dtype, device=self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "local", task.client, task.first_batch))
            for batch in batches:
                total += self.rule.step(run, self.task.inputs(inputs[batch]), targets[batch])
        values = task.levels.pack(self.flat, task.level)
        # A non-finite weight shows in the sum, so the last step's damage is seen too.
        loss = total / self.steps + (values.sum() - values.sum())
        return Update(
            client=task.client,
            version=task.version,
            values=values,
            buffers=self.buffers.clone(),
            loss=float(loss),
            report=report,
        )

    def _load(self, task: ClientTask) -> None:
        self.flat.copy_(task.model)
        outside = self._outside_of(task)
        if outside is not None:
            self.flat.masked_fill_(outside, 0)
        self.buffers.copy_(task.buffers)

    def _outside_of(self, task: ClientTask) -> Tensor | None:
        if task.levels.sizes[task.level] == len(task.levels):
            return None
        if task.map_version != self._outside_version:
            self._outside.clear()
            self._outside_version = task.map_version
        if task.level not in self._outside:
            self._outside[task.level] = task.levels.levels > task.level
        return self._outside[task.level]

    def _report(self, task: ClientTask) -> Report | None:
        """The received sub-model's metric on the client's own held-out samples."""
        if self.held_out is None:
            return None
        indices = torch.from_numpy(self.held_out[task.client]).to(self.device)
        self.module.eval()
        with torch.no_grad():
            inputs, targets = self.task.train
            hits, count = self.task.metric(self.module(self.task.inputs(inputs[indices])), targets[indices])
        self.module.train()
        return Report(metric=float(hits) / max(1, count), samples=count)
