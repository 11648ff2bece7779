"""The buffer: each client's most recent update, kept for later merges (A13), and how it is kept.

An update of the whole model is kept in natural order once every client has the whole model, because then a merge needs
no permutation. Before that it is kept in level order beside the sub-models, because then one permutation serves all.
Read next: `sums.py`, which adds the contributions up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Update
from fedgmr.submodels.levels import LevelMap


@dataclass(frozen=True, kw_only=True, eq=False)
class Contribution:
    """One client's update as the server keeps it."""

    client: int
    version: int  # merges done when the client's task was dispatched
    level: int
    levels: LevelMap | None  # whose level order the values are in; None: a whole model's, in natural order
    map_version: int
    values: Tensor
    buffers: Tensor

    @classmethod
    def of(cls, update: Update, task: ClientTask, *, natural: bool) -> "Contribution":
        """The contribution of an update; `natural`: a whole model's values in natural order."""
        levels, values = task.levels, update.values
        whole = levels.whole(task.level)
        if whole and natural != update.natural and levels.order is not None:
            values = levels.spread(values, values) if natural else levels.pack(values, task.level)
        return cls(
            client=update.client,
            version=task.version,
            level=task.level,
            levels=None if natural and whole else levels,
            map_version=task.map_version,
            values=values,
            buffers=update.buffers,
        )


@dataclass(frozen=True, kw_only=True)
class BufferRule:
    """Whether the server keeps each client's most recent update for later merges (A13)."""

    keep: bool = field(
        default=True,
        metadata={
            "help": "merge each client's most recent update again until a newer one comes; `false`: every update once"
        },
    )
    max_staleness: int | None = field(
        default=None, metadata={"at_least": 0, "help": "drop kept updates that are staler than this; `null`: never"}
    )
    dtype: Literal["float32", "float16", "bfloat16"] = field(
        default="float32",
        metadata={
            "help": (
                "precision of the kept updates. `float32` changes nothing; `float16` and `bfloat16` take half the "
                "memory, and the merge still computes in float32. Values above 65504 are kept as 65504 in float16"
            )
        },
    )

    aging: bool = field(
        default=True,
        metadata={
            "help": (
                "a kept update loses weight with every merge; `false`: it keeps the weight that it had when it arrived"
            )
        },
    )

    @property
    def ages(self) -> bool:
        """Whether an update loses weight with time; one that is merged once does not."""
        return self.keep and self.aging

    def take(
        self, fresh: Sequence[Contribution], buffer: dict[int, Contribution], tick: int
    ) -> tuple[list[Contribution], list[Contribution]]:
        """Put the arrivals into the buffer; returns those that are not too old, and all that can be merged now."""
        limit = math.inf if self.max_staleness is None else self.max_staleness
        fresh = [c for c in fresh if tick - c.version <= limit]
        if self.keep:
            for client in [client for client, c in buffer.items() if tick - c.version > limit]:
                del buffer[client]
        elif fresh:
            buffer.clear()  # only now: until the next updates come they are the padded model's
        buffer.update((c.client, self.stored(c)) for c in fresh)
        return fresh, [buffer[client] for client in sorted(buffer)] if self.keep else fresh

    def stored(self, c: Contribution) -> Contribution:
        """The contribution as the buffer holds it; what float16 cannot hold becomes the largest that it can."""
        if not self.keep or self.dtype == "float32":
            return c
        half: torch.dtype = getattr(torch, self.dtype)
        limit = torch.finfo(half).max
        return replace(c, values=c.values.clamp(-limit, limit).to(half))
