"""A linear layer that holds only its kept weights and computes only with them.

The kept weights are one vector in the order of a CSR matrix. Forward: a sparse product; gradient of the inputs: a
product with the transpose; gradient of the weights: only at the kept coordinates. All work is in proportion to the
density. Read next: `patterns.py`, where the kept weights lie; `cut.py`, which decides
which layers are sparse.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedgmr.training.sparse.patterns import Pattern

# MKL's and PyTorch's kernels read a sample's row in whole vector registers: 20 rows take longer than 24.
_ROWS = 8


class SparseWeight:
    """The kept weights of one layer: a leaf of the autograd graph, and the matrices that share its memory."""

    def __init__(self, pattern: Pattern, values: Tensor) -> None:
        """`values` [kept] is aliased: who changes it changes the layer."""
        self.pattern = pattern
        self.values = values.detach().requires_grad_()
        outputs, inputs = pattern.shape[0], pattern.inputs
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            self.matrix = _csr(pattern.starts, pattern.columns, values, (outputs, inputs))
        self._transposed = torch.empty_like(values)
        self._transpose = _csr(pattern.across_starts, pattern.across_columns, self._transposed, (inputs, outputs))

    def times(self, inputs: Tensor) -> Tensor:
        """[inputs, n] -> [outputs, n]."""
        return self.matrix @ inputs

    def transposed_times(self, outputs: Tensor) -> Tensor:
        """[outputs, n] -> [inputs, n]."""
        torch.index_select(self.values.detach(), 0, self.pattern.across, out=self._transposed)
        return self._transpose @ outputs

    def gradient(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Of the values: for each kept weight the product of a row of `outputs` and a row of `inputs`."""
        shape = self.pattern.shape[0], self.pattern.inputs
        sampled = _csr(self.pattern.starts, self.pattern.columns, torch.zeros_like(self.values), shape)
        torch.sparse.sampled_addmm(sampled, outputs, inputs.t(), beta=0.0, out=sampled)
        return sampled.values()

    def dense(self) -> Tensor:
        """The whole matrix, for whoever asks a layer for its weight; gradients lead back to the values."""
        outputs, inputs = self.pattern.shape
        zeros = torch.zeros(outputs * inputs, dtype=self.values.dtype)
        return zeros.scatter(0, self.pattern.kept.long(), self.values).view(outputs, inputs)


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
            return weight.times(across)[:, : len(rows)].t().contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        across, _ = ctx.saved_tensors  # asking for the values, too, tells if they were changed in between
        of_rows = of_values = None
        with torch.autocast("cpu", enabled=False):
            outputs = _padded(gradients)
            if ctx.needs_input_grad[0]:
                of_rows = ctx.weight.transposed_times(outputs)[:, : ctx.rows].t()
            if ctx.needs_input_grad[1]:
                of_values = ctx.weight.gradient(outputs, across)
        return of_rows, of_values, None


def _padded(rows: Tensor) -> Tensor:
    """[n, features] -> [features, n rounded up], zero in the added columns."""
    count, features = rows.shape
    padded = rows.new_empty((features, -(-count // _ROWS) * _ROWS))
    padded[:, :count] = rows.t()
    padded[:, count:] = 0
    return padded


def _csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)
