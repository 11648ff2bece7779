"""Below which density a large linear layer is faster sparse than dense on this machine, by a short measurement.

One training step of the layer alone, dense with a mask and sparse, on made-up numbers of the real size. Finding the
kept weights is counted, spread over one task's steps. What counts is processor time, so that other programs at work do
not decide. Read next: `sparse_bench.py`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedgmr.seeding import generator
from fedgmr.training.sparse.linear import SparseLinear, SparseWeight
from fedgmr.training.sparse.patterns import Pattern, true_positions
from fedgmr.training.submodel.bit_masks import bits, inside_bits

# Away from the usual ladder (0.05, 0.1, 0.2, 0.5), so that rounding a level's size decides nothing.
DENSITIES = (0.3, 0.15, 0.07, 0.03)
ASSUMED = 0.12  # where nothing was measured
_REPEATS = 3
_MARGIN = 0.95


@dataclass(frozen=True, kw_only=True)
class LayerWork:
    """What a layer has to do in a step."""

    outputs: int
    inputs: int
    rows: int  # samples, or samples times positions

    @property
    def products(self) -> int:
        """Multiplications of the forward pass."""
        return self.outputs * self.inputs * self.rows


def observe_layers(module: nn.Module, layers: Mapping[str, nn.Linear], inputs: Tensor) -> list[LayerWork]:
    """The work of those `layers` that `module` uses on `inputs`."""
    rows: dict[str, int] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            rows[name] = rows.get(name, 0) + given[0][..., 0].numel()

        return hook

    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module.eval()(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [
        LayerWork(outputs=layer.out_features, inputs=layer.in_features, rows=rows[name])
        for name, layer in layers.items()
        if name in rows
    ]


def break_even(work: LayerWork, *, steps: int, dtype: torch.dtype) -> float:
    """The largest of `DENSITIES` at which the layer is faster sparse; 0 where none is."""
    clock = time.process_time if time.get_clock_info("process_time").resolution < 1e-4 else time.perf_counter
    draws = generator(0, "break_even")
    layer = SparseLinear.take_over(nn.Linear(work.inputs, work.outputs, dtype=dtype))
    rows = torch.ones(work.rows, work.inputs, dtype=dtype, requires_grad=True)
    gradients = torch.ones(work.rows, work.outputs, dtype=dtype)
    size = work.outputs * work.inputs
    inside = inside_bits(torch.arange(size) % 2 == 0, layer.weight)
    dense = _seconds(_step(layer, layer.weight, rows, gradients, inside), clock)
    for density in DENSITIES:
        mask = np.zeros(size, dtype=np.bool_)
        cells = np.arange(int(density * size))
        mask[((cells + draws.random(len(cells))) / density).astype(np.int64).clip(max=size - 1)] = True
        began = clock()
        kept = torch.from_numpy(true_positions(mask, len(cells)))
        pattern = Pattern.of(kept, (work.outputs, work.inputs))
        building = clock() - began
        layer.sparse = SparseWeight(pattern, torch.ones(len(pattern.kept), dtype=dtype))
        sparse = _seconds(_step(layer, layer.sparse.values, rows, gradients, None), clock)
        if sparse + building / steps < _MARGIN * dense:
            return density
    return 0.0


def _step(
    layer: nn.Linear, weight: Tensor, rows: Tensor, gradients: Tensor, inside: Tensor | None
) -> Callable[[], None]:
    def step() -> None:
        _, of_weight = torch.autograd.grad(layer(rows), [rows, weight], gradients)
        with torch.no_grad():
            weight.add_(of_weight, alpha=-1e-3)
            if inside is not None:
                bits(weight).view(-1).bitwise_and_(inside)

    return step


def _seconds(step: Callable[[], None], clock: Callable[[], float]) -> float:
    """The fastest of some repetitions, after one to warm up."""
    step()
    best = float("inf")
    for _ in range(_REPEATS):
        began = clock()
        step()
        best = min(best, clock() - began)
    return best
