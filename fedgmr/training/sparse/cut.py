"""Sparse cuts: the computation of a client with a small unstructured sub-model is in proportion to its density.

Like the masked cut, but large linear layers that keep few enough weights hold only these, and the client's vector has
no room for the others: no full-size product, gradient, update or mask is left. Read next: `linear.py`, the layer;
`break_even.py`, how few is few enough.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.training.chains import Chain
from fedgmr.training.sparse.channels import LiveConv2d
from fedgmr.training.sparse.linear import SparseLinear, SparseWeight
from fedgmr.training.sparse.patterns import Pattern
from fedgmr.training.submodel.cut import Cut, MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule


class _DenseModule(FlatModule):
    """The module with all its layers dense."""

    def __init__(self, module: nn.Module, layout: Layout, large: Mapping[str, nn.Linear]) -> None:
        """Take `module` over; the `large` layers, by the name of their weight, can be sparse."""
        chain = Chain.of(module)  # read before layers change their class
        sources = {} if chain is None else {name: LiveConv2d.before(chain, layer) for name, layer in large.items()}
        if chain is not None:
            chain.arrange_for_training()
        super().__init__(module, layout, torch.device("cpu"))
        self._views = self.views(self.flat)
        self.layers = {name: SparseLinear.take_over(layer) for name, layer in large.items()}
        self.convolutions = {name: convolution for name, convolution in sources.items() if convolution is not None}

    def attach(self) -> None:
        """Let the module compute with this vector, every layer dense."""
        self.make_dense(zip(self.parameters, self._views, strict=True))

    def make_dense(self, views: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Make every layer dense, and let these parameters be views of a vector."""
        for layer in self.layers.values():
            layer.sparse = None
        for convolution in self.convolutions.values():
            convolution.live = None
        for parameter, view in views:
            parameter.data = view


class _SparseModule(FlatModule):
    """The same module with some layers sparse: their tensors in the vector are the kept weights alone."""

    def __init__(self, dense: _DenseModule, layout: Layout, patterns: Mapping[str, Pattern]) -> None:
        self.dense, self.module, self.buffers, self.layout = dense, dense.module, dense.buffers, layout
        self.flat = torch.empty(layout.size, dtype=layout.dtype)
        self.order = self.inverse = None
        self._channels_last = False
        self.parameters = list(dense.parameters)
        self._sparse: list[tuple[SparseLinear, SparseWeight]] = []
        self._live: list[tuple[LiveConv2d, Tensor]] = []
        self._dense: list[tuple[Tensor, Tensor]] = []
        for number, (place, view) in enumerate(zip(layout.parameters, layout.views(self.flat), strict=True)):
            if place.name not in patterns:
                self._dense.append((dense.parameters[number], view))
                continue
            pattern = patterns[place.name]
            if place.name in dense.convolutions:
                pattern = self._without_dead_channels(dense.convolutions[place.name], pattern)
            weight = SparseWeight(pattern, view)
            self._sparse.append((dense.layers[place.name], weight))
            self.parameters[number] = weight.values

    def attach(self) -> None:
        """Let the module compute with this vector."""
        self.dense.make_dense(self._dense)
        for layer, weight in self._sparse:
            layer.sparse = weight
        for convolution, live in self._live:
            convolution.live = live

    def reset(self) -> None:
        """Set buffers outside the layout back to their initial values."""
        self.dense.reset()

    def _without_dead_channels(self, convolution: LiveConv2d, pattern: Pattern) -> Pattern:
        """Leave out the channels of `convolution` from which no weight is kept."""
        used = pattern.across_starts[:: pattern.inputs // convolution.out_channels].diff() > 0
        live = LiveConv2d.live_channels(used)
        if live is None:
            return pattern
        self._live.append((convolution, live))
        columns = torch.arange(pattern.inputs, dtype=torch.int32).view(len(used), -1)
        return pattern.among(columns.index_select(0, live).flatten())


class SparseCutter(MaskedCutter):
    """One module on a CPU; in a sub-model its large linear layers are sparse where that pays."""

    def __init__(self, model: nn.Module, layout: Layout, *, density: float, smallest: int) -> None:
        """Take `model` over; layers with `smallest` weights or more are sparse up to this density of their own."""
        large = self.large_layers(model, layout, smallest) if density > 0 else {}
        self.dense, self.layout = _DenseModule(model, layout, large), layout
        super().__init__(self.dense)
        sizes = {place.name: place.size for place in layout.parameters}
        self._at_most = {name: int(density * sizes[name]) for name in large}

    @staticmethod
    def large_layers(module: nn.Module, layout: Layout, smallest: int) -> dict[str, nn.Linear]:
        """Find the linear layers with at least `smallest` weights that can be sparse, by the name of their weight."""
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

    def cut(self, levels: LevelMap, level: int) -> Cut:
        """Make the cut of a level; a masked one where no layer keeps few enough weights."""
        places = {place.name: place for place in self.layout.parameters}
        found = {name: Pattern.find(levels, level, places[name], at_most=n) for name, n in self._at_most.items()}
        kept = {name: positions for name, positions in found.items() if positions is not None}
        if not kept:
            return super().cut(levels, level)
        own, codes, coordinates, start = [], [], [], 0
        for place in self.layout.parameters:
            code, shape = levels.levels[place.start : place.stop], place.shape
            here = torch.arange(place.start, place.stop, dtype=torch.int32)
            if place.name in kept:
                positions = kept[place.name]
                code = code.index_select(0, positions) if level > 0 else code.new_zeros(len(positions))
                here, shape = positions + place.start, (len(positions),)
            own.append(replace(place, start=start, shape=shape))
            codes.append(code)
            coordinates.append(here)
            start = own[-1].stop
        coded = torch.cat(codes).numpy()
        outside = coded > level
        packing = np.concatenate([np.flatnonzero(coded == inside) for inside in range(level + 1)])
        patterns = {name: Pattern.of(positions, places[name].shape) for name, positions in kept.items()}
        return Cut(
            module=_SparseModule(self.dense, replace(self.layout, parameters=tuple(own)), patterns),
            levels=levels,
            level=level,
            coordinates=torch.cat(coordinates),
            outside=torch.from_numpy(outside) if outside.any() else None,
            known_packing=torch.from_numpy(packing.astype(np.int32)),
        )
