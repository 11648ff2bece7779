"""Values that travel in 16 bits, in a simulation: a client receives and sends back rounded values.

The rounding is the wire format's, so that a simulated and a deployed run still agree bit for bit.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Update
from fedgmr.training.executor import Executor
from fedgmr.wire import ValueType

_TYPES = {ValueType.FP16: torch.float16, ValueType.BF16: torch.bfloat16}


class RoundingExecutor:
    """Another executor between two roundings."""

    def __init__(self, executor: Executor, value_type: ValueType) -> None:
        self.executor, self.type = executor, _TYPES[value_type]
        self.ahead = executor.ahead

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        """One update per task, in order."""
        models = {id(task.model): task.model for task in tasks}
        received = {key: self._rounded(model) for key, model in models.items()}
        tasks = [replace(task, model=received[id(task.model)]) for task in tasks]
        return [self._sent(*each) for each in zip(self.executor.train(tasks), tasks, strict=True)]

    def _sent(self, update: Update, task: ClientTask) -> Update:
        """The update as it travels; one that 16 bits cannot hold has diverged, which is what a node says of its own."""
        values, loss = self._rounded(update.values), update.loss
        total = values.sum()
        gone = total - total  # 0, or NaN
        if not isinstance(loss, Tensor):
            return replace(update, values=values, loss=loss + float(gone))
        return replace(update, values=values, loss=loss + gone).kept_where(torch.isfinite(gone), task)

    def _rounded(self, values: Tensor) -> Tensor:
        return values.to(self.type).to(values.dtype)
