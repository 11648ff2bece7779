"""A linear layer that holds only its kept weights and computes only with them.

The kept weights are one vector in the order of a CSR matrix. Forward: a sparse product; gradient of the inputs: a
product with the transpose; gradient of the weights: only at the kept coordinates. All work is in proportion to the
density. Read next: `sparse_bench.py`, which decides what is laid out this way.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# MKL's and PyTorch's kernels read a sample's row in whole vector registers: 20 rows take longer than 24.
_ROWS = 8


def true_positions(mask: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """Where `mask` is true, ascending; `count` is how often."""
    if len(mask) % 8 or 10 * count > len(mask):
        return np.flatnonzero(mask)
    # Few are: looking at eight bytes at once skips most of the others.
    words = mask.view(np.uint64)
    places = np.flatnonzero(words != 0)
    within = np.flatnonzero(words[places].view(np.bool_))
    found: NDArray[np.int64] = (places[within >> 3] << 3) + (within & 7)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Pattern:
    """Which weights of a layer are kept: the CSR indices of the matrix and of its transpose."""

    shape: tuple[int, int]  # outputs, inputs
    starts: Tensor  # int32 [outputs + 1]: where each row of the matrix begins
    columns: Tensor  # int32 [kept]
    across_starts: Tensor  # int32 [inputs + 1]: the same of the transpose
    across_columns: Tensor
    across: Tensor  # int32 [kept]: for each entry of the transpose, which entry of the matrix it is

    @classmethod
    def of(cls, kept: NDArray[np.int64], shape: Sequence[int]) -> "Pattern":
        """The pattern of the ascending positions `kept` in the flattened matrix."""
        outputs, inputs = shape
        bounds = torch.arange(0, outputs * inputs + 1, inputs)
        places = torch.from_numpy(kept)
        starts = torch.searchsorted(places, bounds, out_int32=True)
        rows = torch.repeat_interleave(torch.arange(outputs, dtype=torch.int32), starts.diff())
        columns = places.to(torch.int32).sub_(rows * inputs)
        # Short numbers are sorted by counting.
        ordered = torch.sort(columns.to(torch.int16) if inputs < 2**15 else columns, stable=True)
        return cls(
            shape=(outputs, inputs),
            starts=starts,
            columns=columns,
            across_starts=torch.searchsorted(
                ordered.values, torch.arange(inputs + 1, dtype=ordered.values.dtype), out_int32=True
            ),
            across_columns=rows.index_select(0, ordered.indices),
            across=ordered.indices.to(torch.int32),
        )

    def positions(self) -> Tensor:
        """Int64 [kept]: the kept positions in the flattened matrix."""
        outputs, inputs = self.shape
        rows = torch.repeat_interleave(torch.arange(outputs), self.starts.diff().long())
        return rows * inputs + self.columns


class SparseWeight:
    """The kept weights of one layer: a leaf of the autograd graph, and the matrices that share its memory."""

    def __init__(self, pattern: Pattern, values: Tensor) -> None:
        """`values` [kept] is aliased: who changes it changes the layer."""
        self.pattern = pattern
        self.values = values.detach().requires_grad_()
        outputs, inputs = pattern.shape
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            self.matrix = _csr(pattern.starts, pattern.columns, values, (outputs, inputs))
        self._transpose = _csr(
            pattern.across_starts, pattern.across_columns, torch.empty_like(values), (inputs, outputs)
        )

    def transpose(self) -> Tensor:
        """The transposed matrix as the values are now."""
        torch.index_select(self.values.detach(), 0, self.pattern.across, out=self._transpose.values())
        return self._transpose

    def gradient(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Of the values: for each kept weight the product of a row of `outputs` and a row of `inputs`."""
        sampled = _csr(self.pattern.starts, self.pattern.columns, torch.zeros_like(self.values), self.pattern.shape)
        torch.sparse.sampled_addmm(sampled, outputs, inputs.t(), beta=0.0, out=sampled)
        return sampled.values()

    def dense(self) -> Tensor:
        """The whole matrix, for whoever asks a layer for its weight; gradients lead back to the values."""
        outputs, inputs = self.pattern.shape
        zeros = torch.zeros(outputs * inputs, dtype=self.values.dtype)
        return zeros.scatter(0, self.pattern.positions(), self.values).view(outputs, inputs)


class SparseLinear(nn.Linear):
    """A linear layer whose weight is dense, or for a while `sparse`."""

    sparse: SparseWeight | None

    @classmethod
    def take_over(cls, layer: nn.Linear) -> "SparseLinear":
        """`layer` itself, of this class from now on; its weight is dense as before."""
        layer.__class__ = cls
        assert isinstance(layer, cls)
        layer.sparse = None
        return layer

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight as a matrix."""
        if self.sparse is not None:
            return self.sparse.dense()
        weight = self._parameters["weight"]
        assert weight is not None
        return weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs times the transposed weight, plus the bias."""
        if self.sparse is None:
            return functional.linear(inputs, self.weight, self.bias)
        rows = inputs.reshape(-1, inputs.shape[-1]).to(self.sparse.values.dtype)  # under autocast they come in another
        products: Tensor = _Product.apply(rows, self.sparse.values, self.sparse)  # type: ignore[no-untyped-call]
        products = products.view(*inputs.shape[:-1], -1)
        return products if self.bias is None else products + self.bias


class _Product(torch.autograd.Function):
    """rows [n, inputs] -> [n, outputs]; always in the type of the weights."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, values: Tensor, weight: SparseWeight) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            across = _padded(rows)
            ctx.save_for_backward(across, values)
            ctx.weight, ctx.rows = weight, len(rows)
            return (weight.matrix @ across)[:, : len(rows)].t().contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        across, _ = ctx.saved_tensors  # asking for the values, too, tells if they were changed in between
        of_rows = of_values = None
        with torch.autocast("cpu", enabled=False):
            outputs = _padded(gradients)
            if ctx.needs_input_grad[0]:
                of_rows = (ctx.weight.transpose() @ outputs)[:, : ctx.rows].t().contiguous()
            if ctx.needs_input_grad[1]:
                of_values = ctx.weight.gradient(outputs, across)
        return of_rows, of_values, None


def _padded(rows: Tensor) -> Tensor:
    """[n, features] -> [features, n rounded up], zero in the added columns."""
    count, features = rows.shape
    padded = rows.new_zeros((features, -(-count // _ROWS) * _ROWS))
    padded[:, :count] = rows.t()
    return padded


def _csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)
