"""Widths: kept channels by hand, the width nearest to a density, and levels of weights, biases and norms."""

import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from e2e import tiny
from equivalence.runs import drive, objects
from torch import Tensor, nn

from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.channels.plan import ChannelPlan, Group
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import RankingInputs
from fedgmr.submodels.widths import RollingWindow, WidthPrefix, kept_channels, solve_widths, width_levels, widths_for
from fedgmr.tasks.models.conv2 import Conv2

LADDER = (0.05, 0.1, 0.2, 0.5, 1.0)


def vgg11() -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        before = width or before
    linear = (nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return nn.Sequential(*layers, nn.Flatten(), *linear)


class Block(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        stride = 1 if before == width else 2
        self.inner = nn.Sequential(
            *(nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)),
        )
        down = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Identity() if before == width else down

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x) + self.shortcut(x))


def resnet18() -> nn.Sequential:
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks = [Block(a, b) for a, b in pairwise((64, 64, 64, 128, 128, 256, 256, 512, 512))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def followed(model: nn.Module, *shape: int) -> tuple[ChannelPlan, Layout]:
    return follow_channels(model, torch.zeros(2, *shape)), Layout.of(model)


def by_tensor(levels: LevelMap, layout: Layout) -> dict[str, list[object]]:
    return {p.name: levels.levels[p.start : p.stop].view(p.shape).tolist() for p in layout.parameters}


def test_a_prefix() -> None:
    assert kept_channels(Group(size=8), 0.5, 0).tolist() == [0, 1, 2, 3]
    assert kept_channels(Group(size=7), 0.5, 0).tolist() == [0, 1, 2, 3]  # rounded up
    assert kept_channels(Group(size=8), 0.01, 0).tolist() == [0]
    assert kept_channels(Group(size=8), 1.0, 5).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("width", "size", "count"), [(0.07, 100, 7), (0.3, 10, 3), (0.1 + 0.2, 10, 3), (1 / 49, 49, 1)]
)
def test_float_noise_adds_no_channel(width: float, size: int, count: int) -> None:
    assert len(kept_channels(Group(size=size), width, 0)) == count


def test_the_window_rolls_down_and_wraps() -> None:
    windows = [kept_channels(Group(size=5), 0.4, shift).tolist() for shift in range(6)]
    assert windows == [[0, 1], [0, 4], [3, 4], [2, 3], [1, 2], [0, 1]]


def test_a_group_norm_keeps_whole_multiples_rounded_down() -> None:
    counts = {width: len(kept_channels(Group(size=64, multiple=4), width, 0)) for width in (0.01, 0.2236, 0.5, 0.99)}
    assert counts == {0.01: 4, 0.2236: 12, 0.5: 32, 0.99: 60}  # 64 x 0.2236 is 14.3
    assert kept_channels(Group(size=8, multiple=4), 0.5, 2).tolist() == [0, 1, 6, 7]
    assert len(kept_channels(Group(size=100, multiple=10), 0.1 + 0.2, 0)) == 30  # 30.000000000000004


@pytest.mark.parametrize("width", [0.0, 1.01, -1.0])
def test_widths_are_shares(width: float) -> None:
    with pytest.raises(ValueError, match="width is"):
        kept_channels(Group(size=8), width, 0)


# Section 2.0's table: width and kept fraction by density. Its widths have three decimals; ours end their step.
TABLE = {
    "conv2": ((0.213, 0.306, 0.438, 0.703, 1.0), (0.0500, 0.1000, 0.2033, 0.4986, 1.0)),
    "vgg11": ((0.221, 0.314, 0.445, 0.705, 1.0), (0.0498, 0.1004, 0.2007, 0.5003, 1.0)),
    "resnet18": ((0.219, 0.313, 0.443, 0.703, 1.0), (0.0503, 0.1009, 0.2000, 0.4999, 1.0)),
}


@pytest.mark.parametrize(
    ("model", "coordinates"),
    [(Conv2, 6_603_710), (vgg11, 9_750_922), (resnet18, 11_227_812)],
)
def test_widths_of_the_papers_nets(model: type[nn.Module], coordinates: int) -> None:
    shape = (1, 28, 28) if model is Conv2 else (3, 32, 32)
    widths, fractions = TABLE[model.__name__.lower()]
    plan, layout = followed(model(), *shape)
    assert layout.size == coordinates
    solved = solve_widths(plan, layout, LADDER)
    assert solved == pytest.approx(widths, abs=0.0025)
    kept = [size / coordinates for size in width_levels(plan, layout, solved).sizes]
    assert kept == pytest.approx(fractions, abs=6e-5)


@pytest.mark.parametrize("density", [0.02, 0.11, 0.3, 0.45, 0.7, 0.99])
def test_no_width_comes_nearer(density: float) -> None:
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 10), nn.Linear(10, 3))
    plan, layout = followed(model, 2, 4, 4)

    def kept(width: float) -> int:
        return width_levels(plan, layout, [width]).sizes[0]

    (solved,) = solve_widths(plan, layout, [density])
    distances = [abs(kept(width / 1000) - density * layout.size) for width in range(1, 1001)]
    assert abs(kept(solved) - density * layout.size) == min(distances)
    assert kept(min(1.0, solved + 1e-6)) > kept(solved) or solved == 1.0


def test_densities_that_fall_together_are_named() -> None:
    plan, layout = followed(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), 4)
    with pytest.raises(ValueError, match=r"0\.1 and 0\.2 come to the same width"):
        solve_widths(plan, layout, (0.1, 0.2, 1.0))
    plan, layout = followed(nn.Linear(4, 2), 4)  # nothing to slice
    with pytest.raises(ValueError, match=r"0\.5 and 1\.0"):
        solve_widths(plan, layout, (0.5, 1.0))
    assert solve_widths(plan, layout, (1.0,)) == (1.0,)


def test_levels_of_weights_biases_norms_and_flattened_columns() -> None:
    # Four channels of two pixels each, three hidden units, two classes; half a width keeps 2 channels and 2 units.
    model = nn.Sequential(
        *(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(8, 3), nn.Linear(3, 2)),
    )
    plan, layout = followed(model, 1, 2)
    levels = width_levels(plan, layout, (0.5, 1.0), ladder=(0.3, 1.0))
    assert levels.ladder == (0.3, 1.0)
    assert levels.implied
    kept, cut = [0, 0, 0, 0, 1, 1, 1, 1], [1] * 8
    assert by_tensor(levels, layout) == {
        "0.weight": [[[0]], [[0]], [[1]], [[1]]],
        "0.bias": [0, 0, 1, 1],
        "1.weight": [0, 0, 1, 1],
        "1.bias": [0, 0, 1, 1],
        "4.weight": [kept, kept, cut],
        "4.bias": [0, 0, 1],
        "5.weight": [[0, 0, 1], [0, 0, 1]],
        "5.bias": [0, 0],
    }
    assert levels.sizes == (2 + 2 + 2 + 2 + 8 + 2 + 4 + 2, layout.size)
    assert width_levels(plan, layout, (0.5, 1.0)).ladder == (24 / layout.size, 1.0)  # what is really kept


def test_rolled_levels() -> None:
    # At shift 1 half of four channels is {0, 3} and half of three is {0, 2}: columns 0, 1, 6, 7 of rows 0 and 2.
    model = nn.Sequential(nn.Conv1d(1, 4, 1), nn.Flatten(), nn.Linear(8, 3), nn.Linear(3, 2))
    plan, layout = followed(model, 1, 2)
    found = by_tensor(width_levels(plan, layout, (0.5, 1.0), 1), layout)
    assert found["0.bias"] == [0, 1, 1, 0]
    assert found["2.weight"] == [[0, 0, 1, 1, 1, 1, 0, 0], [1] * 8, [0, 0, 1, 1, 1, 1, 0, 0]]
    assert found["3.weight"] == [[0, 1, 0], [0, 1, 0]]


def test_levels_of_attention() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.classify = nn.Embedding(3, 4), nn.Linear(4, 3)
            self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.tokens(tokens)
            return self.classify(self.attend(x, x, x)[0])

    model = Attention()
    plan, layout = follow_channels(model, torch.zeros(2, 3, dtype=torch.int64)), Layout.of(model)
    found = by_tensor(width_levels(plan, layout, (0.5, 1.0)), layout)
    assert found["tokens.weight"] == [[0, 0, 1, 1]] * 3
    # The first of both dimensions of both heads, in queries, keys and values; the first two embedding columns.
    assert found["attend.in_proj_bias"] == [0, 1, 0, 1] * 3
    assert found["attend.in_proj_weight"] == [[0, 0, 1, 1], [1] * 4] * 6
    assert found["attend.out_proj.weight"] == [[0, 1, 0, 1]] * 2 + [[1] * 4] * 2
    assert found["classify.bias"] == [0, 0, 0]


def test_channels_past_the_last_width_are_in_no_sub_model() -> None:
    plan, layout = followed(nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1)), 1)
    levels = width_levels(plan, layout, (0.25, 0.5))
    assert by_tensor(levels, layout)["0.bias"] == [0, 1, 2, 2]


def test_one_width_per_density() -> None:
    plan, layout = followed(nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1)), 1)
    with pytest.raises(ValueError, match="2 widths for 1 densities"):
        width_levels(plan, layout, (0.5, 1.0), ladder=(1.0,))


def test_rankings_by_width() -> None:
    model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    plan, layout = followed(model, 1)
    at = RankingInputs(layout=layout, ladder=(0.5, 1.0), model=layout.flatten(model), tick=1, plan=plan)
    # Two of four channels keep 7 of 13 coordinates, one keeps 4: two are nearer to 6.5.
    prefix, rolling = WidthPrefix().rank(at), RollingWindow().rank(at)
    assert by_tensor(prefix, layout)["0.bias"] == [0, 0, 1, 1]
    assert by_tensor(rolling, layout)["0.bias"] == [0, 1, 1, 0]
    assert prefix.ladder == rolling.ladder == (0.5, 1.0)
    assert prefix.implied
    assert rolling.implied
    assert prefix.sizes == rolling.sizes == (7, 13)
    assert [WidthPrefix().due(tick, 1) for tick in range(3)] == [False] * 3
    assert [RollingWindow().due(tick, 25) for tick in range(3)] == [True] * 3
    assert WidthPrefix().ladder(LADDER) == RollingWindow().ladder(LADDER) == LADDER


def test_the_window_may_move_seldom_and_far() -> None:
    model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    plan, layout = followed(model, 1)
    ranking = RollingWindow(every=2, step=3)
    assert [ranking.due(tick, 25) for tick in range(5)] == [True, False, True, False, True]

    def kept(tick: int) -> list[object]:
        at = RankingInputs(layout=layout, ladder=(0.5, 1.0), model=layout.flatten(model), tick=tick, plan=plan)
        return by_tensor(ranking.rank(at), layout)["0.bias"]

    # Two of four channels, from -0, -3 = 1 and -6 = 2 on.
    assert [kept(tick) for tick in range(5)] == [[0, 0, 1, 1]] * 2 + [[1, 0, 0, 1]] * 2 + [[1, 1, 0, 0]]


def test_widths_may_be_the_roots_of_the_densities() -> None:
    model = nn.Sequential(nn.Linear(1, 10, bias=False), nn.Linear(10, 1, bias=False))
    plan, layout = followed(model, 1)
    ladder = (0.05, 0.5, 1.0)
    assert widths_for(plan, layout, ladder, "sqrt") == pytest.approx((0.2236, 0.7071, 1.0), abs=1e-4)
    assert widths_for(plan, layout, ladder, "solved") == (0.1, 0.5, 1.0)  # its nearest shares: 2, 10 and 20 of 20
    at = RankingInputs(layout=layout, ladder=ladder, model=layout.flatten(model), plan=plan)
    ranked = WidthPrefix(widths="sqrt").rank(at)
    assert ranked.sizes == (6, 16, 20)  # 3, 8 and 10 channels, rounded up
    assert ranked.ladder == ladder
    with pytest.raises(ValueError, match=r"densities 0\.5 and 0\.6 come to the same width, which keeps 16 of 20"):
        WidthPrefix(widths="sqrt").rank(replace(at, ladder=(0.5, 0.6, 1.0)))


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_a_run_trains_the_small_networks_that_its_ranking_names(method: str) -> None:
    run = objects(tiny.dense(), method, {"ranking": {"widths": "sqrt"}})
    # 4, 6, 8, 12 and 16 of 16 channels: per channel 17 numbers before and 4 behind, and 4 biases.
    assert run.server.levels.sizes == tuple(21 * channels + 4 for channels in (4, 6, 8, 12, 16))
    before = run.server.model.clone()
    drive(run, ticks=2)
    assert not torch.equal(run.server.model, before)


@pytest.mark.parametrize("ranking", [WidthPrefix(), RollingWindow()])
def test_a_ranking_by_width_needs_the_channels(ranking: WidthPrefix | RollingWindow) -> None:
    model = nn.Linear(1, 4)
    layout = Layout.of(model)
    with pytest.raises(ValueError, match=f"{ranking.kind} needs the model's channels"):
        ranking.rank(RankingInputs(layout=layout, ladder=LADDER, model=layout.flatten(model)))


def test_a_map_is_made_in_no_time() -> None:
    plan, layout = followed(Conv2(), 1, 28, 28)
    taken = []
    for shift in range(3):
        start = time.perf_counter()
        width_levels(plan, layout, solve_widths(plan, layout, LADDER), shift, ladder=LADDER)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.1
