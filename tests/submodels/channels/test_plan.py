"""Channels: which entries of which tensors belong together, in groups, and what keeps its full width."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.channels.plan import ChannelPlan, Group
from fedgmr.submodels.channels.slicing import hidden_layers, slice_module
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.widths import kept_mask, width_levels
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


def words(length: int = 6) -> Tensor:
    return torch.zeros(2, length, dtype=torch.int64)


def images(*shape: int) -> Tensor:
    return torch.zeros(2, *shape)


def sizes(plan: ChannelPlan) -> list[int]:
    return [group.size for group in plan.groups]


def shape(plan: ChannelPlan, name: str) -> tuple[dict[int, int] | None, ...]:
    """For each dimension of a tensor how many entries of which group it has; -1: of none. None: it is never sliced."""
    ends = torch.tensor([0, *sizes(plan)]).cumsum(0)[1:]
    found: list[dict[int, int] | None] = []
    for axis in plan.axes[name]:
        groups = None if axis is None else torch.where(axis < 0, -1, torch.bucketize(axis, ends, right=True)).tolist()
        found.append(None if groups is None else {group: groups.count(group) for group in sorted(set(groups))})
    return tuple(found)


def test_a_chain_and_its_flatten() -> None:
    plan = follow_channels(model := Conv2(), images(1, 28, 28))
    assert plan.groups == (Group(size=32), Group(size=64), Group(size=2048))  # neither the input nor the classes
    assert shape(plan, "0.weight") == ({0: 32}, None, None, None)
    assert shape(plan, "3.weight") == ({1: 64}, {0: 32}, None, None)
    assert shape(plan, "3.bias") == ({1: 64},)
    assert shape(plan, "7.weight") == ({2: 2048}, {1: 64 * 49})
    assert shape(plan, "9.weight") == (None, {2: 2048})
    assert shape(plan, "9.bias") == (None,)
    columns = plan.axes["7.weight"][1]
    assert columns is not None
    assert columns[:98].tolist() == [32] * 49 + [33] * 49  # the numbers of the second group begin at 32
    assert hidden_layers(model, plan) == ("0", "3", "7")
    assert {name: dim for name, (dim, _) in plan.heads.items()} == {"9.weight": 0, "9.bias": 0}
    assert (plan.whole, plan.calls) == ((), ())


def test_residual_operands_share_their_channels() -> None:
    plan = follow_channels(model := Residual(), images(3, 8, 8))
    assert sizes(plan) == [4, 6, 5]  # stem, the residual stream (wide, down and outer), inner
    assert shape(plan, "wide.weight") == shape(plan, "down.0.weight") == ({1: 6}, {0: 4}, None, None)
    assert shape(plan, "outer.weight") == ({1: 6}, {2: 5}, None, None)
    assert shape(plan, "classify.weight") == (None, {1: 6})
    for name in ("wide_norm.weight", "wide_norm.running_mean", "down.1.running_var", "down.1.bias", "outer.bias"):
        assert shape(plan, name) == ({1: 6},)
    assert {path: [axis is not None and len(axis) for axis in axes] for path, axes in plan.norms.items()} == {
        "wide_norm": [6],
        "down.1": [6],
    }
    assert hidden_layers(model, plan) == ("stem", "wide", "down.0", "inner", "outer")


@pytest.mark.parametrize("stored", [False, True])
def test_heads_keep_the_same_positions(stored: bool) -> None:
    plan = follow_channels(model := Language(stored=stored), words())
    # The stream, four positions in both heads of queries, keys and values, the feed-forward layer; never the words.
    stream, heads, feed = sorted(range(3), key=lambda group: [8, 4, 12].index(plan.groups[group].size))
    assert sizes(plan) == [8, 4, 12]
    assert shape(plan, "tokens.weight") == (None, {stream: 8})
    assert shape(plan, "positions" if stored else "positions.weight")[-1] == {stream: 8}
    assert shape(plan, "attend.in_proj_weight") == ({heads: 24}, {stream: 8})
    rows = plan.axes["attend.in_proj_bias"][0]
    assert rows is not None
    assert rows.tolist() == [8, 9, 10, 11] * 6
    assert shape(plan, "attend.out_proj.weight") == ({stream: 8}, {heads: 8})
    assert shape(plan, "feed.0.weight") == ({feed: 12}, {stream: 8})
    assert shape(plan, "classify.weight") == (None, {stream: 8})
    assert hidden_layers(model, plan) == ("tokens", *(() if stored else ("positions",)), "attend", "feed.0", "feed.2")
    assert list(plan.heads) == ["classify.weight", "classify.bias"]


def test_tied_weights_keep_one_name() -> None:
    plan = follow_channels(Language(tied=True), words())
    assert shape(plan, "tokens.weight") == (None, {0: 8})
    assert "classify.weight" not in plan.axes
    assert list(plan.heads) == ["tokens.weight", "classify.bias"]


@pytest.mark.parametrize("model", [Conv2(), Residual(), Language(), Language(stored=True), Language(tied=True)])
def test_every_tensor_of_the_layout_is_covered_and_the_model_untouched(model: nn.Module) -> None:
    before = {name: values.clone() for name, values in model.state_dict().items()}
    attributes, hooks = set(vars(model)), len(model._forward_hooks)
    batch = (
        words() if isinstance(model, Language) else images(1, 28, 28) if isinstance(model, Conv2) else images(3, 8, 8)
    )
    plan, layout = follow_channels(model, batch), Layout.of(model)
    assert (set(vars(model)), len(model._forward_hooks), model.training) == (attributes, hooks, True)
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    for place in (*layout.parameters, *layout.buffers):
        for length, axis in zip(place.shape, plan.axes[place.name], strict=True):
            assert axis is None or len(axis) == length


def test_several_outputs_are_never_sliced() -> None:
    def forward(at: nn.ModuleDict, x: Tensor) -> tuple[Tensor, Tensor]:
        x = at["body"](x)
        return at["one"](x), at["two"](x)

    model = Calls(forward, body=nn.Linear(3, 4), one=nn.Linear(4, 2), two=nn.Linear(4, 5))  # type: ignore[arg-type]
    plan = follow_channels(model, images(3))
    assert sizes(plan) == [4]
    assert list(plan.heads) == [f"layers.{layer}.{part}" for layer in ("one", "two") for part in ("weight", "bias")]


def test_a_sum_of_outputs_and_a_model_of_one_layer() -> None:
    model = Calls(lambda at, x: at["one"](x) + at["two"](x), one=nn.Linear(3, 2), two=nn.Linear(3, 2))
    plan = follow_channels(model, images(3))
    assert plan.groups == ()
    assert hidden_layers(model, plan) == ()
    assert len(plan.heads) == 4
    plan = follow_channels(nn.Linear(3, 2), images(3))
    assert plan.groups == ()
    assert plan.axes == {"weight": (None, None), "bias": (None,)}
    assert list(plan.heads) == ["weight", "bias"]


def test_convolutions_with_groups_keep_whole_groups() -> None:
    # Six channels, each by itself; then six groups become three of two inputs and four outputs each.
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 12, 1, groups=3))
    plan = follow_channels(
        nn.Sequential(*model, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 2)), images(3, 8, 8)
    )
    assert sizes(plan) == [3]
    rows = {name: axes[0].tolist() for name, axes in plan.axes.items() if axes[0] is not None}
    assert rows["0.weight"] == rows["1.weight"] == [0, 0, 1, 1, 2, 2]
    assert rows["2.weight"] == rows["2.bias"] == [0] * 4 + [1] * 4 + [2] * 4
    assert shape(plan, "2.weight")[1:] == (None, None, None)
    assert shape(plan, "5.weight") == (None, {0: 48})


def test_a_concatenation_has_the_groups_of_its_parts() -> None:
    # The input's two channels, the first layer's three and the second's four.
    def forward(at: nn.ModuleDict, x: Tensor) -> Tensor:
        return at["last"](torch.cat([x, at["one"](x), at["two"](x)], 1))  # type: ignore[no-any-return]

    model = Calls(forward, one=nn.Linear(2, 3), two=nn.Linear(2, 4), last=nn.Linear(9, 5))
    plan, layout = follow_channels(model, images(2)), Layout.of(model)
    assert sizes(plan) == [3, 4]
    columns = plan.axes["layers.last.weight"][1]
    assert columns is not None
    assert columns.tolist() == [-1, -1, 0, 1, 2, 3, 4, 5, 6]
    # Half: 2 of 3 and 2 of 4, so 2·3 + 2·3 + 5·(2 + 2 + 2) + 5 coordinates.
    assert width_levels(plan, layout, (0.5, 1.0)).sizes == (47, layout.size)
    assert kept_mask(plan, 0.5).tolist() == [True, True, False, True, True, False, False, True]


def test_a_sum_with_a_concatenation_divides_the_group() -> None:
    def forward(at: nn.ModuleDict, x: Tensor) -> Tensor:
        return at["last"](at["all"](x) + torch.cat([at["one"](x), at["two"](x)], 1))  # type: ignore[no-any-return]

    layers = {"all": nn.Linear(2, 7), "one": nn.Linear(2, 3), "two": nn.Linear(2, 4), "last": nn.Linear(7, 5)}
    assert sizes(follow_channels(Calls(forward, **layers), images(2))) == [3, 4]


def test_recurrent_layers_have_one_size() -> None:
    model = Calls(lambda at, x: at["head"](at["lstm"](x)[0]), lstm=nn.LSTM(3, 4, 2), head=nn.Linear(4, 2))
    plan = follow_channels(model, images(5, 3))
    assert plan.groups == (Group(size=4),)
    rows = plan.axes["layers.lstm.weight_ih_l0"][0]
    assert rows is not None
    assert rows.tolist() == [0, 1, 2, 3] * 4  # in all four gates
    assert shape(plan, "layers.lstm.weight_ih_l1") == shape(plan, "layers.lstm.weight_hh_l1") == ({0: 16}, {0: 4})
    small = slice_module(model, plan, kept_mask(plan, 0.5)).get_submodule("layers.lstm")
    assert (small.input_size, small.hidden_size) == (3, 2)


def test_an_lstm_with_projections_computes_at_every_width() -> None:
    """PyTorch takes one whose cells and projections are equally many, as one and one, for one without projections."""
    model = Calls(lambda at, x: at["head"](at["lstm"](x)[0]), lstm=nn.LSTM(3, 8, 2, proj_size=7), head=nn.Linear(7, 2))
    plan = follow_channels(model, images(5, 3))
    assert plan.groups == (Group(size=7),)
    assert plan.whole == ("layers.lstm: an LSTM must have more cells than projections of them",)
    for width, projections in (0.1, 1), (0.5, 4), (0.99, 7):
        small = slice_module(model, plan, kept_mask(plan, width))
        lstm = small.get_submodule("layers.lstm")
        assert (lstm.hidden_size, lstm.proj_size) == (8, projections)
        assert small(torch.zeros(5, 4, 3)).shape == (5, 4, 2)


def test_a_group_norm_over_a_concatenation() -> None:
    def forward(at: nn.ModuleDict, x: Tensor) -> Tensor:
        return at["last"](at["norm"](torch.cat([at["one"](x), at["two"](x)], 1)))  # type: ignore[no-any-return]

    def plan_of(first: int) -> ChannelPlan:
        layers = {"one": nn.Conv1d(2, first, 1), "two": nn.Conv1d(2, 12 - first, 1), "norm": nn.GroupNorm(4, 12)}
        return follow_channels(Calls(forward, **layers, last=nn.Conv1d(12, 2, 1)), images(2, 3))

    assert plan_of(8).groups == (Group(size=8, multiple=4), Group(size=4, multiple=4))
    uneven = plan_of(7)  # seven and five channels never make four equal groups again
    assert uneven.groups == ()
    assert uneven.whole == ("layers.norm: a group norm cannot divide what is left of its channels",)


def test_a_group_norm_whose_half_is_no_multiple() -> None:
    # Half of twelve channels are six, which four groups cannot divide; four can be kept, or eight.
    model = nn.Sequential(nn.Conv1d(2, 12, 1), nn.GroupNorm(4, 12), nn.Conv1d(12, 2, 1))
    plan = follow_channels(model, images(2, 3))
    assert (plan.groups, plan.whole) == ((Group(size=12, multiple=4),), ())
    assert slice_module(model, plan, kept_mask(plan, 0.5)).get_submodule("1").num_channels == 4


def test_slices_of_channels_are_those_of_a_window() -> None:
    def forward(at: nn.ModuleDict, x: Tensor) -> Tensor:
        x = at["one"](x)
        return at["two"](torch.cat([x[:, 2:], x[:, :2]], 1))  # type: ignore[no-any-return]

    model = Calls(forward, one=nn.Linear(1, 4, bias=False), two=nn.Linear(4, 1, bias=False))
    plan = follow_channels(model, images(1))
    assert (sizes(plan), plan.whole) == ([4], ())
    with torch.no_grad():
        model.layers["one"].weight.copy_(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))  # type: ignore[operator]
        model.layers["two"].weight.copy_(torch.tensor([[10.0, 100.0, 1000.0, 10000.0]]))  # type: ignore[operator]
    # Channels 0 and 1: places 2 and 3 of the concatenation; 3 and 0, after a roll by one: places 1 and 2.
    for shift, expected in ((0, 1 * 1000 + 2 * 10000), (1, 4 * 100 + 1 * 1000)):
        small = slice_module(model, plan, kept_mask(plan, 0.5, shift))
        assert small(torch.ones(1, 1)).item() == expected


def test_a_roll_in_space_leaves_the_channels() -> None:
    model = Calls(lambda at, x: at["two"](at["one"](x).roll(1, 2)), one=nn.Conv1d(2, 4, 1), two=nn.Conv1d(4, 2, 1))
    plan = follow_channels(model, images(2, 3))
    assert (sizes(plan), plan.whole) == ([4], ())


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

    plan = follow_channels(Stored(), images(1, 3, 3))
    assert shape(plan, "shape") == ({0: 4}, None, None)
    assert shape(plan, "scale") == ()
    assert shape(plan, "wave") == (None, {0: 4})  # also in the rows that this batch does not reach
    assert shape(plan, "classify.weight") == (None, {0: 4})


LOOSE = torch.ones(4)


def folded(x: Tensor) -> Tensor:
    return functional.fold(x.view(-1, 4, 1), (2, 2), (2, 2)).flatten(1)


WHOLE = {  # what is done to the four channels of layer `one`, and the sentence about them
    "softmax": (lambda at, x: x.softmax(1), "the model: softmax runs over its channels"),
    "layer": (lambda at, x: at["softmax"](x), "layers.softmax: softmax runs over its channels"),
    "maximum": (lambda at, x: x - x.amax(1, True), "the model: amax runs over its channels"),
    "single": (lambda at, x: x * x[:, 2:3], "the model: it picks single channels"),
    "order": (lambda at, x: x[:, [2, 0, 1, 3]], "the model: it picks channels by number"),
    "rolled": (lambda at, x: x.roll(1, 1), "the model: roll runs over its channels"),
    "all rolled": (lambda at, x: x.roll(1), "the model: roll runs over its channels"),
    "loose": (lambda at, x: x * LOOSE, "the model: it uses a tensor that is neither a parameter nor a buffer"),
    "count": (lambda at, x: x * torch.arange(4), "the model: arange counts its channels"),
    "unknown": (lambda at, x: folded(x), "the model: col2im is not followed"),
    "sizes": (lambda at, x: x + x.new_zeros(size=(2, 4)), "the model: new_zeros has sizes of its own"),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_cannot_be_followed_keeps_its_width_and_is_named(case: str) -> None:
    forward, sentence = WHOLE[case]
    layers = {"one": nn.Linear(3, 4), "two": nn.Linear(4, 5), "softmax": nn.Softmax(1), "three": nn.Linear(5, 2)}
    model = Calls(lambda at, x: at["three"](at["two"](forward(at, at["one"](x)))), **layers)
    plan = follow_channels(model, images(3))
    assert plan.whole == (sentence,)
    assert sizes(plan) == [5]  # the other group is still there


def test_the_input_in_a_sum_is_never_sliced() -> None:
    model = Calls(lambda at, x: at["two"](x + at["one"](x)), one=nn.Linear(4, 4), two=nn.Linear(4, 2))
    plan = follow_channels(model, images(4))
    assert (plan.groups, plan.whole) == ((), ())


def test_statistics_are_of_the_kept_channels() -> None:
    """A root mean square norm by hand: 1 / sqrt(mean of squares) over two of four channels."""

    def forward(at: nn.ModuleDict, x: Tensor) -> Tensor:
        x = at["one"](x)
        return at["two"](x * x.pow(2).mean(-1, keepdim=True).rsqrt())  # type: ignore[no-any-return]

    model = Calls(forward, one=nn.Linear(1, 4, bias=False), two=nn.Linear(4, 2, bias=False))
    plan = follow_channels(model, torch.ones(2, 1))
    assert (sizes(plan), plan.whole) == ([4], ())
    with torch.no_grad():
        model.layers["one"].weight.copy_(torch.tensor([[3.0], [4.0], [5.0], [6.0]]))  # type: ignore[operator]
        model.layers["two"].weight.fill_(1.0)  # type: ignore[operator]
    small = slice_module(model, plan, kept_mask(plan, 0.5))
    assert small(torch.ones(1, 1))[0, 0].item() == pytest.approx(7 / 12.5**0.5)


def test_sizes_that_forward_writes_out() -> None:
    """Two heads of four positions: views, splits, slices and new tensors by number, as they are often written."""

    def forward(at: nn.ModuleDict, x: Tensor) -> Tensor:
        q, k = torch.split(at["both"](x), 8, dim=-1)
        q, k = q.view(-1, 2, 4), k.reshape(len(x), 2, 4)
        state = torch.zeros(len(x), 8).unflatten(1, (2, 4)) + q * k
        rest = at["gate"](x)
        return at["out"](state.reshape(len(x), 8) * rest[:, :8] + rest[:, 8:16])  # type: ignore[no-any-return]

    model = Calls(forward, both=nn.Linear(3, 16), gate=nn.Linear(3, 16), out=nn.Linear(8, 2)).double()
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.randn(5, 3)
        plan = follow_channels(model, x[:2])
        assert (sizes(plan), plan.whole) == ([4], ())  # one position of both heads in everything
        assert plan.calls
        small = slice_module(model, plan, kept_mask(plan, 0.5, 1))
        kept = width_levels(plan, layout := Layout.of(model), [0.5], 1).mask(0)
        assert torch.equal(Layout.of(small).flatten(small), layout.flatten(model)[kept])
        layout.bind(model, layout.flatten(model) * kept, torch.empty(0))
        assert torch.allclose(small(x), model(x), rtol=0, atol=1e-12)
    finally:
        torch.set_default_dtype(torch.float32)


def test_another_way_through_forward_is_refused_where_sizes_are_written_out() -> None:
    def forward(at: nn.ModuleDict, x: Tensor) -> Tensor:
        hidden = at["one"](x).view(-1, 2, 4)
        if len(x) > 3:
            hidden = hidden[:, :, :]
        return at["two"](hidden.flatten(1).reshape(-1, 8))  # type: ignore[no-any-return]

    model = Calls(forward, one=nn.Linear(3, 8), two=nn.Linear(8, 2))
    plan = follow_channels(model, images(3))
    small = slice_module(model, plan, kept_mask(plan, 0.5))
    assert small(torch.zeros(3, 3)).shape == (3, 2)
    with pytest.raises(ValueError, match="calls __getitem__ where it did not"):
        small(torch.zeros(4, 3))


def test_branches_that_depend_on_the_data_are_followed() -> None:
    def forward(at: nn.ModuleDict, x: Tensor) -> Tensor:
        return at["two"](at["one"](x)) if x.sum() > -1 else x  # type: ignore[no-any-return]

    assert sizes(follow_channels(Calls(forward, one=nn.Linear(2, 3), two=nn.Linear(3, 2)), images(2))) == [3]


def test_a_model_that_cannot_compute_is_refused() -> None:
    with pytest.raises(ValueError, match=r"channels of Sequential cannot be followed, because its forward fails"):
        follow_channels(nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2)), images(3))
