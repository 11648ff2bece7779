"""The figures: accuracy and density over virtual time, bytes per client; for one run or several methods.

Every function returns a figure of its own (no global plotting state), so figures can be drawn in any thread
and without a display. `save_figures` writes them; `report` and `comparison` embed them. The colours are Okabe
and Ito's, which colour-blind readers can tell apart; line styles repeat the cue.
"""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedgmr.files import write_atomic
from fedgmr.reporting.quantities import format_percent, format_target
from fedgmr.reporting.rundir import Column, Curve, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 150
_WIDTH = 6.4  # inches; wider would leave the text too small on a phone
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
_Dashes = tuple[float, tuple[float, ...]]
DASHES: tuple[_Dashes, ...] = tuple(
    (0.0, pattern) for pattern in ((), (5, 1.5), (1.5, 1.2), (6, 1.5, 1.5, 1.5), (3, 1), (8, 2), (5, 1, 1, 1, 1, 1))
)
_DOWN, _UP = "#0072B2", "#E69F00"
_INK, _FAINT = "#222222", "#D9D9D9"


class _Label(NamedTuple):
    height: float
    text: str
    colour: str
    dashes: _Dashes


def accuracy_figure(curves: Mapping[str, Curve], *, target: float | None = None, clock: str = "virtual") -> "Figure":
    """Accuracy (0..1 in the curves, drawn in percent) over time, virtual or real, one line per method."""
    figure, axes = canvas(f"Accuracy over {clock} time", 4.0)
    labels = []
    for index, (title, curve) in enumerate(curves.items()):
        colour, dashes = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
        if curve.spread is not None:
            low, high = 100 * (curve.mean - curve.spread), 100 * (curve.mean + curve.spread)
            axes.fill_between(curve.seconds, low, high, color=colour, alpha=0.18, linewidth=0)
        (line,) = axes.plot(curve.seconds, 100 * curve.mean, color=colour, linestyle=dashes, linewidth=1.9)
        if curve.spread is None:  # show the evaluations of a single run; a lone one would be no line at all
            line.set(marker=".", markersize=5, clip_on=False)
        last = float(curve.mean[-1])
        height = float(np.nan_to_num(100 * last))
        labels.append(_Label(height, f"{title} {format_percent(last)}", colour, dashes))
    if target is not None:
        axes.axhline(100 * target, color=_INK, linewidth=0.8, dashes=(2, 3), zorder=0)
        labels.append(_Label(100 * target, f"target {format_target(target)}", _INK, (0, (2, 3))))
    axes.set(ylabel="accuracy (%)", ylim=(max(0.0, axes.get_ylim()[0]), None))
    _time_axis(axes, max(float(curve.seconds[-1]) for curve in curves.values()), clock)
    _label_ends(axes, labels, figure.get_figheight())
    return figure


def density_figure(run: Run) -> "Figure":
    """Density of every client over virtual time: one row per client, the fastest on top."""
    from matplotlib.colors import BoundaryNorm, ListedColormap

    order = client_order(run)
    rows = run.history.density[:, order].T  # [C, E]
    steps = np.unique(rows)
    # Colour by rank, not by value: on a linear scale 0.05 and 0.1 would look the same.
    ranks = np.searchsorted(steps, rows)
    figure, axes = canvas(f"Density of each client over {run.clock} time", _height(len(order), 0.3))
    norm = BoundaryNorm(np.arange(len(steps) + 1) - 0.5, len(steps))
    palette = ListedColormap(_shades(len(steps)))
    edges = cell_edges(run.history.seconds)
    clients = np.arange(len(order) + 1) - 0.5
    mesh = axes.pcolormesh(edges, clients, ranks, cmap=palette, norm=norm, rasterized=True)
    gap = 1.5 if len(order) <= 30 else 0.0
    axes.hlines(clients[1:-1], edges[0], edges[-1], color="white", linewidth=gap)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=14, ticks=spaced(len(steps), 10))
    bar.ax.set_yticklabels([f"{steps[tick]:.3g}" for tick in spaced(len(steps), 10)])
    bar.ax.tick_params(length=0, labelsize=10)
    bar.minorticks_off()
    bar.set_label("density")
    bar.outline.set_visible(False)
    axes.spines[:].set_visible(False)
    _time_axis(axes, float(edges[-1]), run.clock)
    _client_axis(axes, order)
    return figure


def mean_density_figure(curves: Mapping[str, Curve]) -> "Figure":
    """Mean density of the clients over virtual time, one line per method."""
    figure, axes = canvas("Mean density over virtual time", 3.4)
    constant = {title: round(curve.mean[0], 3) for title, curve in curves.items() if np.ptp(curve.mean) < 1e-3}
    labels = []
    for index, (title, curve) in enumerate(curves.items()):
        # Methods with fixed densities coincide: they share one line in stripes. A method that restores is
        # drawn wider and below, so that it shows where it meets them.
        mates = [mate for mate in constant if title in constant and constant[mate] == constant[title]]
        stripes = (7.0 * mates.index(title), (7.0, 7.0 * (len(mates) - 1))) if len(mates) > 1 else DASHES[0]
        width, order = (2.2, 3) if title in constant else (4.0, 2)
        colour = COLOURS[index % len(COLOURS)]
        (line,) = axes.step(curve.seconds, curve.mean, where="post", color=colour, linestyle=stripes)
        line.set(linewidth=width, zorder=order, dash_capstyle="butt")
        last = float(curve.mean[-1])
        labels.append(_Label(last, f"{title} {last:.2f}", colour, DASHES[0]))
    axes.set(ylabel="mean density", ylim=(0, 1.06))
    _time_axis(axes, max(float(curve.seconds[-1]) for curve in curves.values()))
    _label_ends(axes, labels, figure.get_figheight())
    return figure


def bytes_figure(run: Run) -> "Figure":
    """Bytes each client received and sent in the whole run, the fastest client on top."""
    order = client_order(run)
    down, up = run.history.bytes_down[-1][order] / 1e6, run.history.bytes_up[-1][order] / 1e6
    figure, axes = canvas("Data per client, whole run", _height(len(order), 0.36))
    _draw_bars(axes, down, up)
    _client_axis(axes, order)
    return figure


def method_bytes_figure(totals: Mapping[str, tuple[float, float]]) -> "Figure":
    """Bytes (down, up) of all clients together: one pair of bars per method."""
    down, up = np.array(list(totals.values())).T / 1e6
    figure, axes = canvas("Data of all clients, whole run", _height(len(totals), 0.5))
    _draw_bars(axes, down, up)
    axes.set_yticks(range(len(totals)), list(totals))
    return figure


def save_figures(figures: "Mapping[str, Figure]", directory: str | Path) -> dict[str, bytes]:
    """Write each figure as `NAME.png` (150 dpi) and `NAME.pdf` into `directory`.

    Returns:
        The PNG images by name, for embedding.
    """
    images = {}
    for name, figure in figures.items():
        # Without dates and program names the same run always gives the same files.
        images[name] = _render(figure, "png", {"Software": None})
        write_atomic(Path(directory) / f"{name}.png", images[name])
        pdf = _render(figure, "pdf", {"CreationDate": None, "Creator": None, "Producer": None})
        write_atomic(Path(directory) / f"{name}.pdf", pdf)
    return images


def client_order(run: Run) -> list[int]:
    """Clients from fast to slow: by the density they began with, which follows the link, then by number."""
    return [int(client) for client in np.argsort(-run.history.density[0], kind="stable")]


def cell_edges(seconds: Column) -> Column:
    """Borders of one cell per evaluation: half way to its neighbours, nothing beyond the first and last."""
    if len(seconds) == 1:
        return np.array([seconds[0] - 0.5, seconds[0] + 0.5])
    return np.concatenate([seconds[:1], (seconds[1:] + seconds[:-1]) / 2, seconds[-1:]])


def canvas(title: str, height: float) -> "tuple[Figure, Axes]":
    """An empty figure in the style of all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", size=12, pad=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=10, color=_FAINT)
    axes.xaxis.label.set_fontsize(11)
    axes.yaxis.label.set_fontsize(11)
    return figure, axes


def _height(rows: int, inches_per_row: float) -> float:
    return min(8.5, 1.55 + inches_per_row * max(rows, 4))


def _render(figure: "Figure", kind: str, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    return buffer.getvalue()


def _shades(count: int) -> list[tuple[float, ...]]:
    from matplotlib import colormaps

    positions = np.linspace(0.92, 0.06, count) if count > 1 else np.array([0.3])
    return [tuple(colormaps["viridis"](position)) for position in positions]


def spaced(count: int, most: int) -> list[int]:
    """At most `most` of the indices 0..count-1, evenly spaced, both ends included."""
    return sorted({round(position) for position in np.linspace(0, count - 1, min(count, most))})


def _time_axis(axes: "Axes", end: float, clock: str = "virtual") -> None:
    axes.set_xlabel(f"{clock} time (s)")
    _start_at_zero(axes, end)


def _start_at_zero(axes: "Axes", end: float) -> None:
    axes.set_xlim(0.0, end if end > 0 else 1.0)
    if end >= 1000:
        axes.xaxis.set_major_formatter("{x:,.0f}")


def _client_axis(axes: "Axes", order: Sequence[int]) -> None:
    shown = range(0, len(order), math.ceil(len(order) / 20))
    axes.set_yticks(shown, [str(order[row]) for row in shown])
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("client (fast at the top)")


def _draw_bars(axes: "Axes", down: Column, up: Column) -> None:
    rows = np.arange(len(down))
    series = ((down, -0.2, _DOWN, "down (received)"), (up, 0.2, _UP, "up (sent)"))
    for values, offset, colour, label in series:
        bars = axes.barh(rows + offset, values, height=0.38, color=colour, label=label)
        if len(rows) <= 20:
            numbers = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values]
            axes.bar_label(bars, numbers, padding=3, size=8.5, color=_INK)
    axes.set_xlabel("data (MB)")
    _start_at_zero(axes, 1.12 * float(max(down.max(), up.max())))  # leaves room for the numbers
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    # Below the axis label: above, long method names push the axes under the title and the two would meet.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=10)


def _label_ends(axes: "Axes", labels: Sequence[_Label], figure_height: float) -> None:
    """Name each line at its right end with a sample of its style, moved apart where they would overlap."""
    from matplotlib.lines import Line2D

    axes.grid(axis="y", color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    bottom, top = axes.get_ylim()
    gap = (top - bottom) * 0.19 / (figure_height - 1.05)  # one text line of the drawing area, in axis units
    ordered = sorted(labels)
    heights = spread_apart([max(bottom, label.height) for label in ordered], gap, top)
    place = axes.get_yaxis_transform()
    for height, (_, text, colour, dashes) in zip(heights, ordered, strict=True):
        sample = Line2D((1.015, 1.065), (height, height), color=colour, linestyle=dashes, linewidth=2.2)
        axes.add_artist(sample).set(transform=place, clip_on=False)
        axes.text(1.075, height, text, color=_INK, transform=place, va="center", size=10)


def spread_apart(values: Sequence[float], gap: float, top: float) -> list[float]:
    """Move ascending `values` as little as makes neighbours `gap` apart, none above `top`."""
    raised, lowered = list(values), list(values)
    for index in range(1, len(raised)):
        raised[index] = max(raised[index], raised[index - 1] + gap)
    for index in reversed(range(len(lowered) - 1)):
        lowered[index] = min(lowered[index], lowered[index + 1] - gap)
    # The mean of two spreadings keeps the gaps and leaves a crowd centred where it was.
    heights = [(low + high) / 2 for low, high in zip(lowered, raised, strict=True)]
    for index in reversed(range(len(heights))):
        heights[index] = min(heights[index], top - gap * (len(heights) - 1 - index))
    return heights
