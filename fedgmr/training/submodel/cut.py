"""A cut: how the sub-model of one level of one level map lies in the vector of a module.

The masked cut has all coordinates, those above the level stay zero. A sliced cut (`sliced_cut.py`) has the kept
coordinates alone, in a physically small module. A sparse cut (`training/sparse/cut.py`) leaves out what large linear
layers do not keep. A workspace makes each cut once and lays sub-models out by it. Read next: `workspace.py`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedgmr.submodels.levels import LevelMap
from fedgmr.training.submodel.flat_module import FlatModule

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class BitMask:
    """Entries of a CPU vector that stay zero, as bits.

    PyTorch fills masked entries one by one. A bitwise "and" of the numbers' own bits with all ones inside and none
    outside gives the same zeros at the speed of memory, ten times as fast.
    """

    def __init__(self, outside: Tensor, like: Tensor) -> None:
        """`outside` (bool) marks the entries of vectors like `like`."""
        self._inside = outside.to(_INTEGERS[like.element_size()]).sub_(1)

    def apply(self, flat: Tensor) -> None:
        """Zero the entries outside."""
        self._bits(flat).bitwise_and_(self._inside)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy `source` to `target` with zeros outside."""
        torch.bitwise_and(self._bits(source), self._inside, out=self._bits(target))

    def _bits(self, numbers: Tensor) -> Tensor:
        return numbers.view(self._inside.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """One sub-model in the vector of a module."""

    module: FlatModule
    levels: LevelMap
    level: int
    coordinates: Tensor | None = None  # where the vector's entries lie in the full vector; None: it is the full vector
    outside: Tensor | None = None  # bool: the entries that stay zero; None: every entry is in the sub-model
    statistics: Tensor | None = None  # where the module's buffers lie in the client's; None: they are the client's
    known_packing: Tensor | None = None

    def lay_out(self, source: Tensor, mask: BitMask | None) -> None:
        """Bring the sub-model's values from the full vector `source` into the module; `mask` is `outside` as bits."""
        self.module.attach()
        flat = self.module.flat
        if self.coordinates is None and mask is not None:
            mask.copy(source, flat)
            return
        if self.coordinates is None:
            flat.copy_(source)
        else:
            torch.index_select(source, 0, self.coordinates, out=flat)
        if mask is not None:
            mask.apply(flat)
        elif self.outside is not None:
            flat.masked_fill_(self.outside, 0)

    def values(self) -> Tensor:
        """A new vector: the sub-model's values in level order."""
        if self.packing is not None:
            return self.module.flat.index_select(0, self.packing)
        return self.levels.pack(self.module.flat, self.level)

    def whole_model(self) -> Tensor:
        """A new vector: the values of a whole model in natural order."""
        inverse = self.module.inverse
        return self.module.flat.clone() if inverse is None else self.module.flat.index_select(0, inverse)

    def put_back(self, state: Tensor) -> None:
        """Write the sub-model's values into the full vector `state`."""
        flat, outside = self.module.flat, self.outside
        if self.coordinates is not None:
            inside = slice(None) if outside is None else ~outside
            state.index_copy_(0, self.coordinates[inside].long(), flat[inside])
        elif outside is None:
            state.copy_(flat)
        else:
            torch.where(outside, state, flat, out=state)

    @cached_property
    def packing(self) -> Tensor | None:
        """The places of the values, in level order, in the module's vector; None if that is the full vector."""
        if self.known_packing is not None or self.coordinates is None:
            return self.known_packing
        size, order, at = self.levels.sizes[self.level], self.levels.order, self.module.inverse
        if at is None or len(at) < len(self.levels):  # a module with some of the coordinates
            at = torch.empty(len(self.levels), dtype=torch.int32, device=self.coordinates.device)
            at[self.coordinates.long()] = torch.arange(len(self.coordinates), dtype=torch.int32, device=at.device)
        return at[:size] if order is None else at.index_select(0, order[:size])


class Cutter(Protocol):
    """Makes the cuts of one method on one device."""

    def cut(self, levels: LevelMap, level: int, /) -> Cut:
        """Make the cut of a level."""

    def key(self, level: int, /) -> int:
        """Name the level's module: levels with the same key share one."""


class MaskedCutter:
    """One full-size module for all levels; a sub-model is the full model with zeros outside."""

    def __init__(self, module: FlatModule) -> None:
        self.module = module

    def cut(self, levels: LevelMap, level: int) -> Cut:
        """Make the cut of a level."""
        outside = None if levels.whole(level) else levels.levels > level
        order = self.module.order
        if outside is not None and order is not None:
            outside = outside.index_select(0, order)
        return Cut(module=self.module, levels=levels, level=level, coordinates=order, outside=outside)

    def key(self, level: int) -> int:
        """Name the only module."""
        return 0
