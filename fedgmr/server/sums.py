"""Weighted sums and means over many contributions: one pass over their values, no masks.

Contributions of one level map are prefixes of the same level order: they are added there, and the weight of a
coordinate depends on its level alone. A whole model in natural order is added as it is. One permutation per level map
remains. Nothing here waits for a device. Read next: `aggregation.py`, the rules that use it; `fused_sums.py`, the same
in one kernel on a GPU.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgmr.server import fused_sums
from fedgmr.server.buffer import Contribution
from fedgmr.submodels.blocks import Addend, blocks, gather, scatter_add
from fedgmr.submodels.levels import LevelMap

_SPARSE = 0.4  # share of the coordinates below which adding them one by one beats a pass over all

_Weights = Mapping[int, float]  # by client


@dataclass(frozen=True, kw_only=True, eq=False)
class _Group:
    """Contributions of one level map, the longest first."""

    levels: LevelMap
    members: Sequence[Contribution]

    @property
    def reach(self) -> int:
        """The number of coordinates, in level order, that the group covers."""
        return len(self.members[0].values)

    def steps(self, weights: _Weights) -> list[tuple[int, float]]:
        """(level, Σ weight of the members at this level)."""
        tops = dict.fromkeys(c.level for c in self.members)
        return [(top, math.fsum(weights[c.client] for c in self.members if c.level == top)) for top in tops]

    def table(self, weights: _Weights) -> list[float]:
        """Σ weight by level; the last entry is for coordinates of no sub-model."""
        held = [(c.level, weights[c.client]) for c in self.members]
        return [math.fsum(w for top, w in held if top >= level) for level in range(len(self.levels.ladder))] + [0.0]


def total_of(contributions: Sequence[Contribution], weights: _Weights, model: Tensor) -> Tensor:
    """Float [N]: Σ weight·value, a coordinate that a client does not hold counting as zero."""
    fused = fused_sums.add_up(contributions, weights, model, mean=False)
    return fused if fused is not None else _total(*_grouped(contributions, weights), weights, model)


def mean_of(contributions: Sequence[Contribution], weights: _Weights, model: Tensor) -> Tensor:
    """Float [N]: the weighted mean over the clients that hold each coordinate; `model` where nobody does."""
    fused = fused_sums.add_up(contributions, weights, model, mean=True)
    if fused is not None:
        return fused
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
    weight = _Weight(groups, weights, everywhere, model)
    for block in blocks(len(model), model.device):
        if covered:
            total[block].div_(weight.of(block))
        else:
            _mean_where_covered(total[block], weight.of(block), model[block])
    return total


def _grouped(contributions: Sequence[Contribution], weights: _Weights) -> tuple[list[Contribution], list[_Group]]:
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


def _add_up(members: Sequence[Contribution], weights: _Weights, out: Tensor) -> Tensor:
    """Σ weight·values into `out`; the first reaches to its end, none of the others further than the one before."""
    for block in blocks(len(out), out.device):
        _add_up_block(members, weights, out, block)
    return out


def _add_up_block(members: Sequence[Contribution], weights: _Weights, out: Tensor, block: slice) -> None:
    torch.mul(members[0].values[block].to(out.dtype), weights[members[0].client], out=out[block])
    for c in members[1:]:
        part = c.values[block]
        if not len(part):
            break
        out[block.start : block.start + len(part)].add_(part, alpha=weights[c.client])


def _mean_of_one_map(group: _Group, weights: _Weights, model: Tensor) -> Tensor:
    """The mean in level order, where a level's weight is one number; then once into natural order."""
    levels, reach = group.levels, group.reach
    ordered = model.new_empty(reach)
    edges = list(zip([0, *levels.sizes], levels.sizes, group.table(weights), strict=False))
    for block in blocks(reach, model.device):
        _add_up_block(group.members, weights, ordered, block)
        parts = [(ordered[max(a, block.start) : min(b, block.stop)], weight) for a, b, weight in edges]
        held = [(part, weight) for part, weight in parts if len(part)]
        torch._foreach_div_([part for part, _ in held], [weight for _, weight in held])
    return levels.spread(ordered, model)


def _total(whole: Sequence[Contribution], groups: Sequence[_Group], weights: _Weights, model: Tensor) -> Tensor:
    total = _add_up(whole, weights, torch.empty_like(model)) if whole else None
    # One piece of memory for all: taking a fresh one each time costs more than filling it.
    ordered = torch.empty_like(model) if groups else model
    waiting: list[Addend] = []
    taken = 0
    # The group that reaches furthest first: where it covers everything nothing has to be zero before.
    for group in sorted(groups, key=lambda group: -group.reach):
        reach, levels = group.reach, group.levels
        if total is None or reach > _SPARSE * len(model):
            _add_up(group.members, weights, ordered[:reach])
            ordered[reach:].zero_()
            natural = gather(ordered, levels.position)
            total = natural if total is None else total.add_(natural)
            continue
        if taken + reach > len(model):
            scatter_add(total, waiting)
            waiting, taken = [], 0
        values = _add_up(group.members, weights, ordered[taken : taken + reach])
        waiting.append(Addend(values=values, index=levels.order_of(reach), stops=levels.sizes))
        taken += reach
    if total is None:
        return torch.zeros_like(model)
    scatter_add(total, waiting)
    return total


class _Weight:
    """Σ weight at each coordinate, block by block."""

    def __init__(self, groups: Sequence[_Group], weights: _Weights, everywhere: float, model: Tensor) -> None:
        """`everywhere` is the weight of the whole models."""
        steps = [(group.levels, *step) for group in groups for step in group.steps(weights)]
        self._steps = [(levels.levels, top, weight) for levels, top, weight in steps if not levels.whole(top)]
        self._everywhere = math.fsum([everywhere, *(weight for levels, top, weight in steps if levels.whole(top))])
        longest = max(block.stop - block.start for block in blocks(len(model), model.device))
        self._found = torch.empty(longest, dtype=model.dtype, device=model.device)
        self._held = torch.empty(longest, dtype=torch.uint8, device=model.device)

    def of(self, block: slice) -> Tensor:
        """The weight of the coordinates in a block; the memory is used again for the next."""
        size = block.stop - block.start
        found, held = self._found[:size].fill_(self._everywhere), self._held[:size]
        for levels, top, weight in self._steps:
            # Into bytes: a comparison that gives truth values takes ten times as long.
            found.add_(torch.le(levels[block], top, out=held), alpha=weight)
        return found


def _mean_where_covered(total: Tensor, weight: Tensor, model: Tensor) -> None:
    """Divide by the weight; where it is zero take `model`, exactly. Several times faster than torch.where."""
    free = weight.mul(-torch.finfo(weight.dtype).max).add_(1).clamp_(min=0)  # 1 where nobody is, 0 elsewhere
    total.div_(weight.add_(free)).addcmul_(model, free)
