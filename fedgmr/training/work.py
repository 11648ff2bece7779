"""The work of a task: its mini-batches, draws, levels and loss, the client's report, and the update it sends back.

Section 3.2 of docs/decisions.md: take the task's sub-model, do the local steps on the client's next mini-batches, hand
back its values. An update is a function of the task alone, so who performs the work, and beside which other tasks,
changes nothing. Read next: `plain/sequential.py`, which performs it as a plain loop; `rules.py`, one step.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor, nn

from fedgmr.exchange import ClientTask, Report, Update
from fedgmr.seeding import derived_seed, generator
from fedgmr.submodels.inputs import Inputs, each, outputs_of
from fedgmr.tasks.metrics import class_dim
from fedgmr.tasks.partition import Indices, SampleOrder
from fedgmr.tasks.samples import Batch
from fedgmr.tasks.task import Drawn, Task
from fedgmr.training.evaluation.statistics import BatchNorms
from fedgmr.training.execution import ExecutionSettings
from fedgmr.training.rules import LocalRule
from fedgmr.training.submodel.workspace import Loss


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalWork:
    """Everything about a client's work that does not depend on who performs it."""

    task: Task
    order: SampleOrder
    rule: LocalRule
    steps: int
    seed: int
    held_out: Sequence[Indices] | None = None  # each client's own validation samples, where clients report the metric
    rebuilds: bool = False  # where clients report, they also rebuild batch-norm statistics from these samples
    execution: ExecutionSettings = ExecutionSettings()
    _absent: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.rule.masked_loss and self.task.train.targets.is_floating_point():
            raise ValueError(
                f"method.local.masked_loss is true and the targets of {self.task.name} are no classes: "
                "set method.local.masked_loss to false."
            )

    @property
    def device(self) -> torch.device:
        """The device of the data and of the work."""
        return self.task.train.device

    def batches(self, task: ClientTask) -> Indices:
        """Training indices [steps, batch] of the task's mini-batches."""
        return self.order.batches(task.client, task.first_batch, self.steps)

    def drawn(self, task: ClientTask) -> Drawn | None:
        """The augmentation's draws for the task, one row per sample."""
        if self.task.augment is None:
            return None
        draws = generator(self.seed, "augment", task.client, task.first_batch)
        return self.task.augment.draw(draws, self.steps * self.order.batch_size)

    def seed_draws(self, task: ClientTask, draws: torch.Generator | None = None) -> None:
        """Seed `draws`, None: PyTorch's generator, for all that the model draws while it trains on the task (dropout).

        `torch.manual_seed` also queues a call, with its stack, for every kind of device not in use: slow, and it
        piles up.
        """
        seed = self.draw_seed(task)
        if draws is None and self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:
            (torch.default_generator if draws is None else draws).manual_seed(seed)

    def draw_seed(self, task: ClientTask) -> int:
        """The seed of what the model draws while it trains on the task."""
        return derived_seed(self.seed, "local", task.client, task.first_batch)

    def levels(self, task: ClientTask) -> list[int]:
        """The level each of the task's mini-batches trains."""
        return [self.rule.level(task, task.first_batch + step, self.seed) for step in range(self.steps)]

    @property
    def single(self) -> bool:
        """Whether the model's input is one tensor, made from one that is in memory."""
        return isinstance(self.task.train.inputs, Tensor) and isinstance(self.task.example(1), Tensor)

    def mini_batches(self, tasks: Sequence[ClientTask]) -> Iterator[Batch]:
        """The mini-batches of the tasks, one after the other, as they are trained on."""
        if self.task.train.lazy:
            yield from self._read(tasks)
            return
        for task in tasks:
            drawn = self.drawn(task)
            batches = torch.from_numpy(self.batches(task)).to(self.device)
            inputs, targets = self.prepared(batches, None if drawn is None else torch.from_numpy(drawn))
            for step in range(self.steps):
                yield each(itemgetter(step), inputs), targets[step]

    def _read(self, tasks: Sequence[ClientTask]) -> Iterator[Batch]:
        """Read mini-batch after mini-batch, also those of the next task while one is trained."""
        chosen = (torch.from_numpy(batch) for task in tasks for batch in self.batches(task))
        read = self.task.train.ahead(chosen)
        for task in tasks:
            drawn, size = self.drawn(task), self.order.batch_size
            for step in range(self.steps):
                inputs, targets = next(read)
                rows = None if drawn is None else torch.from_numpy(drawn[step * size : (step + 1) * size])
                yield self._changed(inputs, rows), targets

    def prepared(self, batches: Tensor, drawn: Tensor | None) -> Batch:
        """Inputs and targets [steps, batch, ...] as they are trained on, of samples in memory."""
        train = self.task.train
        chosen = self._changed(each(lambda tensor: tensor[batches.flatten()], train.inputs), drawn)
        return each(lambda tensor: tensor.view(*batches.shape, *tensor.shape[1:]), chosen), train.targets[batches]

    def _changed(self, inputs: Inputs, drawn: Tensor | None) -> Inputs:
        prepared = self.task.inputs(inputs)
        if drawn is None:
            return prepared
        assert self.task.augment is not None
        return self.task.augment.apply(prepared, drawn.to(self.device))

    def loss_of(self, client: int, absent: Callable[[int, int], Tensor] | None = None) -> Loss:
        """The client's loss: the task's, with the logits of classes it does not have at 0 where the rule says so.

        `absent` is asked for these instead of `self.absent`, and may keep them in memory that stays.
        """
        return partial(self._masked_loss, client, absent or self.absent) if self.rule.masked_loss else self.task.loss

    def absent(self, client: int, classes: int) -> Tensor:
        """Bool [classes]: the classes that the client does not have."""
        if client not in self._absent:
            part = torch.from_numpy(self.order.parts[client]).to(self.device)
            present = self.task.train.classes(part, classes)
            everything = torch.ones(classes, dtype=torch.bool, device=self.device)
            self._absent[client] = everything.index_fill_(0, present, False)
        return self._absent[client]

    def _masked_loss(
        self, client: int, absent: Callable[[int, int], Tensor], outputs: Tensor, targets: Tensor
    ) -> Tensor:
        dim = class_dim(outputs, targets)
        mask = absent(client, outputs.shape[dim]).view([-1 if i == dim else 1 for i in range(outputs.dim())])
        return self.task.loss(outputs.masked_fill(mask, 0), targets)

    def report(self, task: ClientTask, module: nn.Module) -> Report | None:
        """Measure the received sub-model in `module` on the client's own held-out samples, with batch statistics.

        None where nothing in these samples counts.
        """
        assert self.held_out is not None
        indices = torch.from_numpy(self.held_out[task.client]).to(self.device)
        own = self.task.train.part(indices)
        sums, count = torch.zeros(1, dtype=torch.float64), 0
        metric = self.task.metrics[0]
        # Equal batches, as where the server evaluates.
        batches = own.split(max(1, math.ceil(len(own) / self.task.evaluation_batch)))
        norms = BatchNorms(module) if len(indices) > 1 else BatchNorms()
        module.eval()
        with torch.no_grad(), norms.batch_statistics(rebuild=self.rebuilds) as begin:
            for number, (inputs, targets) in enumerate(batches):
                begin(number)
                totals, counted = metric.measure(outputs_of(module, self.task.inputs(inputs)), targets)
                sums, count = sums + torch.as_tensor(totals).reshape(-1).cpu(), count + int(counted)
        module.train()
        return Report(metric=metric.score(metric.pooled(sums.tolist(), count)), samples=count) if count else None

    def mean_loss(self, losses: Sequence[Tensor], values: Tensor) -> Tensor:
        """The mean of the steps' losses; NaN where a value is not finite, so the last step's damage is seen too."""
        total = values.sum()
        return torch.stack(list(losses)).mean() + (total - total)

    def update(
        self,
        task: ClientTask,
        values: Tensor,
        buffers: Tensor,
        loss: float | Tensor,
        report: Report | None,
        *,
        natural: bool,
        memory: Tensor | None = None,
    ) -> Update:
        """The update that the client sends back; `natural`: the values are a whole model's in natural order.

        `memory` stays with the client: whoever keeps it gives it to its next task.
        """
        if not self.rule.tracks_statistics and not (self.rebuilds and report):
            buffers = task.buffers
        elif self.rule.per_width:  # of the widths up to the task's
            buffers = buffers[: (task.level + 1) * (len(task.buffers) // len(task.levels.ladder))]
        return Update(
            client=task.client,
            version=task.version,
            values=values,
            buffers=buffers,
            loss=loss,
            report=report,
            natural=natural and task.levels.whole(task.level),
            memory=memory,
        )
