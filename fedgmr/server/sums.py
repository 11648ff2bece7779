"""Weighted sums and means over many contributions: one pass over their values, no masks.

Contributions of one level map are prefixes of the same level order: they are added there, and how much weight a
coordinate has got is a table by level. A whole model that came in natural order is added as it lies. What remains is
one permutation per level map. Nothing here waits for a device. Read next: `aggregation.py`, the rules that use it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgmr.submodels.blocks import blocks, gather, scatter_add
from fedgmr.submodels.levels import LevelMap
from fedgmr.transfer import sent

_TABLE_ENTRIES = 2**16  # of the weights by combination of levels; stays in a core's cache
_SPARSE = 0.4  # share of the coordinates below which adding them one by one beats a pass over all


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


Weights = Mapping[int, float]  # by client


@dataclass(frozen=True, kw_only=True, eq=False)
class _Group:
    """Contributions of one level map, the longest first."""

    levels: LevelMap
    members: Sequence[Contribution]

    @property
    def reach(self) -> int:
        """How many coordinates, in level order, the group covers."""
        return len(self.members[0].values)

    def table(self, weights: Weights) -> list[float]:
        """Σ weight by level; the last entry is for coordinates of no sub-model."""
        held = [(c.level, weights[c.client]) for c in self.members]
        return [math.fsum(w for top, w in held if top >= level) for level in range(len(self.levels.ladder))] + [0.0]


def total_of(contributions: Sequence[Contribution], weights: Weights, model: Tensor) -> Tensor:
    """Float [N]: Σ weight·value, a coordinate that a client does not hold counting as zero."""
    return _total(*_grouped(contributions, weights), weights, model)


def mean_of(contributions: Sequence[Contribution], weights: Weights, model: Tensor) -> Tensor:
    """Float [N]: the weighted mean over the clients that hold each coordinate; `model` where nobody does."""
    whole, groups = _grouped(contributions, weights)
    if not whole and not groups:
        return model.clone()
    if len(groups) == 1 and not whole:
        return _mean_of_one_map(groups[0], weights, model)
    total = _total(whole, groups, weights, model)
    everywhere = math.fsum(weights[c.client] for c in whole)
    if all(len(group.members[-1].values) == len(model) for group in groups):
        return total.div_(everywhere + math.fsum(group.table(weights)[0] for group in groups))
    covered = bool(whole) or any(group.reach == len(model) for group in groups)
    lookup = _WeightLookup(groups, weights, everywhere, model)
    for block in blocks(len(model), model.device):
        if covered:
            total[block].div_(lookup.weight(block))
        else:
            _mean_where_covered(total[block], lookup.weight(block), model[block])
    return total


def _grouped(contributions: Sequence[Contribution], weights: Weights) -> tuple[list[Contribution], list[_Group]]:
    """(whole models in natural order, the others by level map); a weight of zero covers nothing."""
    whole: list[Contribution] = []
    by_map: dict[int, tuple[LevelMap, list[Contribution]]] = {}
    for c in contributions:
        if weights[c.client] <= 0:
            continue
        if c.levels is None:
            whole.append(c)
        else:
            by_map.setdefault(c.map_version, (c.levels, []))[1].append(c)
    groups = [
        _Group(levels=levels, members=sorted(members, key=lambda c: -len(c.values)))
        for levels, members in by_map.values()
    ]
    return whole, groups


def _add_up(members: Sequence[Contribution], weights: Weights, out: Tensor) -> Tensor:
    """Σ weight·values into `out`; the first reaches to its end, none of the others further than the one before."""
    for block in blocks(len(out), out.device):
        torch.mul(members[0].values[block].to(out.dtype), weights[members[0].client], out=out[block])
        for c in members[1:]:
            part = c.values[block]
            if not len(part):
                break
            out[block.start : block.start + len(part)].add_(part, alpha=weights[c.client])
    return out


def _mean_of_one_map(group: _Group, weights: Weights, model: Tensor) -> Tensor:
    """All in level order, where a level's weight is one number; then once into natural order."""
    levels, reach = group.levels, group.reach
    ordered = _add_up(group.members, weights, model.new_empty(reach))
    stops = [min(size, reach) for size in levels.sizes]
    parts = [(a, b, w) for a, b, w in zip([0, *stops], stops, group.table(weights), strict=False) if b > a]
    if parts:
        torch._foreach_div_([ordered[a:b] for a, b, _ in parts], [w for _, _, w in parts])
    return levels.spread(ordered, model)


def _total(whole: Sequence[Contribution], groups: Sequence[_Group], weights: Weights, model: Tensor) -> Tensor:
    total = _add_up(whole, weights, torch.empty_like(model)) if whole else None
    # One piece of memory for all: taking a fresh one each time costs more than filling it.
    ordered = torch.empty_like(model) if groups else model
    # The group that reaches furthest first: where it covers everything nothing has to be zero before.
    for group in sorted(groups, key=lambda group: -group.reach):
        reach, levels = group.reach, group.levels
        _add_up(group.members, weights, ordered[:reach])
        if total is not None and reach <= _SPARSE * len(model):
            scatter_add(total, levels.order_of(reach), levels.sizes, ordered[:reach])
            continue
        ordered[reach:].zero_()
        natural = gather(ordered, levels.position)
        total = natural if total is None else total.add_(natural)
    return torch.zeros_like(model) if total is None else total


class _WeightLookup:
    """Σ weight at each coordinate: tables by the combination of the levels it has in several maps."""

    def __init__(self, groups: Sequence[_Group], weights: Weights, everywhere: float, model: Tensor) -> None:
        """`everywhere` is the weight of the whole models."""
        self._tables: list[tuple[list[tuple[Tensor, int]], Tensor]] = []
        maps: list[tuple[Tensor, int]] = []  # levels, and by how many entries of the table one level moves
        table = torch.tensor([everywhere], dtype=torch.float64)
        for group in groups:
            entries = torch.tensor(group.table(weights), dtype=torch.float64)
            if maps and len(table) * len(entries) > _TABLE_ENTRIES:
                self._tables.append((maps, sent(table.to(model.dtype), model.device)))
                maps, table = [], torch.zeros(1, dtype=torch.float64)
            maps.append((group.levels.levels, len(table)))
            table = (entries.view(-1, 1) + table).view(-1)
        self._tables.append((maps, sent(table.to(model.dtype), model.device)))
        longest = max(block.stop - block.start for block in blocks(len(model), model.device))
        self._code, self._step = torch.empty((2, longest), dtype=torch.int32, device=model.device)
        self._found = torch.empty((2, longest), dtype=model.dtype, device=model.device)

    def weight(self, block: slice) -> Tensor:
        """Of the coordinates in a block; the memory is used again for the next."""
        size = block.stop - block.start
        code, step = self._code[:size], self._step[:size]
        weight, more = self._found[0, :size], self._found[1, :size]
        for number, (maps, table) in enumerate(self._tables):
            code.copy_(maps[0][0][block])
            for levels, stride in maps[1:]:
                code.add_(step.copy_(levels[block]), alpha=stride)
            torch.index_select(table, 0, code, out=more if number else weight)
            if number:
                weight.add_(more)
        return weight


def _mean_where_covered(total: Tensor, weight: Tensor, model: Tensor) -> None:
    """Divide by the weight; where it is zero take `model`, exactly. Several times faster than torch.where."""
    free = weight.mul(-torch.finfo(weight.dtype).max).add_(1).clamp_(min=0)  # 1 where nobody is, 0 elsewhere
    total.div_(weight.add_(free)).addcmul_(model, free)
