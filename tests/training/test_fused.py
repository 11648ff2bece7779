"""The fused kernels against PyTorch's own layers; without a GPU in Triton's interpreter (`make test-kernels`)."""

import copy
import os
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu

from fedgmr.tasks.task import Task
from fedgmr.training.evaluation import evaluator
from fedgmr.training.evaluation.evaluator import Evaluator
from fedgmr.training.execution import TRITON, ExecutionSettings
from fedgmr.training.graphed import fused
from fedgmr.training.thresholds import Dropping

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
pytestmark = pytest.mark.skipif(
    not TRITON or (DEVICE == "cuda" and not torch.cuda.is_available()),
    reason="needs Triton and a CUDA device, or Triton's interpreter",
)


def net(classes: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    halves = [nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 70, 3, padding=1), nn.ReLU()]
    rest = [nn.Conv2d(70, 9, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 33), nn.ReLU()]
    return nn.Sequential(*halves, *rest, nn.Linear(33, classes)).to(DEVICE)


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (2, 64, 8, 8), (7, 130, 2, 2)])
def test_relu_and_pool(shape: tuple[int, ...], pool: bool) -> None:
    torch.manual_seed(1)
    inputs = torch.randn(shape, device=DEVICE, requires_grad=True)
    bias = torch.randn(shape[1], device=DEVICE, requires_grad=True)
    plain = relu(inputs + bias.view(1, -1, 1, 1))
    plain = max_pool2d(plain, 2) if pool else plain
    outputs = fused._ReluPool.apply(inputs, bias, pool)
    assert torch.allclose(outputs, plain, rtol=0, atol=1e-6)
    slopes = torch.randn_like(plain)
    wanted = torch.autograd.grad(plain, (inputs, bias), slopes)
    found = torch.autograd.grad(outputs, (inputs, bias), slopes)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_fused_net_computes_the_same_and_keeps_its_names() -> None:
    plain = net()
    other = fused.fuse(copy.deepcopy(plain))
    targets = [node.target for node in other.graph.nodes]  # type: ignore[union-attr, operator]
    assert targets.count(fused._conv_relu_pool) == 3
    assert {name for name, _ in other.named_parameters()} == {name for name, _ in plain.named_parameters()}
    inputs = torch.randn(4, 2, 8, 8, device=DEVICE)
    assert torch.allclose(other(inputs), plain(inputs), atol=1e-5)


@pytest.mark.parametrize("size", [7, 9])
def test_odd_sizes_fall_back(size: int) -> None:
    plain = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).to(DEVICE)
    inputs = torch.randn(2, 1, size, size, device=DEVICE)
    assert torch.allclose(fused.fuse(copy.deepcopy(plain))(inputs), plain(inputs), atol=1e-5)


@pytest.mark.parametrize("derivative", [True, False])
def test_weights_dropped_for_a_step(derivative: bool) -> None:
    """Against PyTorch's own operations: two thresholds, none, and one that nothing reaches; odd sizes and layouts."""
    torch.manual_seed(2)
    shapes = [(3, 5, 2, 2), (1031,), (7,), (40, 30)]
    weights = [torch.randn(shape, device=DEVICE) for shape in shapes]
    weights[0] = weights[0].contiguous(memory_format=torch.channels_last)
    weights[1][:3] = 0
    thetas = [
        torch.tensor(0.5, device=DEVICE),
        torch.tensor(0.0, device=DEVICE),
        None,
        torch.tensor(torch.inf, device=DEVICE),
    ]
    gradients, rates = [torch.randn(shape, device=DEVICE) for shape in shapes], [torch.rand_like(w) for w in weights]
    results = []
    for dropping in (Dropping(), fused.FusedDropping()):
        run = Stepped(parameters=[w.clone().requires_grad_() for w in weights], rates=rates)
        whole = dropping.hide(run, thetas)  # type: ignore[arg-type]
        hidden = [p.detach().clone() for p in run.parameters]
        assert all(torch.equal(w, before) for w, before in zip(whole, weights, strict=True))
        dropping.descend(run, whole, [g.clone() for g in gradients], thetas, derivative=derivative)  # type: ignore[arg-type]
        results.append((hidden, [p.detach() for p in run.parameters]))
    for (hidden, stepped), (other_hidden, other_stepped) in pairwise(results):
        assert all(torch.equal(a, b) for a, b in zip(hidden, other_hidden, strict=True))
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(stepped, other_stepped, strict=True))
    assert torch.equal(results[1][1][3], weights[3])


@dataclass
class Stepped:
    """The parts of a sub-model that dropping needs."""

    parameters: list[torch.Tensor]
    rates: list[torch.Tensor]

    def descend(self, gradients: list[torch.Tensor]) -> None:
        for parameter, gradient, rate in zip(self.parameters, gradients, self.rates, strict=True):
            parameter.data.addcmul_(gradient, rate, value=-1)


def test_what_cannot_be_fused_stays() -> None:
    branched = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU())
    assert fused.fuse(branched) is branched
    hooked = net()
    hooked[0].register_forward_hook(lambda *_: None)
    assert fused.fuse(hooked) is hooked


@pytest.mark.skipif(DEVICE == "cpu", reason="evaluators fuse on a CUDA device")
@pytest.mark.parametrize("channels", [1, 3])
def test_an_evaluator_fuses_and_measures_the_same(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> nn.Module:
        first = [
            nn.Conv2d(channels, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 8, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        return nn.Sequential(*first, nn.Flatten(), nn.Dropout(), nn.Linear(72, 4))

    samples = torch.randn(50, channels, 8, 8), torch.arange(50) % 4
    task = Task(name="t", model=model, train=samples, test=samples).to(torch.device(DEVICE))
    layout, exact = task.layout(), ExecutionSettings(tf32=False)
    weights, buffers = layout.flatten(task.initial_model(3)), layout.flatten_buffers(task.initial_model(3))
    found = Evaluator(task, layout, validation=task.test, execution=exact)
    assert found._computed_by is not found.module
    monkeypatch.setattr(evaluator, "TRITON", False)
    plain = Evaluator(task, layout, validation=task.test, execution=exact)
    assert plain._computed_by is plain.module
    measured = [each.test(weights.to(DEVICE), buffers.to(DEVICE)).values for each in (found, plain)]
    assert measured[0] == pytest.approx(measured[1], rel=1e-5)
    assert list(found.state(weights, buffers)) == list(task.initial_model(0).state_dict())


class Viewing(nn.Module):
    """Counts on the usual order of images in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3), nn.Linear(4 * 6 * 6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.relu(self.first(inputs)).view(-1, 4 * 6 * 6))
        return found


class Doubled(nn.Conv2d):
    """A layer of a user's own."""


def test_models_with_code_of_their_own_stay() -> None:
    viewing = Viewing()
    replaced = net()
    replaced[0].forward = lambda images: 2 * images  # type: ignore[method-assign]
    for model in (viewing, replaced, nn.Sequential(Doubled(2, 4, 3), nn.ReLU())):
        assert fused.fuse(model) is model


def test_layers_look_at_their_own_mode() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.BatchNorm2d(2), nn.Dropout(0.5)).to(DEVICE)
    found, inputs = fused.fuse(plain), torch.randn(5, 1, 6, 6, device=DEVICE)
    assert found is not plain
    trained = found(inputs)
    assert bool((trained == 0).any()), "dropped"
    plain.eval()
    assert torch.allclose(found(inputs), plain(inputs), atol=1e-6)


def test_what_is_no_number_stays_none() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.MaxPool2d(2)).to(DEVICE)
    inputs = torch.randn(1, 1, 8, 8, device=DEVICE)
    inputs[0, 0, 0, 1] = inputs[0, 0, 5, 4] = torch.nan
    assert torch.equal(fused.fuse(plain)(inputs).isnan(), plain(inputs).isnan())
    assert bool(plain(inputs).isnan().any())
