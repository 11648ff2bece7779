"""Sparse training: what a client with a small unstructured sub-model computes is in proportion to its density.

Like the masked bench, but large linear layers that keep few enough weights hold only these, and the client's vector
has no room for the others: no full-size product, gradient, update or mask is left. Where the weights of a sub-model
lie is found once per level map and level. Read next: `sparse_linear.py`, the layer; `break_even.py`, how few is few.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.training.optimizers import SGD, Optimizer
from fedgmr.training.plain.chains import arrange_for_training
from fedgmr.training.sparse.channels import LiveConv2d, convolution_before, live_channels
from fedgmr.training.sparse.linear import SparseLinear, SparseWeight
from fedgmr.training.sparse.patterns import Pattern, find_kept
from fedgmr.training.submodel.bit_masks import BitMaskedBench, bits, inside_bits
from fedgmr.training.submodel.workspace import Desk, LocalRun

_MAPS = 2  # tasks of the level map before are still in flight when a new one is made


def large_layers(module: nn.Module, layout: Layout, smallest: int) -> dict[str, nn.Linear]:
    """The linear layers with at least `smallest` weights that can be sparse, by the name of their weight."""
    places = {place.name: place for place in layout.parameters}
    uses: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    found = {}
    for prefix, layer in module.named_modules():
        name = f"{prefix}.weight" if prefix else "weight"
        # A class of its own (an attention's output layer, a parametrised one) may use its weight in other ways.
        if type(layer) is not nn.Linear or name not in places or uses[id(layer.weight)] > 1:
            continue
        if smallest <= places[name].size < 2**31:
            found[name] = layer
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """A sub-model whose sparse tensors have their kept coordinates only, the others all of theirs."""

    whole: Layout
    layout: Layout  # of the vector of the cut; a sparse tensor is one-dimensional in it
    patterns: Mapping[str, Pattern]
    outside: Tensor | None  # bool: the entries that stay zero
    packing: Tensor  # int32: where the values of the sub-model, in level order, lie in the vector

    def load(self, source: Tensor, out: Tensor) -> None:
        """The entries of the cut out of the full vector `source`."""
        for place, here in zip(self.whole.parameters, self.layout.parameters, strict=True):
            part, target = source[place.start : place.stop], out[here.start : here.stop]
            if place.name in self.patterns:
                torch.index_select(part, 0, self.patterns[place.name].kept, out=target)
            else:
                target.copy_(part)

    @cached_property
    def coordinates(self) -> Tensor:
        """Int64: where each entry of the vector lies in the full one."""
        return torch.cat(
            [
                self.patterns[place.name].kept + place.start
                if place.name in self.patterns
                else torch.arange(place.start, place.stop)
                for place in self.whole.parameters
            ]
        ).long()


def cut_sparse(levels: LevelMap, level: int, layout: Layout, below: Mapping[str, int]) -> Cut | None:
    """The cut in which each tensor of `below` with at most so many kept coordinates is sparse; None if none is."""
    found = {p.name: find_kept(levels, level, p, at_most=below[p.name]) for p in layout.parameters if p.name in below}
    sparse = {name: kept for name, kept in found.items() if kept is not None}
    if not sparse:
        return None
    places, codes, start = [], [], 0
    for place in layout.parameters:
        kept, code, shape = sparse.get(place.name), levels.levels[place.start : place.stop], place.shape
        if kept is not None:
            code = code.index_select(0, kept) if level > 0 else code.new_zeros(len(kept))
            shape = (len(kept),)
        places.append(replace(place, start=start, shape=shape))
        codes.append(code)
        start = places[-1].stop
    coded = torch.cat(codes).numpy()
    outside = coded > level
    packing = np.concatenate([np.flatnonzero(coded == inside) for inside in range(level + 1)])
    shapes = {place.name: place.shape for place in layout.parameters}
    return Cut(
        whole=layout,
        layout=replace(layout, parameters=tuple(places)),
        patterns={name: Pattern.of(kept, shapes[name]) for name, kept in sparse.items()},
        outside=torch.from_numpy(outside) if outside.any() else None,
        packing=torch.from_numpy(packing.astype(np.int32)),
    )


class SparseDesk(Desk):
    """The module of another desk in which the layers of a cut are sparse."""

    def __init__(
        self, desk: Desk, layers: Mapping[str, SparseLinear], channels: Mapping[str, LiveConv2d], cut: Cut
    ) -> None:
        """`channels`: for some of the layers the convolution whose channels they read."""
        self.module, self.buffers, self.layout, self.cut = desk.module, desk.buffers, cut.layout, cut
        self.flat = torch.empty(cut.layout.size, dtype=cut.layout.dtype)
        self.inside = None if cut.outside is None else inside_bits(cut.outside, self.flat)
        self.parameters = []
        self._dense: list[tuple[Tensor, Tensor]] = []
        self._sparse: list[tuple[SparseLinear, SparseWeight]] = []
        self._live: list[tuple[LiveConv2d, Tensor]] = []
        for place, view, parameter in zip(
            cut.layout.parameters, cut.layout.views(self.flat), desk.parameters, strict=True
        ):
            if place.name in cut.patterns:
                pattern = cut.patterns[place.name]
                if place.name in channels:
                    pattern = self._leave_out(channels[place.name], pattern)
                weight = SparseWeight(pattern, view)
                self._sparse.append((layers[place.name], weight))
                self.parameters.append(weight.values)
            else:
                self._dense.append((parameter, view))
                self.parameters.append(parameter)

    def load(self, source: Tensor) -> None:
        """The sub-model of the full vector `source`, in the module."""
        self.cut.load(source, self.flat)
        if self.inside is not None:
            bits(self.flat).bitwise_and_(self.inside)
        for parameter, view in self._dense:
            parameter.data = view
        for layer, weight in self._sparse:
            layer.sparse = weight
        for convolution, live in self._live:
            convolution.live = live

    def _leave_out(self, convolution: LiveConv2d, pattern: Pattern) -> Pattern:
        """The pattern without the channels of `convolution` from which no weight is kept."""
        used = pattern.across_starts[:: pattern.inputs // convolution.out_channels].diff() > 0
        live = live_channels(used)
        if live is None:
            return pattern
        self._live.append((convolution, live))
        columns = torch.arange(pattern.inputs, dtype=torch.int32).view(len(used), -1)
        return pattern.among(columns.index_select(0, live).flatten())


class SparseBench(BitMaskedBench):
    """One module; in a sub-model its large linear layers are sparse where that pays."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        device: torch.device,
        optimizer: Optimizer | None = None,
        *,
        density: float,
        smallest: int,
    ) -> None:
        """Takes `module` over.

        Args:
            module: the model.
            layout: of the model.
            device: a CPU.
            optimizer: plain SGD if none is given.
            density: a layer that keeps at most this share of its weights is sparse.
            smallest: layers with fewer weights stay dense.
        """
        large = large_layers(module, layout, smallest) if density > 0 else {}
        sources = {name: convolution_before(module, layer) for name, layer in large.items()}
        arrange_for_training(module, device)
        super().__init__(module, layout, device, optimizer)
        self._layers = {name: SparseLinear.take_over(layer) for name, layer in large.items()}
        self._channels = {name: LiveConv2d.take_over(conv) for name, conv in sources.items() if conv is not None}
        sizes = {place.name: place.size for place in layout.parameters}
        self._below = {name: int(density * sizes[name]) for name in self._layers}
        self._desks: dict[int, dict[int, SparseDesk | None]] = {}  # by map version and level; None: nothing is sparse

    def _lay_out(self, level: int, source: Tensor) -> tuple[Desk, Tensor | None]:
        for layer in self._layers.values():
            layer.sparse = None
        for convolution in self._channels.values():
            convolution.live = None
        desk = self._known_desk(level)
        if desk is not None:
            desk.load(source)
            return desk, desk.cut.outside
        for parameter, view in zip(self.desk.parameters, self.desk.layout.views(self.desk.flat), strict=True):
            parameter.data = view
        return super()._lay_out(level, source)

    def _inside_of(self, level: int) -> Tensor | None:
        desk = self._known_desk(level)
        return super()._inside_of(level) if desk is None else desk.inside

    def _coordinates(self, level: int) -> Tensor | None:
        desk = self._known_desk(level)
        # Plain SGD remembers nothing of a coordinate, so nobody asks.
        return None if desk is None or isinstance(self.optimizer, SGD) else desk.cut.coordinates

    def _put_back(self, run: LocalRun, state: Tensor) -> None:
        desk = self._known_desk(run.level)
        if desk is None:
            return super()._put_back(run, state)
        inside = slice(None) if run.outside is None else ~run.outside
        state.index_copy_(0, desk.cut.coordinates[inside], run.flat[inside])
        return None

    def _values(self, run: LocalRun) -> Tensor:
        desk = self._known_desk(run.level)
        return super()._values(run) if desk is None else run.flat.index_select(0, desk.cut.packing)

    def sparse_desk(self, levels: LevelMap, level: int) -> SparseDesk | None:
        """A desk for the sub-model with its few-weight layers sparse; None where there is no such layer."""
        cut = cut_sparse(levels, level, self.desk.layout, self._below)
        return None if cut is None else SparseDesk(self.desk, self._layers, self._channels, cut)

    def _known_desk(self, level: int) -> SparseDesk | None:
        version = self.task.map_version
        desks = self._desks.pop(version, {})
        self._desks[version] = desks  # the one used last is last
        if len(self._desks) > _MAPS:
            del self._desks[next(iter(self._desks))]
        if level not in desks:
            desks[level] = self.sparse_desk(self.task.levels, level)
        return desks[level]
