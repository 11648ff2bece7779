"""Layouts: the flat vector and the model are the same numbers, and the right ones may be pruned."""

import pytest
import torch
from torch import Tensor, nn

from fedgmr.submodels.layout import Layout


class Everything(nn.Module):
    """One layer of each sort; 147 coordinates, 114 of them prunable."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.embedding = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.layer_norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 3)


def prunable(layout: Layout) -> list[str]:
    return [place.name for place in layout.prunable]


def linear(weight: list[float], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight), 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weight]))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def test_which_parameters_may_be_pruned() -> None:
    layout = Layout.of(Everything())
    assert prunable(layout) == [
        "conv.weight",
        "embedding.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "linear.weight",
    ]
    sizes = {place.name: place.size for place in layout.parameters if not place.prunable}
    assert sizes == {
        "conv.bias": 2,
        "norm.weight": 2,
        "norm.bias": 2,
        "attention.in_proj_bias": 12,
        "attention.out_proj.bias": 4,
        "layer_norm.weight": 4,
        "layer_norm.bias": 4,
        "linear.bias": 3,
    }
    assert layout.size == 147
    assert layout.prunable_size == 18 + 20 + 48 + 16 + 12 == 114
    assert int(layout.always.sum()) == 147 - 114


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (
            nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
            ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"],
        ),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), ["in_proj_weight", "out_proj.weight"]),
        (nn.GRU(2, 3), ["weight_ih_l0", "weight_hh_l0"]),
        (nn.ConvTranspose1d(2, 3, 2), ["weight"]),
        (nn.Bilinear(2, 3, 4), ["weight"]),
        (nn.EmbeddingBag(3, 2), ["weight"]),
        (nn.GroupNorm(1, 2), []),
        (nn.PReLU(), []),
    ],
)
def test_weights_of_other_layers(layer: nn.Module, names: list[str]) -> None:
    assert prunable(Layout.of(layer)) == names


def test_places_follow_one_another() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
    places = [(p.name, p.shape, p.start, p.stop) for p in layout.parameters]
    assert places == [
        ("0.weight", (2, 3), 0, 6),
        ("0.bias", (2,), 6, 8),
        ("1.weight", (1, 2), 8, 10),
        ("1.bias", (1,), 10, 11),
    ]
    assert layout.always.tolist() == [False] * 6 + [True] * 2 + [False] * 2 + [True]


def test_keep_and_prune_patterns() -> None:
    model = Everything()
    assert prunable(Layout.of(model, keep=["attention.*", "conv.weight"])) == ["embedding.weight", "linear.weight"]
    assert prunable(Layout.of(model, keep=["*.weight"], prune=["linear.bias"])) == [
        "attention.in_proj_weight",
        "linear.bias",
    ]
    # A name that both patterns match is kept.
    assert "norm.bias" not in prunable(Layout.of(model, keep=["norm.*"], prune=["norm.bias"]))


@pytest.mark.parametrize("group", ["keep", "prune"])
def test_a_pattern_that_matches_nothing(group: str) -> None:
    with pytest.raises(ValueError, match=r"The pattern 'downsample\.\*' matches no parameter"):
        Layout.of(Everything(), **{group: ["downsample.*"]})  # type: ignore[arg-type]


def test_flatten_by_hand_and_bind_back() -> None:
    first, second = linear([1.0, 2.0], [3.0]), linear([4.0], [5.0])
    model = nn.Sequential(first, second)
    layout = Layout.of(model)
    flat = layout.flatten(model)
    assert flat.tolist() == [1, 2, 3, 4, 5]
    flat[0] = 9.0
    assert first.weight.tolist() == [[1, 2]], "a flattened vector is a copy"

    other = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    layout.bind(other, flat, torch.empty(0))
    assert torch.equal(layout.flatten(other), flat)
    assert other(torch.tensor([[1.0, 10.0]])).item() == (9 + 20 + 3) * 4 + 5


def test_bound_parameters_alias_the_vector_both_ways() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    layout = Layout.of(model)
    flat, buffers = layout.flatten(model), layout.flatten_buffers(model)
    layout.bind(model, flat, buffers)
    flat.fill_(0.5)
    buffers.fill_(0.25)
    assert all((p == 0.5).all() for p in model.parameters())
    assert model[1].running_mean.tolist() == [0.25, 0.25]
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([7.0, 8.0]))
    assert flat.tolist() == [0.5] * 4 + [7, 8] + [0.5] * 4
    model[1].running_var.fill_(3.0)
    assert buffers.tolist() == [0.25, 0.25, 3, 3]


def test_training_a_bound_batch_norm_moves_the_flat_buffers() -> None:
    model = nn.BatchNorm1d(1)
    layout = Layout.of(model)
    flat, buffers = layout.flatten(model), layout.flatten_buffers(model)
    layout.bind(model, flat, buffers)
    model.train()(torch.tensor([[1.0], [3.0]]))
    # momentum 0.1, batch mean 2, unbiased batch variance 2
    assert buffers.tolist() == pytest.approx([0.2, 0.9 + 0.2])


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("table", torch.tensor([[5.0], [6.0]], dtype=torch.float64))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))


def test_only_persistent_float_buffers_travel() -> None:
    model = Buffered()
    model.norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
    model.norm.running_var.copy_(torch.tensor([3.0, 4.0]))
    layout = Layout.of(model)
    assert [(p.name, p.start, p.stop) for p in layout.buffers] == [
        ("table", 0, 2),
        ("norm.running_mean", 2, 4),
        ("norm.running_var", 4, 6),
    ]
    assert layout.buffer_size == 6
    flat = layout.flatten_buffers(model)
    assert flat.tolist() == [5, 6, 1, 2, 3, 4]
    assert flat.dtype == torch.float32


def test_a_model_without_buffers() -> None:
    model = nn.Linear(2, 1)
    layout = Layout.of(model)
    assert layout.buffer_size == 0
    assert layout.flatten_buffers(model).shape == (0,)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def test_tied_parameters_are_one_tensor() -> None:
    model = Tied()
    layout = Layout.of(model)
    assert [(p.name, p.size, p.prunable) for p in layout.parameters] == [
        ("embedding.weight", 6, True),
        ("head.bias", 3, False),
    ]
    flat = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 1.0])
    layout.bind(model, flat, torch.empty(0))
    assert model.head.weight is model.embedding.weight
    # token 1 is (3, 4); the head multiplies it with every row of the same table
    assert model(torch.tensor(1)).tolist() == [11, 25, 39 + 1]


def test_frozen_parameters_stay_out() -> None:
    model = nn.Sequential(linear([1.0, 2.0], [3.0]), linear([4.0], [5.0]))
    model[0].requires_grad_(False)
    layout = Layout.of(model)
    assert [p.name for p in layout.parameters] == ["1.weight", "1.bias"]
    assert layout.flatten(model).tolist() == [4, 5]
    layout.bind(model, torch.tensor([0.0, 1.0]), torch.empty(0))
    assert model[0].weight.tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="matches no parameter"):
        Layout.of(model, keep=["0.weight"])


def test_models_without_a_layout() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        Layout.of(nn.Linear(2, 1).requires_grad_(False))
    mixed = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double())
    with pytest.raises(ValueError, match=r"\['torch.float32', 'torch.float64'\]: use one float type"):
        Layout.of(mixed)


def test_double_models_stay_double() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)).double()
    layout = Layout.of(model)
    assert layout.dtype == layout.flatten(model).dtype == layout.flatten_buffers(model).dtype == torch.float64


def test_a_scalar_parameter_is_one_coordinate() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

    model = Scale()
    layout = Layout.of(model, prune=["factor"])
    assert layout.size == layout.prunable_size == 1
    flat = torch.tensor([3.0])
    layout.bind(model, flat, torch.empty(0))
    assert model.factor.item() == 3.0
    assert [view.shape for view in layout.views(flat)] == [torch.Size([])]
