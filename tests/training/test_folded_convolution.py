"""Convolutions of many clients, by Triton's interpreter or on a GPU, against PyTorch in double precision."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedgmr.training.folded import convolution
from fedgmr.training.folded.convolution import ConvProducts
from fedgmr.training.stacked.plan import Conv
from training.folded_clients import DEVICE, RUNS, far, held, ranged

if RUNS.args[0] is False:
    from fedgmr.training.folded.turned import Turned

CLIENTS, BATCH = 3, 2


@dataclass(frozen=True)
class Case:
    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    height: int
    width: int
    bias: bool
    batch: int = BATCH

    def products(self, precision: str = "ieee") -> ConvProducts:
        weights = self.kernel**2 * self.inputs * self.outputs
        layer = Conv(
            weight_at=16, bias_at=32 + -(-weights // 16) * 16 if self.bias else None, inputs=self.inputs,
            outputs=self.outputs, kernel=self.kernel,
            stride=self.stride, padding=self.padding, height=self.height, width=self.width,
        )  # fmt: skip
        return ConvProducts(layer, self.batch, precision)


# No size fills a tile; the few channels of the first and the last are one dimension with the taps.
CASES = [
    Case(3, 18, 7, 2, 3, 11, 9, bias=False),
    Case(18, 20, 3, 1, 1, 5, 6, bias=True),
    Case(20, 33, 3, 2, 1, 7, 6, bias=False),
    Case(33, 17, 3, 2, 1, 6, 6, bias=True),
    Case(17, 18, 1, 2, 0, 5, 6, bias=True),
    Case(16, 16, 1, 1, 0, 3, 4, bias=False),
    Case(18, 16, 5, 1, 2, 4, 5, bias=False),
    Case(16, 17, 3, 3, 0, 8, 7, bias=True),
    Case(4, 5, 7, 2, 1, 8, 8, bias=True),
]


class Stack:
    """The tensors of three clients: weights and biases are columns of one matrix, with something else around them."""

    def __init__(self, case: Case) -> None:
        made = torch.Generator().manual_seed(7)
        layer = case.products().layer
        self.case, self.depth = case, layer.depth * layer.outputs
        self.row = 64 + 16 * (-(-self.depth // 16) - (-case.outputs // 16))
        self.matrix = torch.randn((CLIENTS, self.row), generator=made).to(DEVICE)
        self.x = torch.randn((CLIENTS, BATCH, case.height, case.width, case.inputs), generator=made).to(DEVICE)
        shape = (CLIENTS, BATCH, layer.out_height, layer.out_width, case.outputs)
        self.dy = torch.randn(shape, generator=made).to(DEVICE)

    def parts(self, matrix: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weights and biases, views of a matrix like this one's."""
        case = self.case
        bias_at = 32 + -(-self.depth // 16) * 16
        weights = matrix[:, 16 : 16 + self.depth].view(-1, case.outputs, case.kernel, case.kernel, case.inputs)
        return weights, matrix[:, bias_at : bias_at + case.outputs] if case.bias else None

    def turned(self, clients: slice) -> Tensor:
        """The weights of some clients, inputs and outputs exchanged."""
        case, weights = self.case, self.matrix[clients]
        shape = torch.Size([case.outputs, case.kernel, case.kernel, case.inputs])
        made = Turned({"bias": (0, shape[:1]), "other": (0, shape), "weight": (16, shape)}, CLIENTS, weights.device)
        made.turn(weights, len(weights))
        return made.of("weight", len(weights))

    def computed(self, products: ConvProducts, clients: slice) -> list[Tensor]:
        """Outputs, gradient of the inputs, and a matrix with those of the weights where the weights lie."""
        weights = self.matrix[clients]
        gradients = torch.full_like(weights, 5.0)
        x, dy = self.x[clients].contiguous(), self.dy[clients].contiguous()
        found = [products.forward(x, weights), products.input_gradient(dy, self.turned(clients))]
        products.weight_gradient(x, dy, gradients)
        return [*found, gradients]

    def wanted(self) -> list[Tensor]:
        """The same by PyTorch, client by client."""
        case, results = self.case, []
        weights, biases = self.parts(self.matrix.double())
        for i in range(CLIENTS):
            x = self.x[i].double().permute(0, 3, 1, 2).requires_grad_()
            w = weights[i].permute(0, 3, 1, 2).clone().requires_grad_()
            b = None if biases is None else biases[i].clone().requires_grad_()
            y = functional.conv2d(x, w, b, stride=case.stride, padding=case.padding)
            y.backward(self.dy[i].double().permute(0, 3, 1, 2))
            assert x.grad is not None
            assert w.grad is not None
            row = torch.full((1, self.row), 5.0, dtype=torch.float64, device=DEVICE)
            to_weights, to_biases = self.parts(row)
            to_weights.copy_(w.grad.permute(0, 2, 3, 1))
            if b is not None:
                assert b.grad is not None
                assert to_biases is not None
                to_biases.copy_(b.grad)
            results.append([y.detach().permute(0, 2, 3, 1), x.grad.permute(0, 2, 3, 1), row[0]])
        return [torch.stack(parts) for parts in zip(*results, strict=True)]


def assert_near(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert far(one, other) <= tolerance


def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut sums into parts, however short they are."""
    monkeypatch.setattr(convolution, "_LEAST_DEPTH", 48)
    monkeypatch.setattr(convolution, "_LEAST_ROWS", 16)


@RUNS
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("parts", [False, True])
def test_products_agree_with_pytorch(case: Case, parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if parts:
        cut(monkeypatch)
    stack, products = Stack(case), case.products()
    splits = (products.forward_splits, products.backward_splits, products.step_splits)
    assert parts or splits == (1, 1, 1)
    assert_near(stack.computed(products, slice(None)), stack.wanted(), 2e-6)


@RUNS
@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_products_in_tf32(case: Case) -> None:
    stack = Stack(case)
    assert_near(stack.computed(case.products("tf32"), slice(None)), stack.wanted(), 2e-3)


@RUNS
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[3]], ids=str)
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_the_same_bits_however_many_there_are(case: Case, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch)
    stack, products = Stack(case), case.products(precision)
    together = stack.computed(products, slice(None))
    for i in range(CLIENTS):
        for one, other in zip(stack.computed(products, slice(i, i + 1)), together, strict=True):
            assert torch.equal(one[0], other[i])


@RUNS
@pytest.mark.parametrize("case", [CASES[0], Case(40, 70, 3, 2, 1, 6, 6, bias=True)], ids=str)
def test_what_clients_do_not_have_is_left_out(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch)
    given = [(0, case.inputs), (case.inputs // 2, case.inputs), (0, 1)]
    wanted = [(0, 5), (case.outputs - 3, case.outputs), (0, case.outputs)]
    stack, products, ranges = Stack(case), case.products(), ranged(given, wanted)
    weights, biases = stack.parts(stack.matrix)
    inside = held(wanted, case.outputs)[:, :, None, None, None] & held(given, case.inputs)[:, None, None, None]
    weights.mul_(inside)
    if biases is not None:
        biases.mul_(held(wanted, case.outputs))
    gradients = torch.full_like(stack.matrix, 5.0)
    products.weight_gradient(stack.x, stack.dy, gradients, ranges)
    forward = products.forward(stack.x, stack.matrix, ranges)
    found = [forward, products.input_gradient(stack.dy, stack.turned(slice(None)), ranges)]
    assert_near(found, stack.wanted()[:2], 2e-6)
    inside = inside.expand(weights.shape)
    mine, expected = (stack.parts(each)[0][inside] for each in (gradients, stack.wanted()[2]))
    assert far(mine, expected) <= 2e-6


def test_a_client_keeps_a_device_busy_in_every_layer_of_resnet18() -> None:
    sizes = [(64, 64, 16, 1), (64, 128, 16, 2), (128, 128, 8, 1), (128, 256, 8, 2), (256, 256, 4, 1)]
    sizes += [(256, 512, 4, 2), (512, 512, 2, 1)]
    for inputs, outputs, side, stride in sizes:
        products = Case(inputs, outputs, 3, stride, 1, side, side, bias=False, batch=20).products("tf32")
        conv = products.kernels
        tiles = conv.forward_tiles
        programs = -(-conv.rows // tiles.rows) * -(-outputs // tiles.columns) * products.forward_splits
        assert programs >= 20
        assert programs <= 64 or products.forward_splits == 1
        assert conv.step_programs * products.step_splits >= 32
