"""The table of a stack: one row of numbers per task, brought to the device in one copy.

A row has the columns below, then the level of each step, then the samples of each step. Tensors are named by their
address; they live as long as the task and its update. Read next: `executor.py`, which fills it;
`row_kernels.py`, which reads it.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgmr.exchange import ClientTask
from fedgmr.transfer import send


class Column(IntEnum):
    """The columns of a task's row."""

    MODEL = 0  # address of the global model
    LEVELS = 1  # address of the level map
    LEVEL = 2  # of the task's sub-model
    ORDER = 3  # address of the level order; 0 where the values are handed over in natural order
    COUNT = 4  # how many values are handed over
    VALUES = 5  # address of their place
    ABSENT = 6  # address of the classes that the client does not have; 0 where the loss is not masked
    RATE = 7  # learning rate, as a 64-bit float
    MEMORY = 8  # address of the velocity that the client brings along; 0 where it has none
    KEPT = 9  # address of the place for the one that it takes along; 0 where it keeps none
    SEED = 10  # of what the model draws while it trains


class TaskTable:
    """The rows of up to `most` tasks, on the device."""

    def __init__(self, most: int, steps: int, batch: int, device: torch.device) -> None:
        self.steps = steps
        self.rows = torch.zeros((most, len(Column) + steps + steps * batch), dtype=torch.int64, device=device)

    def send(self, rows: Sequence[NDArray[np.int64]]) -> None:
        """Bring the rows of the next tasks to the device."""
        send(torch.from_numpy(np.stack(rows)), self.rows[: len(rows)])

    def row(
        self,
        task: ClientTask,
        values: Tensor,
        kept: Tensor | None,
        absent: Tensor | None,
        seed: int,
        levels: Sequence[int],
        batches: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Write a task as numbers; its update goes to `values`, its velocity to `kept`."""
        row = np.empty(self.rows.shape[1], np.int64)
        order = None if task.levels.whole(task.level) else task.levels.order
        row[Column.MODEL] = task.model.data_ptr()
        row[Column.LEVELS] = task.levels.levels.data_ptr()
        row[Column.LEVEL] = task.level
        row[Column.ORDER] = 0 if order is None else order.data_ptr()
        row[Column.COUNT] = len(values)
        row[Column.VALUES] = values.data_ptr()
        row[Column.ABSENT] = 0 if absent is None else absent.data_ptr()
        row.view(np.float64)[Column.RATE] = task.learning_rate
        row[Column.MEMORY] = 0 if task.memory is None else task.memory.data_ptr()
        row[Column.KEPT] = 0 if kept is None else kept.data_ptr()
        row[Column.SEED] = seed
        row[len(Column) : len(Column) + self.steps] = levels
        row[len(Column) + self.steps :] = batches.reshape(-1)
        return row

    def parts(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The first rows' columns, learning rates, levels [count, steps] and samples [count · steps, batch]."""
        rows, behind = self.rows[:count], len(Column) + self.steps
        rates = rows.view(torch.float64)[:, Column.RATE]
        batches = rows[:, behind:].reshape(count * self.steps, -1)
        return rows[:, : len(Column)], rates, rows[:, len(Column) : behind], batches
