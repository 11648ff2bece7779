"""The merge: which of four clients hold which part of the model, and over how many each coordinate is averaged.

Rows are the latest updates of clients at different levels of the small net of `levels.py`, in level order.
"""

from matplotlib.figure import Figure

from figures.levels import small_net
from figures.style import FAINT, LEVELS

CLIENTS = ((4, "client 0, level 4"), (2, "client 1, level 2"), (0, "client 2, level 0"), (0, "client 3, level 0"))


def draw() -> Figure:
    """A strip per client, and the number of holders below."""
    _, levels = small_net()
    figure = Figure(figsize=(7.6, 2.5))
    axes = figure.subplots()
    starts = [0, *levels.sizes]
    for row, (held, name) in enumerate(CLIENTS):
        for level in range(len(levels.ladder)):
            width, mine = levels.increments[level], level <= held
            colour = LEVELS[level] if mine else "none"
            axes.barh(row, width, left=starts[level], height=0.7, color=colour, edgecolor=FAINT, linewidth=0.6)
        axes.text(-2, row, name, ha="right", va="center")
    for level in range(len(levels.ladder)):
        holders = sum(level <= held for held, _ in CLIENTS)
        axes.barh(4.4, levels.increments[level], left=starts[level], height=0.7, color=LEVELS[level])
        middle = (starts[level] + starts[level + 1]) / 2
        axes.text(middle, 5.25, f"{holders}", ha="center", va="center")
    axes.text(-2, 4.4, "merged model", ha="right", va="center")
    axes.text(-2, 5.25, "clients in the mean", ha="right", va="center")
    axes.set(xlim=(0, len(levels)), ylim=(5.7, -0.6))
    axes.axis("off")
    return figure
