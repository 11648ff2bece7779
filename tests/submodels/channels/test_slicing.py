"""Sliced modules: the kept coordinates in order, and the same training as the whole module with the rest at zero."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.channels.slicing import SlicedAttention, slice_module
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.widths import kept_mask, width_levels

CLASSES = 5
IMAGES = (4, 3, 8, 8)


def narrow_conv2() -> nn.Module:
    convolutions = (
        nn.Conv2d(3, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 10, 5, padding=2),
        nn.ReLU(),
    )
    return nn.Sequential(
        *convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, CLASSES)
    )


def small_vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for before, width in ((3, 4), (4, 6), (6, 8)):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, CLASSES))


class Block(nn.Module):
    """Two convolutions with batch norm, and a shortcut."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        stride = 1 if before == width else 2
        self.first, self.second = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        down = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.down = nn.Identity() if before == width else down

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(inner + self.down(x))


def small_resnet() -> nn.Module:
    stem = (nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5), nn.ReLU())
    blocks = (Block(5, 5), Block(5, 8), Block(8, 8))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0), nn.Linear(8, CLASSES))


class Transformer(nn.Module):
    """One pre-norm block with a causal mask; weights of the classifier may be the embedding's."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(CLASSES, 8), nn.Parameter(torch.randn(6, 8))
        self.attend, self.attend_norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
        self.feed, self.feed_norm = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)), nn.LayerNorm(8)
        self.classify = nn.Linear(8, CLASSES)
        if tied:
            self.classify.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions[:length]
        mask = torch.full((length, length), -torch.inf).triu(1).to(x.dtype)
        normed = self.attend_norm(x)
        x = x + self.attend(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return self.classify(x + self.feed(self.feed_norm(x))).mean(1)


VISION = [narrow_conv2, small_vgg, small_resnet]
SETS = [(0.5, 0), (0.3, 0), (0.6, 3), (0.34, 101)]  # widths and shifts


def prepared(build: Callable[[], nn.Module]) -> tuple[nn.Module, ChannelPlan, Layout]:
    torch.manual_seed(5)
    model = build().double()
    images = torch.zeros(2, *IMAGES[1:], dtype=torch.float64)
    batch = torch.zeros(2, 6, dtype=torch.int64) if isinstance(model, Transformer) else images
    return model, follow_channels(model, batch), Layout.of(model)


def mask_of(plan: ChannelPlan, layout: Layout, width: float, shift: int) -> Tensor:
    return width_levels(plan, layout, [width], shift).mask(0)


def train(model: nn.Module, inputs: Tensor, outside: Tensor | None = None) -> tuple[list[float], Tensor]:
    """Ten steps of SGD; the coordinates `outside` are zero before and after each. Losses and the flat result."""
    layout = Layout.of(model)
    flat, buffers = layout.flatten(model), layout.flatten_buffers(model)
    layout.bind(model, flat, buffers)
    targets = torch.arange(10 * len(inputs[0])).view(10, -1) % CLASSES
    losses = []
    for batch, target in zip(inputs, targets, strict=True):
        flat.masked_fill_(torch.zeros_like(flat, dtype=torch.bool) if outside is None else outside, 0)
        loss = cross_entropy(model(batch), target)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            flat -= 0.2 * torch.cat([gradient.reshape(-1) for gradient in gradients])
        losses.append(float(loss.detach()))
    return losses, flat if outside is None else flat.masked_fill(outside, 0)


@pytest.mark.parametrize("build", [*VISION, Transformer, lambda: Transformer(tied=True)])
@pytest.mark.parametrize(("width", "shift"), SETS)
def test_a_sliced_module_is_the_kept_coordinates_in_order(
    build: Callable[[], nn.Module], width: float, shift: int
) -> None:
    model, plan, layout = prepared(build)
    small = slice_module(model, plan, kept_mask(plan, width, shift))
    kept = mask_of(plan, layout, width, shift)
    assert torch.equal(Layout.of(small).flatten(small), layout.flatten(model)[kept])
    assert list(small.state_dict()) == list(model.state_dict())
    assert 0 < kept.sum() < layout.size


@pytest.mark.parametrize("build", VISION)
@pytest.mark.parametrize(("width", "shift"), SETS)
def test_masked_is_sliced(build: Callable[[], nn.Module], width: float, shift: int) -> None:
    model, plan, layout = prepared(build)
    kept = mask_of(plan, layout, width, shift)
    small = slice_module(model, plan, kept_mask(plan, width, shift))
    inputs = torch.randn(10, *IMAGES, dtype=torch.float64)
    masked_losses, masked = train(model, inputs, ~kept)
    small_losses, sliced = train(small, inputs)
    assert small_losses == pytest.approx(masked_losses, rel=0, abs=1e-10)
    assert (masked[kept] - sliced).abs().max() < 1e-10
    # Batch norm's statistics too, in the channels that are kept.
    again = slice_module(model, plan, kept_mask(plan, width, shift))
    for (name, whole), (_, part) in zip(again.named_buffers(), small.named_buffers(), strict=True):
        assert torch.allclose(whole, part, rtol=0, atol=1e-10), name


class KeptNorm(nn.Module):
    """A layer norm over the kept channels of a whole module."""

    def __init__(self, norm: nn.LayerNorm, kept: Tensor) -> None:
        super().__init__()
        self.weight, self.bias, self.kept = norm.weight, norm.bias, kept

    def forward(self, x: Tensor) -> Tensor:
        part = x[..., self.kept]
        spread = part.var(-1, keepdim=True, correction=0) + 1e-5
        return (x - part.mean(-1, keepdim=True)) / spread.sqrt() * self.weight + self.bias


class ScaledAttention(nn.Module):
    """A whole attention, spelt out, with a given head dimension in the softmax's scale."""

    def __init__(self, whole: nn.MultiheadAttention, head_dim: int) -> None:
        super().__init__()
        self.in_proj_weight, self.in_proj_bias = whole.in_proj_weight, whole.in_proj_bias
        self.out_proj, self.num_heads, self.head_dim = whole.out_proj, whole.num_heads, head_dim

    def forward(self, x: Tensor, *_: Tensor, attn_mask: Tensor, need_weights: bool) -> tuple[Tensor, None]:
        projected = x @ self.in_proj_weight.T + self.in_proj_bias
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in projected.chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) / self.head_dim**0.5 + attn_mask).softmax(-1)
        return self.out_proj((scores @ v).transpose(1, 2).flatten(2)), None


@pytest.mark.parametrize(("width", "shift"), [(0.5, 0), (0.6, 3)])
@pytest.mark.parametrize(("norms", "scale"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_transformer_differs_in_layer_norms_and_in_the_softmax_scale(
    width: float, shift: int, norms: bool, scale: bool
) -> None:
    model, plan, layout = prepared(Transformer)
    kept, sets = mask_of(plan, layout, width, shift), kept_mask(plan, width, shift)
    small = slice_module(model, plan, sets)
    whole = copy.deepcopy(model)
    assert isinstance(whole, Transformer)
    if norms:
        (stream,) = plan.norms["attend_norm"]
        channels = torch.nonzero(sets[stream]).view(-1)
        whole.attend_norm = KeptNorm(whole.attend_norm, channels)  # type: ignore[assignment]
        whole.feed_norm = KeptNorm(whole.feed_norm, channels)  # type: ignore[assignment]
    if scale:
        axis = plan.axes["attend.in_proj_weight"][0]
        assert axis is not None
        whole.attend = ScaledAttention(whole.attend, int(sets[axis].sum()) // 3 // 2)  # type: ignore[assignment]
    inputs = torch.randint(CLASSES, (10, 3, 6))
    masked_losses, masked = train(whole, inputs, ~kept)
    small_losses, sliced = train(small, inputs)
    apart = max(abs(a - b) for a, b in zip(masked_losses, small_losses, strict=True))
    if norms and scale:
        assert apart < 1e-10
        assert (masked[kept] - sliced).abs().max() < 1e-10
    else:
        assert apart > 1e-5


def test_layers_know_their_sizes_and_the_whole_model_stays() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=8), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 2)),
    )
    model[0].weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    plan = follow_channels(model, torch.zeros(2, 3, 8, 8))
    small = slice_module(model, plan, kept_mask(plan, 0.6))
    first, norm, depthwise, layer_norm, last = (small.get_submodule(str(index)) for index in (0, 1, 2, 5, 6))
    assert (first.in_channels, first.out_channels, first.groups) == (3, 5, 1)
    assert norm.num_features == 5
    assert (depthwise.in_channels, depthwise.out_channels, depthwise.groups) == (5, 5, 5)
    assert layer_norm.normalized_shape == (5,)
    assert (last.in_features, last.out_features) == (5, 2)
    assert small(torch.randn(4, 3, 8, 8)).shape == (4, 2)
    assert not small.get_parameter("0.weight").requires_grad
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.zero_()
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(288, CLASSES))


def test_a_sliced_group_norm_has_as_many_groups_as_the_whole() -> None:
    model, plan, _ = prepared(lambda: normed(nn.GroupNorm(2, 8)))
    assert [group.multiple for group in plan.groups] == [2]
    small = slice_module(model, plan, kept_mask(plan, 0.6, shift=3))  # 4.8 channels: 4 of them
    norm = small.get_submodule("1")
    assert (norm.num_groups, norm.num_channels) == (2, 4)
    x = torch.randn(*IMAGES, dtype=torch.float64)
    channels = small.get_submodule("0")(x)
    by_hand = torch.cat([(part - part.mean((1, 2, 3), True)) for part in channels.split(2, 1)], 1)
    spread = torch.cat(
        [part.var((1, 2, 3), correction=0, keepdim=True).expand_as(part) for part in channels.split(2, 1)], 1
    )
    assert torch.allclose(norm(channels), by_hand / (spread + 1e-5).sqrt())


def test_a_norm_of_every_channel_by_itself_computes_what_the_masked_one_does() -> None:
    model, plan, layout = prepared(lambda: normed(nn.GroupNorm(8, 8)))
    small = slice_module(model, plan, kept_mask(plan, 0.375, shift=2))
    assert small.get_submodule("1").num_groups == 3
    kept = mask_of(plan, layout, 0.375, 2)
    inputs = torch.randn(10, *IMAGES, dtype=torch.float64)
    masked_losses, masked = train(model, inputs, ~kept)
    small_losses, sliced = train(small, inputs)
    assert small_losses == pytest.approx(masked_losses, rel=0, abs=1e-10)
    assert (masked[kept] - sliced).abs().max() < 1e-10


def test_tied_weights_stay_tied() -> None:
    model, plan, _ = prepared(lambda: Transformer(tied=True))
    small = slice_module(model, plan, kept_mask(plan, 0.5))
    assert isinstance(small, Transformer)
    assert small.classify.weight is small.tokens.weight
    assert small.tokens.weight.shape == (CLASSES, 4)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_sliced_attention_at_full_width_is_attention(batch_first: bool, bias: bool) -> None:
    torch.manual_seed(5)
    whole = nn.MultiheadAttention(8, 2, batch_first=batch_first, bias=bias).double()
    small = SlicedAttention(whole, {})
    assert list(small.state_dict()) == list(whole.state_dict())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    length, batch = (5, 3) if batch_first else (3, 5)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[1, -1] = True
    far = torch.randn(batch * 2, length, length, dtype=torch.float64)
    for masks in (
        {},
        {"attn_mask": ahead},
        {"attn_mask": ahead, "is_causal": True},
        {"attn_mask": ahead, "is_causal": True, "key_padding_mask": padding},
        {"attn_mask": far},
        {"key_padding_mask": padding},
    ):
        wanted, _ = whole(x, x, x, need_weights=False, **masks)
        found, weights = small(x, x, x, need_weights=False, **masks)
        assert torch.allclose(found, wanted, rtol=0, atol=1e-12)
        assert weights is None


def test_the_scaler_multiplies_hidden_layers_in_training() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 1))
    plan = follow_channels(model, torch.zeros(2, 1))
    small = slice_module(model, plan, kept_mask(plan, 0.5), scale=2.0)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.fill_(1.0)
    # Training: 2(1·3 + 1) = 8, 2(8 + 1) = 18, and the classifier 18 + 1; evaluation: 4, 5, 6.
    assert small.train()(torch.tensor([[3.0]])).item() == 19.0
    assert small.eval()(torch.tensor([[3.0]])).item() == 6.0


def test_the_scaler_in_attention_multiplies_the_projections_and_the_output() -> None:
    model, plan, _ = prepared(Transformer)
    small = slice_module(model, plan, kept_mask(plan, 0.5))
    by_hand = copy.deepcopy(small)
    scaled = slice_module(model, plan, kept_mask(plan, 0.5), scale=2.0)
    names = ("tokens.weight", "feed.0.weight", "feed.0.bias", "feed.2.weight", "feed.2.bias")
    inside = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    with torch.no_grad():
        for name in (*names, *(f"attend.{part}" for part in inside)):
            by_hand.get_parameter(name).mul_(2.0)
    tokens = torch.randint(CLASSES, (3, 6))
    assert torch.allclose(scaled.train()(tokens), by_hand(tokens), rtol=0, atol=1e-12)
    assert torch.equal(scaled.eval()(tokens), small.eval()(tokens))
