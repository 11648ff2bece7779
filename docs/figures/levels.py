"""A small net with every weight coloured by its level, and the same in level order, where sub-models are prefixes.

The net is trained for a moment, so that the level map is FedGMR's own: by Taylor importance, with a floor per tensor.
"""

import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional

import fedgmr
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import RankingInputs
from figures.style import FAINT, INK, LEVELS

_COLOURS = ListedColormap(LEVELS)


def small_net() -> tuple[Layout, LevelMap]:
    """A net of 8, 12 and 4 units after some steps, and the level map that FedGMR gives it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    labels = torch.randint(4, (256,))
    inputs = functional.one_hot(labels, 8) * 1.5 + torch.randn(256, 8)
    layout = Layout.of(net)
    for _ in range(20):
        previous = layout.flatten(net).clone()
        loss = functional.cross_entropy(net(inputs), labels)
        for weight, slope in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
            weight.data -= 0.5 * slope
    method = fedgmr.named_method("fedgmr")
    model = layout.flatten(net)
    return layout, method.ranking.rank(
        RankingInputs(layout=layout, ladder=method.ladder, model=model, previous=previous, tick=20)
    )


def draw() -> Figure:
    """The weights as matrices, and below them the level order."""
    layout, levels = small_net()
    figure = Figure(figsize=(7.6, 5.0))
    grid = figure.add_gridspec(2, 4, height_ratios=[1.5, 1], width_ratios=[8, 1, 12, 1], hspace=0.2, wspace=0.22)
    titles = ("weights 12 by 8", "bias", "weights 4 by 12", "bias")
    for column, (title, tensor) in enumerate(zip(titles, layout.views(levels.levels), strict=True)):
        axes = figure.add_subplot(grid[0, column])
        _matrix(axes, tensor.reshape(len(tensor), -1), title)
    _level_order(figure.add_subplot(grid[1, :]), levels)
    return figure


def _level_order(axes: Axes, levels: LevelMap) -> None:
    starts = [0, *levels.sizes]
    for level, (colour, density) in enumerate(zip(LEVELS, levels.ladder, strict=True)):
        start, stop, below = starts[level], starts[level + 1], 1.2 + 0.7 * level
        axes.barh(0, stop - start, left=start, height=0.9, color=colour)
        axes.text((start + stop) / 2, -0.8, str(level), ha="center", va="center")
        axes.plot([0, stop], [below, below], color=FAINT, marker="|", markersize=6)
        axes.text(stop + 2, below, f"level {level}, density {density:g}: {stop} coordinates", va="center")
    for height, words in ((-0.8, "increment"), (0.0, "level order"), (2.6, "sub-models")):
        axes.text(-2, height, words, ha="right", va="center")
    axes.set(xlim=(0, len(levels) + 52), ylim=(4.4, -1.2))
    axes.axis("off")


def _matrix(axes: Axes, levels: Tensor, title: str) -> None:
    axes.imshow(levels.numpy(), cmap=_COLOURS, vmin=-0.5, vmax=len(LEVELS) - 0.5)
    axes.set_title(title, fontsize=9)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    rows, columns = levels.shape
    axes.set_xticks([at - 0.5 for at in range(columns + 1)], minor=True)
    axes.set_yticks([at - 0.5 for at in range(rows + 1)], minor=True)
    axes.grid(which="minor", color=INK, linewidth=0.3, alpha=0.5)
    axes.tick_params(which="minor", length=0)
