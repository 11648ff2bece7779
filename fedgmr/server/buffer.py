"""The buffer: each client's most recent update, kept for later merges (A13), and how it is kept.

An update of the whole model is kept in natural order once every client has the whole model, because then a merge needs
no permutation; before that in level order beside the sub-models, because then one permutation does for all. Read
next: `sums.py`, which adds the contributions up.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Update
from fedgmr.server.sums import Contribution

_HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class BufferRule:
    """Whether the server keeps each client's most recent update for later merges (A13)."""

    keep: bool = field(default=True, metadata={"help": "false: every update is merged once"})
    max_staleness: int | None = field(
        default=None, metadata={"at_least": 0, "help": "drop buffered updates older than this; none: never"}
    )
    dtype: Literal["float32", "float16", "bfloat16"] = field(
        default="float32",
        metadata={"help": "precision of the buffered values: float32 as they come; the others take half the memory"},
    )

    def stored(self, c: Contribution) -> Contribution:
        """The contribution as the buffer holds it; what float16 cannot hold becomes the largest that it can."""
        if not self.keep or self.dtype not in _HALF:
            return c
        half = _HALF[self.dtype]
        limit = torch.finfo(half).max
        return replace(c, values=c.values.clamp(-limit, limit).to(half))


def contribution(update: Update, task: ClientTask, *, natural: bool) -> Contribution:
    """What the server keeps of an update; a whole model's values in natural order if so wished."""
    return Contribution(
        client=update.client,
        version=task.version,
        level=task.level,
        levels=None if natural and task.levels.whole(task.level) else task.levels,
        map_version=task.map_version,
        values=_arranged(update, task, natural=natural),
        buffers=update.buffers,
    )


def _arranged(update: Update, task: ClientTask, *, natural: bool) -> Tensor:
    levels = task.levels
    if natural == update.natural or not levels.whole(task.level) or levels.order is None:
        return update.values
    return levels.spread(update.values, update.values) if natural else levels.pack(update.values, task.level)
