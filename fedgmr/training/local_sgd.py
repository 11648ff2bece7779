"""One client's local training as a plain loop: the oracle every faster executor must agree with.

Section 3.2 of docs/decisions.md: take the task's sub-model, do the local steps on the client's next mini-batches,
hand back its values. An update is a function of the task alone. Read next: `bench.py` (where), `rules.py` (what).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Report, Update
from fedgmr.seeding import derived_seed
from fedgmr.tasks.partition import Indices, SampleOrder
from fedgmr.tasks.task import Task
from fedgmr.training.bench import Bench, Loss
from fedgmr.training.evaluation import batch_statistics
from fedgmr.training.rules import Batch, LocalRule


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
    ) -> None:
        """`held_out` are each client's own validation samples, where clients report the metric."""
        self.task, self.bench, self.order = task, bench, order
        self.steps, self.seed, self.rule, self.held_out = steps, seed, rule, held_out
        self.device = task.train[0].device

    def train(self, task: ClientTask) -> Update:
        """The update a client sends back for `task`."""
        bench = self.bench
        bench.begin(task, self._loss(task.client))
        report = self._report(task)
        batches = torch.from_numpy(self.order.batches(task.client, task.first_batch, self.steps)).to(self.device)
        inputs, targets = self.task.train
        losses = []
        with torch.random.fork_rng(devices=[]):
            _seed(self.device, derived_seed(self.seed, "local", task.client, task.first_batch))
            for number, chosen in enumerate(batches, task.first_batch):
                prepared = self._augmented(self.task.inputs(inputs[chosen]), task.client, number)
                batch = Batch(inputs=prepared, targets=targets[chosen], number=number, seed=self.seed)
                losses.append(self.rule.step(bench, batch))
        values, buffers = bench.finish()
        total = values.sum()
        # A non-finite weight makes this NaN, so the last step's damage is seen too.
        loss = torch.stack(losses).mean() + (total - total)
        return Update(
            client=task.client,
            version=task.version,
            values=values,
            buffers=task.buffers if self.rule.norm in ("static", "batch") else buffers,
            loss=float(loss),
            report=report,
        )

    def _augmented(self, inputs: Tensor, client: int, number: int) -> Tensor:
        """The mini-batch as it is trained on; what is drawn belongs to the client and the mini-batch's number."""
        if self.task.augment is None:
            return inputs
        draws = torch.Generator(self.device)
        draws.manual_seed(derived_seed(self.seed, "augment", client, number))
        return self.task.augment(inputs, draws)

    def _loss(self, client: int) -> Loss:
        """The task's loss, without the classes the client has not where the rule says so."""
        if not self.rule.masked_loss:
            return self.task.loss
        present = torch.unique(self.task.train[1][torch.from_numpy(self.order.parts[client]).to(self.device)])

        def masked(outputs: Tensor, targets: Tensor) -> Tensor:
            absent = torch.ones(outputs.shape[-1], dtype=torch.bool, device=outputs.device)
            absent[present] = False
            return self.task.loss(outputs.masked_fill(absent, 0), targets)

        return masked

    def _report(self, task: ClientTask) -> Report | None:
        """The received sub-model's metric on the client's own held-out samples."""
        if self.held_out is None:
            return None
        indices = torch.from_numpy(self.held_out[task.client]).to(self.device)
        module = self.bench.run().module.eval()
        inputs, targets = self.task.train
        with torch.no_grad(), batch_statistics(module if len(indices) > 1 else None):
            hits, count = self.task.metric(module(self.task.inputs(inputs[indices])), targets[indices])
        module.train()
        return Report(metric=float(hits) / max(1, count), samples=count)


def _seed(device: torch.device, seed: int) -> None:
    """Seed what dropout draws from on this device alone.

    `torch.manual_seed` also queues a call, with its stack, for every kind of device not in use: slow, and it piles up.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
