"""One client's local training as a plain loop: the oracle every faster executor must agree with.

Section 3.2 of docs/decisions.md: take the task's sub-model, do the local steps on the client's next mini-batches,
hand back its values. An update is a function of the task alone. Read next: `bench.py` (where), `rules.py` (what),
`graphed.py` (the same in CUDA graphs).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Report, Update
from fedgmr.seeding import derived_seed, generator
from fedgmr.tasks.partition import Indices, SampleOrder
from fedgmr.tasks.task import Drawn, Task
from fedgmr.training.evaluation.evaluator import batch_statistics
from fedgmr.training.execution import ExecutionSettings
from fedgmr.training.precision import precision
from fedgmr.training.rules import Batch, LocalRule
from fedgmr.training.submodel.workspace import Bench, Loss


class LocalTrainer:
    """Trains one task at a time on one bench."""

    def __init__(
        self,
        task: Task,
        bench: Bench,
        order: SampleOrder,
        *,
        steps: int,
        seed: int,
        rule: LocalRule,
        held_out: Sequence[Indices] | None = None,
        execution: ExecutionSettings | None = None,
        natural: bool = False,
        draws: torch.Generator | None = None,
    ) -> None:
        """Give `held_out`, each client's own validation samples, where clients report the metric.

        `natural`: whole models are handed over in natural order, to a server in the same process. `draws`: where the
        model draws from while it trains; None: where PyTorch does.
        """
        self.draws = draws
        self.task, self.bench, self.order, self.natural = task, bench, order, natural
        self.steps, self.seed, self.rule, self.held_out = steps, seed, rule, held_out
        self.execution = execution or ExecutionSettings()
        self.device = task.train[0].device
        self._present: dict[int, Tensor] = {}

    def train(self, task: ClientTask) -> Update:
        """The update a client sends back for `task`."""
        shared = self.draws is None  # then others may draw from there, too
        with torch.random.fork_rng(devices=[], enabled=shared), precision(self.execution, self.device):
            self.bench.begin(task, self.loss_of(task.client))
            report = self.report(task)
            self.seed_draws(task)
            batches = torch.from_numpy(self.batches(task)).to(self.device)
            drawn = self.drawn(task)
            inputs, targets = self.prepared(batches, None if drawn is None else torch.from_numpy(drawn))
            losses = []
            for step, level in enumerate(self.levels(task)):
                batch = Batch(inputs=inputs[step], targets=targets[step], level=level)
                losses.append(self.rule.step(self.bench, batch))
            values, buffers = self.bench.finish(natural=self.natural)
        total = values.sum()
        # A non-finite weight makes this NaN, so the last step's damage is seen too.
        loss = float(torch.stack(losses).mean() + (total - total))
        natural = self.natural and task.levels.whole(task.level)
        return self.update(task, values, buffers, loss, report, natural=natural)

    def batches(self, task: ClientTask) -> Indices:
        """Training indices [steps, batch] of the task's mini-batches."""
        return self.order.batches(task.client, task.first_batch, self.steps)

    def drawn(self, task: ClientTask) -> Drawn | None:
        """What the augmentation draws for the task, one row per sample."""
        if self.task.augment is None:
            return None
        draws = generator(self.seed, "augment", task.client, task.first_batch)
        return self.task.augment.draw(draws, self.steps * self.order.batch_size)

    def levels(self, task: ClientTask) -> list[int]:
        """The level each of the task's mini-batches trains."""
        return [self.rule.level(task, task.first_batch + step, self.seed) for step in range(self.steps)]

    def prepared(self, batches: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets [steps, batch, ...] as they are trained on."""
        inputs, targets = self.task.train
        chosen = self.task.inputs(inputs[batches.flatten()])
        if drawn is not None:
            assert self.task.augment is not None
            chosen = self.task.augment.apply(chosen, drawn.to(self.device))
        return chosen.view(*batches.shape, *chosen.shape[1:]), targets[batches]

    def loss_of(self, client: int) -> Loss:
        """The task's loss, without the classes the client has not where the rule says so."""
        if not self.rule.masked_loss:
            return self.task.loss
        present = self.present(client)

        def masked(outputs: Tensor, targets: Tensor) -> Tensor:
            absent = torch.ones(outputs.shape[-1], dtype=torch.bool, device=outputs.device)
            absent[present] = False
            return self.task.loss(outputs.masked_fill(absent, 0), targets)

        return masked

    def present(self, client: int) -> Tensor:
        """The classes the client has."""
        if client not in self._present:
            part = torch.from_numpy(self.order.parts[client]).to(self.device)
            self._present[client] = torch.unique(self.task.train[1][part])
        return self._present[client]

    def report(self, task: ClientTask) -> Report | None:
        """The received sub-model's metric on the client's own held-out samples."""
        if self.held_out is None:
            return None
        indices = torch.from_numpy(self.held_out[task.client]).to(self.device)
        module = self.bench.run().module.eval()
        inputs, targets = self.task.train
        hits, count = 0.0, 0
        with torch.no_grad(), batch_statistics(module if len(indices) > 1 else None):
            # Equal batches, as where the server evaluates.
            for part in torch.tensor_split(indices, max(1, math.ceil(len(indices) / self.task.evaluation_batch))):
                good, number = self.task.metric(module(self.task.inputs(inputs[part])), targets[part])
                hits, count = hits + float(good), count + number
        module.train()
        return Report(metric=hits / max(1, count), samples=count)

    def seed_draws(self, task: ClientTask) -> None:
        """Seed what dropout draws from on this device alone.

        `torch.manual_seed` also queues a call, with its stack, for every kind of device not in use: slow, and it
        piles up.
        """
        seed = derived_seed(self.seed, "local", task.client, task.first_batch)
        if self.draws is not None:
            self.draws.manual_seed(seed)
        elif self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)

    def update(
        self,
        task: ClientTask,
        values: Tensor,
        buffers: Tensor,
        loss: float | Tensor,
        report: Report | None,
        *,
        natural: bool = False,
    ) -> Update:
        """What the client sends back; `natural`: a whole model in natural order."""
        untrained = self.rule.norm in ("static", "batch")
        return Update(
            client=task.client,
            version=task.version,
            values=values,
            buffers=task.buffers if untrained else buffers,
            loss=loss,
            report=report,
            natural=natural,
        )
