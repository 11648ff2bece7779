"""The density below which a large linear layer is faster sparse than dense on this machine, by a short measurement.

It times one training step of the layer alone, dense with a mask and sparse, on made-up numbers of the real size.
Finding the kept weights is counted, spread over one task's steps. Processor time counts, so that other programs at
work do not decide. Read next: `cut.py`.
"""

import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedgmr.seeding import generator
from fedgmr.submodels.inputs import Inputs, outputs_of
from fedgmr.training.sparse.linear import SparseLinear, SparseWeight
from fedgmr.training.sparse.patterns import Pattern
from fedgmr.training.submodel.cut import BitMask

# Away from the usual ladder (0.05, 0.1, 0.2, 0.5), so that rounding a level's size decides nothing.
DENSITIES = (0.3, 0.15, 0.07, 0.03)
ASSUMED = 0.12  # where nothing was measured
_REPEATS = 3
_MARGIN = 0.95


@dataclass(frozen=True, kw_only=True)
class LayerWork:
    """The work of a linear layer or a convolution in one step."""

    outputs: int
    inputs: int  # weights per output
    rows: int  # samples, or samples times positions

    @classmethod
    @torch.no_grad()
    def observe(cls, module: nn.Module, inputs: Inputs) -> "dict[nn.Module, LayerWork]":
        """Run `module` on `inputs`: the work of each linear layer and convolution that it uses."""
        works: dict[nn.Module, LayerWork] = {}

        def note(layer: nn.Linear | nn.modules.conv._ConvNd, _: object, products: Tensor) -> None:
            outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
            rows = products.numel() // outputs + (works[layer].rows if layer in works else 0)
            works[layer] = cls(outputs=outputs, inputs=layer.weight[0].numel(), rows=rows)

        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd)]
        hooks = [layer.register_forward_hook(note) for layer in layers]
        try:
            outputs_of(module, inputs)
        finally:
            for hook in hooks:
                hook.remove()
        return works

    @property
    def products(self) -> int:
        """The multiplications of the forward pass."""
        return self.outputs * self.inputs * self.rows

    def break_even(self, *, steps: int, dtype: torch.dtype) -> float:
        """Find the largest of `DENSITIES` at which the layer is faster sparse; 0 where none is."""
        clock = time.process_time if time.get_clock_info("process_time").resolution < 1e-4 else time.perf_counter
        draws = generator(0, "break_even")
        layer = SparseLinear.take_over(nn.Linear(self.inputs, self.outputs, dtype=dtype))
        rows = torch.ones(self.rows, self.inputs, dtype=dtype, requires_grad=True)
        gradients = torch.ones(self.rows, self.outputs, dtype=dtype)
        size = self.outputs * self.inputs
        mask = BitMask(torch.arange(size) % 2 == 0, layer.weight)
        dense = _seconds(_step(layer, layer.weight, rows, gradients, mask), clock)
        for density in DENSITIES:
            kept = np.zeros(size, dtype=np.bool_)
            cells = np.arange(int(density * size))
            kept[((cells + draws.random(len(cells))) / density).astype(np.int64).clip(max=size - 1)] = True
            began = clock()
            pattern = Pattern.of(torch.from_numpy(Pattern.positions(kept, len(cells))), (self.outputs, self.inputs))
            building = clock() - began
            layer.sparse = SparseWeight(pattern, torch.ones(len(pattern.kept), dtype=dtype))
            sparse = _seconds(_step(layer, layer.sparse.values, rows, gradients, None), clock)
            if sparse + building / steps < _MARGIN * dense:
                return density
        return 0.0


def _step(
    layer: nn.Linear, weight: Tensor, rows: Tensor, gradients: Tensor, mask: BitMask | None
) -> Callable[[], None]:
    def step() -> None:
        # Given to `grad`, they would make PyTorch import sympy, which takes most of a second.
        _, of_weight = torch.autograd.grad((layer(rows) * gradients).sum(), [rows, weight])
        with torch.no_grad():
            weight.add_(of_weight, alpha=-1e-3)
            if mask is not None:
                mask.apply(weight.view(-1))

    return step


def _seconds(step: Callable[[], None], clock: Callable[[], float]) -> float:
    """The fastest of some repetitions, after one to warm up."""
    step()
    return min(timeit.repeat(step, timer=clock, repeat=_REPEATS, number=1))
