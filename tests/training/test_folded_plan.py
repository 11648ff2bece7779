"""Which models can be folded, and how they are taken apart."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.submodels.layout import Layout
from fedgmr.tasks.models.causal_conv import CausalConv
from fedgmr.tasks.models.post_norm import PostNormTransformer
from fedgmr.tasks.models.resnet18 import ResNet18
from fedgmr.tasks.models.transformer import Transformer2L
from fedgmr.training.folded.joining import join
from fedgmr.training.folded.plan import FoldPlan

IMAGES, ROWS = torch.randn(3, 3, 32, 32), torch.randn(3, 4)
TOKENS = torch.randint(1, 40, (3, 12))


class Encoder(nn.Module):
    """PyTorch's own Transformer layers; places are given with a dimension for the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]).unsqueeze(0))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        scores: Tensor = self.head(self.layers(x, mask=mask, is_causal=True))
        return scores


class Images(nn.Module):
    """Batch norm, a sum and a ReLU, written in some way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.conv, self.norm, self.way = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), way
        self.relu, self.dropout, self.head = nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True), nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images)
        if self.way == "broadcast":
            y = torch.relu(self.norm(x) + x.mean((2, 3), keepdim=True))
        else:
            y = torch.relu(self.norm(x) + x)
        if self.way == "drawn once" and torch.rand(1) < 2:
            y = y + 1
        y = y.mean((2, 3))
        y = y - y.mean(1, keepdim=True)
        if self.way == "statement":
            y.relu_()
        if self.way == "module in place":
            self.relu(y)
        if self.way == "dropout in place":
            self.dropout(y)
        scores: Tensor = self.head(y)
        return scores


class Net(nn.Module):
    """A linear layer with something around it."""

    def __init__(self, around: str) -> None:
        super().__init__()
        self.first, self.second, self.around = nn.Linear(4, 4), nn.Linear(4, 4), around
        if around == "own parameter":
            self.scale = nn.Parameter(torch.ones(4))
        if around == "tied":
            self.second.weight = self.first.weight
        if around == "frozen":
            self.first.weight.requires_grad_(False)
        if around == "buffer":
            self.register_buffer("shift", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.around == "own parameter":
            x = x * self.scale
        if self.around == "own dropout":
            x = functional.dropout(x)
        if self.around == "samples last":
            return self.second(self.first(x).t().contiguous().t().reshape(-1)[:4])
        if self.around == "twice":
            x = self.first(x)
        if self.around == "unused":
            return self.second(x)
        if self.around == "softmax":
            return self.second(self.first(x)).log_softmax(-1)
        return self.second(self.first(x))


def plan_of(model: nn.Module, example: Tensor) -> FoldPlan | None:
    return FoldPlan.of(model, Layout.of(model), example)


@pytest.mark.parametrize(
    ("model", "example", "calls", "head", "shared"),
    [
        (ResNet18(), IMAGES, 41, "fc", []),
        (ResNet18(norm="group"), IMAGES, 41, "fc", []),
        (Transformer2L(), TOKENS, 14, "head", ["positions"]),
        (PostNormTransformer(), TOKENS, 16, "head", ["positions"]),
        (Encoder(), TOKENS, 13, "head", ["places"]),
        (Net("nothing"), ROWS, 2, "second", []),
    ],
)
def test_ordinary_layers(model: nn.Module, example: Tensor, calls: int, head: str, shared: list[str]) -> None:
    plan = plan_of(model, example)
    assert plan is not None
    assert plan.head is not None
    assert (len(plan.calls), plan.head.name) == (calls, head)
    assert [call.name for call in plan.calls if not call.batched] == shared
    size = plan.layout.size
    assert sorted(plan.order.order[plan.order.order >= 0].tolist()) == list(range(size))
    assert all(start % 16 == 0 for start, _ in plan.at.values())


@pytest.mark.parametrize(
    "around", ["own parameter", "own dropout", "samples last", "twice", "unused", "tied", "frozen", "buffer"]
)
def test_what_cannot_be_folded(around: str) -> None:
    assert plan_of(Net(around), ROWS) is None


@pytest.mark.parametrize("way", ["broadcast", "drawn once", "module in place", "dropout in place"])
def test_what_would_not_be_the_same_model_when_its_layers_are_joined(way: str) -> None:
    assert plan_of(Images(way), IMAGES) is None
    assert plan_of(Images("plain"), IMAGES) is not None


def test_what_a_model_does_in_place_is_done() -> None:
    model, joined = join(Images("statement").train())
    assert joined == {"norm"}
    assert [node.target for node in model.graph.nodes].count("relu_") == 1  # type: ignore[union-attr]
    assert plan_of(Images("statement"), IMAGES) is not None


@pytest.mark.parametrize(("length", "folds"), [(128, True), (129, False)])
def test_attention_has_at_most_128_positions(length: int, folds: bool) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert (plan_of(model, torch.randn(3, length, 8)) is not None) == folds


def test_layers_that_are_not_known() -> None:
    assert plan_of(CausalConv(60), TOKENS) is None
    assert plan_of(nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2), nn.Flatten(), nn.Linear(3136, 4)), IMAGES) is None
    hooked = Net("nothing")
    hooked.first.register_forward_hook(lambda *_: None)
    assert plan_of(hooked, ROWS) is None


def test_a_head_with_something_behind_it_is_a_layer() -> None:
    plan = plan_of(Net("softmax"), ROWS)
    assert plan is not None
    assert plan.head is None


def test_planning_leaves_the_model_as_it_was() -> None:
    model = ResNet18()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert plan_of(model, IMAGES) is not None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())


def test_sums_and_relus_are_joined_to_batch_norm() -> None:
    model, joined = join(ResNet18())
    assert len(joined) == 17  # the stem's, and two in each of eight blocks
    assert "layer2.0.bn2" in joined
    assert "layer2.0.downsample.1" not in joined
    names = [str(node.target) for node in model.graph.nodes]  # type: ignore[union-attr]
    assert not any("relu" in name or name == str(torch.add) for name in names)
