"""Channels: which dimensions move together in convolutions, residual blocks and attention, and what is refused."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.submodels.channels.groups import Axis, Group
from fedgmr.submodels.channels.plan import ChannelPlan, follow_channels
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.models.conv2 import Conv2


class Residual(nn.Module):
    """A stem, a block with a downsample convolution, a block with an identity shortcut, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.wide, self.wide_norm = nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6)
        self.down = nn.Sequential(nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6))
        self.inner, self.outer = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 6, 3, padding=1)
        self.classify = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        x = torch.relu(self.wide_norm(self.wide(x)) + self.down(x))
        x = x + self.outer(functional.relu(self.inner(x), inplace=True))
        return self.classify(x.mean((2, 3)))


class Language(nn.Module):
    """A pre-norm Transformer of one block; positions as an embedding or as a parameter."""

    def __init__(self, *, stored: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Parameter(torch.randn(1, 7, 8)) if stored else nn.Embedding(7, 8)
        self.attend, self.attend_norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
        self.feed, self.feed_norm = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)), nn.LayerNorm(8)
        self.classify = nn.Linear(8, 11)
        if tied:
            self.classify.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if isinstance(self.positions, nn.Embedding):
            x = self.tokens(tokens) * 8**0.5 + self.positions(torch.arange(length, device=tokens.device))
        else:
            x = self.tokens(tokens) + self.positions[:, :length]
        mask = torch.full((length, length), -torch.inf).triu(1)
        normed = self.attend_norm(x)
        attended, _ = self.attend(normed, normed, normed, attn_mask=mask, need_weights=False, is_causal=True)
        x = x + attended
        return self.classify(x + self.feed(self.feed_norm(x)))


class Calls(nn.Module):
    """Layers by name, and a forward that is a function of them and the input."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.call = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layers, x)


def sizes(plan: ChannelPlan) -> list[tuple[int, bool, int]]:
    return [(group.size, group.fixed, group.heads) for group in plan.groups]


def test_a_chain_and_its_flatten() -> None:
    plan = follow_channels(Conv2())
    assert sizes(plan) == [(1, True, 1), (32, False, 1), (64, False, 1), (2048, False, 1), (62, True, 1)]
    pixel, first, second, third, label = (Axis(group=index) for index in range(5))
    assert plan.axes == {
        "0.weight": (first, pixel, None, None),
        "0.bias": (first,),
        "3.weight": (second, first, None, None),
        "3.bias": (second,),
        "7.weight": (third, Axis(group=2, repeat=49)),
        "7.bias": (third,),
        "9.weight": (label, third),
        "9.bias": (label,),
    }
    assert plan.hidden == ("0", "3", "7")
    assert plan.heads == ("9",)
    assert plan.attentions == ()


def test_residual_operands_share_their_channels() -> None:
    plan = follow_channels(Residual())
    # Input, stem, the residual stream (wide, down and outer), inner, classes.
    assert sizes(plan) == [(3, True, 1), (4, False, 1), (6, False, 1), (5, False, 1), (10, True, 1)]
    _, stem, stream, inner, label = (Axis(group=index) for index in range(5))
    assert plan.axes["wide.weight"] == (stream, stem, None, None)
    assert plan.axes["down.0.weight"] == (stream, stem, None, None)
    assert plan.axes["outer.weight"] == (stream, inner, None, None)
    assert plan.axes["classify.weight"] == (label, stream)
    for name in ("wide_norm.weight", "wide_norm.running_mean", "down.1.running_var", "down.1.bias", "outer.bias"):
        assert plan.axes[name] == (stream,)
    assert plan.norms == {"wide_norm": stream, "down.1": stream}
    assert plan.hidden == ("stem", "wide", "down.0", "inner", "outer")
    assert plan.heads == ("classify",)


@pytest.mark.parametrize("stored", [False, True])
def test_attention_has_an_inner_group_of_heads(stored: bool) -> None:
    plan = follow_channels(Language(stored=stored))
    # The embedding, the attention's heads, the feed-forward layer, the vocabulary.
    assert sizes(plan) == [(8, False, 1), (8, False, 2), (12, False, 1), (11, True, 1)]
    embedding, heads, feed, words = (Axis(group=index) for index in range(4))
    assert plan.axes["tokens.weight"] == (None, embedding)
    if stored:
        assert plan.axes["positions"] == (None, None, embedding)
    else:
        assert plan.axes["positions.weight"] == (None, embedding)
    assert plan.axes["attend.in_proj_weight"] == (Axis(group=1, stacks=3), embedding)
    assert plan.axes["attend.in_proj_bias"] == (Axis(group=1, stacks=3),)
    assert plan.axes["attend.out_proj.weight"] == (embedding, heads)
    assert plan.axes["feed.0.weight"] == (feed, embedding)
    assert plan.axes["feed.2.bias"] == plan.axes["feed_norm.weight"] == (embedding,)
    assert plan.axes["classify.weight"] == (words, embedding)
    assert plan.hidden == ("tokens", *(() if stored else ("positions",)), "attend", "feed.0", "feed.2")
    assert plan.attentions == ("attend",)
    assert plan.heads == ("classify",)


def test_tied_weights_keep_one_name() -> None:
    plan = follow_channels(Language(tied=True))
    assert plan.axes["tokens.weight"] == (None, Axis(group=0))
    assert "classify.weight" not in plan.axes
    assert plan.groups[-1] == Group(size=11, fixed=True)


@pytest.mark.parametrize("model", [Conv2(), Residual(), Language(), Language(stored=True), Language(tied=True)])
def test_every_tensor_of_the_layout_is_covered_and_the_model_untouched(model: nn.Module) -> None:
    before = set(vars(model))
    plan, layout = follow_channels(model), Layout.of(model)
    assert set(vars(model)) == before
    for place in (*layout.parameters, *layout.buffers):
        for length, axis in zip(place.shape, plan.axes[place.name], strict=True):
            assert axis is None or length == plan.groups[axis.group].size * axis.repeat * axis.stacks


def test_several_outputs_are_all_fixed() -> None:
    def forward(at: nn.ModuleDict, x: Tensor) -> tuple[Tensor, Tensor]:
        x = at["body"](x)
        return at["one"](x), at["two"](x)

    plan = follow_channels(Calls(forward, body=nn.Linear(3, 4), one=nn.Linear(4, 2), two=nn.Linear(4, 5)))  # type: ignore[arg-type]
    assert [group.size for group in plan.groups if not group.fixed] == [4]
    assert plan.heads == ("layers.one", "layers.two")


def test_a_sum_of_outputs_has_two_heads() -> None:
    plan = follow_channels(Calls(lambda at, x: at["one"](x) + at["two"](x), one=nn.Linear(3, 2), two=nn.Linear(3, 2)))
    assert all(group.fixed for group in plan.groups)
    assert plan.hidden == ()
    assert plan.heads == ("layers.one", "layers.two")


def test_a_model_of_one_layer() -> None:
    model = nn.Linear(3, 2)
    plan = follow_channels(model)
    assert sizes(plan) == [(3, True, 1), (2, True, 1)]
    assert plan.axes == {"weight": (Axis(group=1), Axis(group=0)), "bias": (Axis(group=1),)}
    assert plan.heads == ("",)
    assert model.get_submodule("") is model


def test_depthwise_convolutions_stay_in_their_group() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    plan = follow_channels(nn.Sequential(*model, nn.Linear(24, 2)))
    assert sizes(plan) == [(3, True, 1), (6, False, 1), (2, True, 1)]
    assert plan.axes["1.weight"] == (Axis(group=1), None, None, None)
    assert plan.axes["4.weight"] == (Axis(group=2), Axis(group=1, repeat=4))


def test_stored_tensors_line_up_from_the_right() -> None:
    class Stored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shape, self.scale = nn.Parameter(torch.ones(4, 1, 1)), nn.Parameter(torch.ones(()))
            self.register_buffer("wave", torch.ones(9, 4))
            self.convolve, self.classify = nn.Conv2d(1, 4, 3), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = (self.convolve(x) * self.shape).flatten(1).view(x.size(0), -1) * self.scale
            return self.classify(x + self.wave[: x.size(0), :])

    plan = follow_channels(Stored())
    channels = Axis(group=1)
    assert plan.axes["shape"] == (channels, None, None)
    assert plan.axes["scale"] == ()
    assert plan.axes["wave"] == (None, channels)
    assert plan.axes["classify.weight"] == (Axis(group=2), channels)


def conv(**settings: object) -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, padding=1, **settings)  # type: ignore[arg-type]


REFUSED = {
    "cat": (lambda at, x: at["two"](torch.cat([at["one"](x), at["one"](x)], 1)), "the model's forward", "cat"),
    "input": (lambda at, x: at["two"](x + at["one"](x)), "the model's forward", "input"),
    "view": (lambda at, x: at["head"](at["one"](x).view(-1, 64)), "the model's forward", "flatten(x, 1)"),
    "mean": (lambda at, x: at["two"](at["one"](x).mean(1, keepdim=True)), "the model's forward", "over the channels"),
    "groups": (lambda at, x: at["two"](at["halves"](at["one"](x))), "'layers.halves'", "groups=2"),
    "softmax": (lambda at, x: at["two"](at["softmax"](at["one"](x))), "'layers.softmax'", "Softmax is not supported"),
    "size": (lambda at, x: at["head"](at["one"](x).mean((2, 3))), "'layers.head'", "4 channels meet a size of 64"),
    "place": (lambda at, x: at["last"](at["one"](x)), "'layers.last'", "move them to the last"),
    "linear": (lambda at, x: functional.linear(x, at["last"].weight), "the model's forward", "linear is not"),
    "cross": (lambda at, x: at["attend"](at["last"](x), x, x)[0], "'layers.attend'", "self-attention"),
    "recurrent": (lambda at, x: at["lstm"](x)[0], "'layers.lstm'", "LSTM is not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_followed_is_named(case: str) -> None:
    forward, layer, reason = REFUSED[case]
    layers = {"one": conv(), "two": conv(), "halves": conv(groups=2), "softmax": nn.Softmax(1), "last": nn.Linear(4, 4)}
    others = {"head": nn.Linear(64, 2), "attend": nn.MultiheadAttention(4, 2), "lstm": nn.LSTM(4, 4)}
    with pytest.raises(ValueError, match=re.escape(reason)) as refusal:
        follow_channels(Calls(forward, **layers, **others))
    assert layer in str(refusal.value)
    assert "choose a ranking of single coordinates" in str(refusal.value)


def test_a_function_is_named_by_the_layer_that_calls_it() -> None:
    inside = Calls(lambda at, x: torch.cat([at["one"](x)], 1), one=nn.Linear(3, 4))
    with pytest.raises(ValueError, match="'1'"):
        follow_channels(nn.Sequential(nn.Linear(2, 3), inside, nn.Linear(4, 1)))


def test_untraceable_models_are_refused() -> None:
    def forward(at: nn.ModuleDict, x: Tensor) -> Tensor:
        return at["one"](x) if x.sum() > 0 else x  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=r"torch\.fx cannot trace Calls"):
        follow_channels(Calls(forward, one=nn.Linear(2, 2)))
