"""Where a model's weights and a client's change lie: their shares inside each level, for the rows of a run.

The theory's factors need the share of a gradient inside a sub-model (`reporting/theory.py`). What rows cannot tell is
measured here, at evaluations only. The sums are made on the model's device, and nobody waits for it until the row is
written. They are in float64; on a CPU they run in the order of the coordinates, whatever the number of threads.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from fedgmr.experiments.views import level_names
from fedgmr.server.server import Server
from fedgmr.submodels.blocks import blocks
from fedgmr.transfer import Fetched

_BLOCK = 2**15  # coordinates: few enough that PyTorch sums them in one thread
_DIGITS = 6  # of a share in a row


class Shares:
    """The shares of one evaluation; a GPU may still be computing them."""

    def __init__(self, server: Server) -> None:
        """Start to measure the server's model as it is now; nothing where nobody has a sub-model."""
        self._names = level_names(server.ladder)
        self._sums: dict[str, Fetched] = {}  # by increment
        if not self._names:
            return
        self._model = server.model
        self._add("weight", _by_level(self._model.abs(), server.levels.levels, len(server.ladder)))
        self._add("norm", _by_level(self._model.square(), server.levels.levels, len(server.ladder)))
        if (update := _newest_change(server)) is not None:
            self._add("update", update)

    def compare(self, padded: Tensor) -> None:
        """Start to measure how far the padded view is from the merged model."""
        self._add("padded", _total((self._model - padded).square()))

    @property
    def ready(self) -> bool:
        """Whether nobody has to wait."""
        return all(sums.ready for sums in self._sums.values())

    @property
    def fields(self) -> dict[str, Any]:
        """The field of a row: of each measured vector its share inside each sub-model."""
        shares = {name: self._inside(name) for name in ("weight", "norm", "update") if name in self._sums}
        return {"shares": shares} if shares else {}

    @property
    def distance(self) -> dict[str, float | None]:
        """The field of the padded view: squared distance to the merged model over the squared norm of that one."""
        if "padded" not in self._sums:
            return {}
        return {"distance": _quotient(self._sums["padded"].values[0], math.fsum(self._sums["norm"].values))}

    def _add(self, name: str, sums: Tensor) -> None:
        self._sums[name] = Fetched(sums)

    def _inside(self, name: str) -> dict[str, float | None]:
        sums = self._sums[name].values
        inside, whole = itertools.accumulate(sums), math.fsum(sums)
        return {level: _quotient(part, whole) for level, part in zip(self._names, inside, strict=False)}


def _by_level(values: Tensor, levels: Tensor, count: int) -> Tensor:
    """Float64 [count + 1]: the sum of the values at each level, and at none."""
    if values.device.type != "cpu":
        zero = values.new_zeros(())
        parts = [torch.where(levels == level, values, zero).sum(dtype=torch.float64) for level in range(count + 1)]
        return torch.stack(parts)
    sums = torch.zeros(count + 1, dtype=torch.float64)
    for part in blocks(len(values), values.device, step=_BLOCK):
        sums += torch.bincount(levels[part], weights=values[part].double(), minlength=count + 1)
    return sums


def _total(values: Tensor) -> Tensor:
    """Float64 [1]: the sum of the values."""
    parts = [values[part].sum(dtype=torch.float64) for part in blocks(len(values), values.device, step=_BLOCK)]
    return torch.stack(parts).sum(0, keepdim=True)


def _newest_change(server: Server) -> Tensor | None:
    """Squares of what a client has changed in the whole model in the last tick, by level; None where nobody has.

    Only an update of staleness 0 counts: the model that it started from is the one before the last merge.
    """
    start = server.previous
    if start is None:
        return None
    for client in sorted(server.buffer):
        c = server.buffer[client]
        if c.version != server.tick - 1 or not (c.levels is None or c.levels.whole(c.level)):
            continue
        if c.levels is None:
            return _by_level((c.values - start).square(), server.levels.levels, len(server.ladder))
        change = (c.values - c.levels.pack(start, c.level)).square()  # in level order, where an increment is a slice
        return torch.cat([_total(change[first:stop]) for first, stop in itertools.pairwise([0, *c.levels.sizes])])
    return None


def _quotient(part: float, whole: float) -> float | None:
    """With the digits of a row; None where it is no number."""
    share = part / whole if whole > 0 else math.nan
    return float(f"{share:.{_DIGITS}g}") if math.isfinite(share) else None
