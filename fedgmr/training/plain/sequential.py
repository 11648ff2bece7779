"""The sequential executor: one task after the other in a plain loop, the oracle every faster executor must agree with.

Read next: `fedgmr/training/submodel/workspace.py`, where a task is trained; `threaded.py`, one such loop per thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch

from fedgmr.exchange import ClientTask, Update
from fedgmr.seeding import borrowed_generator
from fedgmr.tasks.samples import Batch
from fedgmr.training.submodel.workspace import Workspace
from fedgmr.training.work import LocalWork


class SequentialExecutor:
    """One task after the other in one workspace."""

    ahead = False

    def __init__(
        self, work: LocalWork, workspace: Workspace, *, natural: bool = False, draws: torch.Generator | None = None
    ) -> None:
        """Train in `workspace`, where the model draws from `draws`, None: from PyTorch's own generator.

        `natural`: whole models are handed over in natural order, to a server in the same process.
        """
        self.work, self.workspace, self.natural, self.draws = work, workspace, natural, draws

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """Return one update per task, in order."""
        steps = self.work.mini_batches(tasks)
        return [self._train(task, steps) for task in tasks]

    def _train(self, task: ClientTask, steps: Iterator[Batch]) -> Update:
        work, workspace = self.work, self.workspace
        shared = self.draws is None  # then others may draw from PyTorch's generator, too
        formats = work.execution.number_formats(work.device, training=True)
        with borrowed_generator() if shared else nullcontext(), formats:
            workspace.begin(task, work.loss_of(task.client))
            report = None if work.held_out is None else work.report(task, workspace.open().module)
            work.seed_draws(task, self.draws)
            losses = [work.rule.step(workspace, *next(steps), level) for level in work.levels(task)]
            values, buffers = workspace.finish(natural=self.natural)
        loss = float(work.mean_loss(losses, values))
        return work.update(task, values, buffers, loss, report, natural=self.natural, memory=workspace.memory())
