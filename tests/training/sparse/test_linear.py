"""The sparse linear layer: by hand, and against the dense layer with zeros."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from fedgmr.training.sparse.linear import SparseLinear, SparseWeight
from fedgmr.training.sparse.patterns import Pattern


def pattern_of(mask: Tensor) -> Pattern:
    return Pattern.of(torch.nonzero(mask.view(-1)).view(-1).int(), mask.shape)


def test_products_by_hand() -> None:
    # outputs = (2·x1 + 3·x3, 0, 5·x0 + 7·x1) + (1, 1, 1)
    layer = SparseLinear.take_over(nn.Linear(4, 3))
    with torch.no_grad():
        assert layer.bias is not None
        layer.bias.fill_(1)
    values = torch.tensor([2.0, 3.0, 5.0, 7.0])
    mask = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    layer.sparse = SparseWeight(pattern_of(mask), values)
    inputs = torch.tensor([[1.0, 10.0, 100.0, 1000.0], [0.0, 1.0, 0.0, 1.0]], requires_grad=True)
    outputs = layer(inputs)
    assert outputs.tolist() == [[3021.0, 1.0, 76.0], [6.0, 1.0, 8.0]]
    of_inputs, of_values, of_bias = torch.autograd.grad(
        outputs, [inputs, layer.sparse.values, layer.bias], torch.tensor([[1.0, 9.0, 0.0], [0.0, 0.0, 2.0]])
    )
    assert of_inputs.tolist() == [[0.0, 2.0, 0.0, 3.0], [10.0, 14.0, 0.0, 0.0]]
    # a: 1·x1 of the first row; b: 1·x3; c: 2·x0 of the second; d: 2·x1.
    assert of_values.tolist() == [10.0, 1000.0, 0.0, 2.0]
    assert of_bias.tolist() == [1.0, 9.0, 2.0]
    values[0] = 4.0  # what aliases the values changes the layer
    assert layer(inputs)[1].tolist() == [8.0, 1.0, 8.0]


def pair(
    shape: tuple[int, int], density: float, dtype: torch.dtype = torch.float64, *, bias: bool = True
) -> tuple[nn.Linear, SparseLinear, SparseWeight, Tensor]:
    """A dense layer with zeros, the same one sparse, its weight, and the kept positions."""
    torch.manual_seed(sum(shape))
    outputs, inputs = shape
    dense = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    mask = torch.rand(shape) < density
    mask[0, 0] = True
    with torch.no_grad():
        dense.weight.mul_(mask)
    other = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    other.load_state_dict(dense.state_dict())
    sparse = SparseLinear.take_over(other)
    kept = torch.nonzero(mask.view(-1)).view(-1)
    sparse.sparse = SparseWeight(pattern_of(mask), dense.weight.detach().view(-1)[kept].clone())
    return dense, sparse, sparse.sparse, kept


@pytest.mark.parametrize("shape", [(40, 30), (7, 13), (1, 300), (300, 1)])
@pytest.mark.parametrize("rows", [(1,), (8,), (21,), (3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_dense_layer_with_zeros(shape: tuple[int, int], rows: tuple[int, ...], bias: bool) -> None:
    dense, sparse, weight, kept = pair(shape, 0.1, bias=bias)
    inputs = torch.randn(*rows, shape[1], dtype=torch.float64, requires_grad=True)
    wanted, found = dense(inputs), sparse(inputs)
    gradients = torch.randn_like(wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    biases = [[layer.bias] if bias else [] for layer in (dense, sparse)]
    by_dense = torch.autograd.grad(wanted, [inputs, dense.weight, *biases[0]], gradients)
    by_sparse = torch.autograd.grad(found, [inputs, weight.values, *biases[1]], gradients)
    torch.testing.assert_close(by_sparse[0], by_dense[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_sparse[1], by_dense[1].view(-1)[kept], rtol=1e-12, atol=1e-12)
    assert not bias or torch.equal(by_sparse[2], by_dense[2])


def test_rows_that_need_no_gradient_get_none() -> None:
    dense, sparse, weight, kept = pair((9, 20), 0.2)
    inputs = torch.randn(4, 20, dtype=torch.float64)
    (found,) = torch.autograd.grad(sparse(inputs).sum(), [weight.values])
    (wanted,) = torch.autograd.grad(dense(inputs).sum(), [dense.weight])
    torch.testing.assert_close(found, wanted.view(-1)[kept])


def test_who_asks_for_the_weight_gets_a_matrix() -> None:
    dense, sparse, weight, _ = pair((6, 5), 0.4)
    assert torch.equal(sparse.weight, dense.weight)
    assert (sparse.in_features, sparse.out_features, isinstance(sparse, nn.Linear)) == (5, 6, True)
    (found,) = torch.autograd.grad((sparse.weight**2).sum(), [weight.values])
    assert torch.equal(found, 2 * weight.values)
    sparse.sparse = None
    assert torch.equal(sparse.weight, dense.weight)
    assert isinstance(sparse.weight, nn.Parameter)


def test_hooks_and_mode_stay() -> None:
    layer, seen = nn.Linear(3, 2).eval(), list[int]()
    layer.register_forward_hook(lambda module, inputs, outputs: seen.append(len(outputs)))
    taken = SparseLinear.take_over(layer)
    assert taken is layer
    taken(torch.zeros(4, 3))
    assert (seen, taken.training) == ([4], False)


def test_values_changed_before_the_backward_pass_are_told() -> None:
    _, sparse, weight, _ = pair((6, 5), 0.4)
    outputs = sparse(torch.ones(2, 5, dtype=torch.float64))
    with torch.no_grad():
        weight.values.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(outputs.sum(), [weight.values])


def test_gradients_of_two_passes_do_not_share_memory() -> None:
    _, sparse, weight, _ = pair((6, 5), 0.4)
    (first,) = torch.autograd.grad(sparse(torch.ones(2, 5, dtype=torch.float64)).sum(), [weight.values])
    before = first.clone()
    torch.autograd.grad(sparse(torch.zeros(2, 5, dtype=torch.float64)).sum(), [weight.values])
    assert torch.equal(first, before)


def test_under_autocast_it_keeps_its_type() -> None:
    _, sparse, weight, _ = pair((16, 12), 0.3, torch.float32)
    inputs = torch.randn(3, 12, requires_grad=True)
    wanted = torch.autograd.grad(sparse(inputs.bfloat16().float()).sum(), [weight.values])
    with torch.autocast("cpu", torch.bfloat16):
        halved = inputs.to(torch.bfloat16)
        found = torch.autograd.grad(sparse(halved).sum(), [weight.values, halved])
    assert torch.equal(found[0], wanted[0])
    assert found[1].dtype == torch.bfloat16


def test_it_warns_of_nothing() -> None:
    """In a process of its own: PyTorch warns once in each."""
    code = """
import torch
from fedgmr.training.sparse.patterns import Pattern
from fedgmr.training.sparse.linear import SparseWeight
weight = SparseWeight(Pattern.of(torch.tensor([0, 3], dtype=torch.int32), (2, 2)), torch.ones(2))
weight.gradient(torch.ones(2, 8), torch.ones(2, 8)), weight.transposed_times(weight.times(torch.ones(2, 8)))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
