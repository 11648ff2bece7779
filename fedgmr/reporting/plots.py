"""The figures: accuracy and density over virtual time, bytes per client; for one run or several methods.

Each function draws one chart, for print and for notebooks; `pages` draws for the browser. Read `comparison` next.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedgmr.reading import Reading
from fedgmr.reporting.chart import COLOURS, DASHES, INK, Chart
from fedgmr.reporting.records import Curve, Run

_DOTS = 100


def accuracy_figure(
    curves: Mapping[str, Curve],
    *,
    target: float | None = None,
    clock: str = "virtual",
    reading: Reading | None = None,
    bottom: float = 0.0,
) -> Chart:
    """Draw the leading metric (as recorded in the curves, as people read it in the figure) over time, a line each.

    `bottom`: the smallest share that is shown.
    """
    reading = reading or Reading()
    chart, factor = Chart(f"{reading.title} over {clock} time", 4.0), reading.factor
    axes = chart.axes
    for index, (title, curve) in enumerate(curves.items()):
        # When the colours are used up, they come again with other dashes.
        colour, dashes = COLOURS[index % len(COLOURS)], DASHES[(index + index // len(COLOURS)) % len(DASHES)]
        if curve.spread is not None:
            low, high = factor * (curve.mean - curve.spread), factor * (curve.mean + curve.spread)
            axes.fill_between(curve.seconds, low, high, color=colour, alpha=0.18, linewidth=0)
        (line,) = axes.plot(curve.seconds, factor * curve.mean, color=colour, linestyle=dashes, linewidth=1.9)
        # Show the evaluations of a single run, where dots are not a line: a lone one would be no line at all.
        if curve.spread is None and len(curve.seconds) <= _DOTS:
            line.set(marker=".", markersize=5, clip_on=False)
        last = float(curve.mean[-1])
        chart.name_line(float(np.nan_to_num(factor * last)), f"{title} {reading.brief(last)}", colour, dashes)
    if target is not None:
        axes.axhline(factor * target, color=INK, linewidth=0.8, dashes=(2, 3), zorder=0)
        chart.name_line(factor * target, f"target {reading.target_text(target)}", INK, (0, (2, 3)))
    axes.set(ylabel=reading.label, ylim=(max(factor * bottom, axes.get_ylim()[0]) if reading.share else None, None))
    if not reading.share:
        chart.fit(*(curve.mean for curve in curves.values()), np.array([] if target is None else [target]))
    chart.time_axis(max(float(curve.seconds[-1]) for curve in curves.values()), clock)
    chart.place_names()
    return chart


def _clients_figure(run: Run) -> Chart:
    """Draw the leading metric of the models that clients would be handed: median, 10th to 90th percentile, worst."""
    reading, history = run.reading, run.history
    measured = np.flatnonzero(np.isfinite(history.of_clients("p50")))
    if not measured.size:
        raise ValueError("This run has no evaluations per client: set evaluation.clients.")
    chart, seconds = Chart(f"{reading.title} of the clients over {run.clock} time", 3.4), history.seconds[measured]
    low, middle, high, worst = (
        reading.factor * history.of_clients(name)[measured] for name in ("p10", "p50", "p90", "worst")
    )
    chart.axes.fill_between(seconds, low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
    for values, text, index in ((middle, "median client", 0), (worst, "worst client", 1)):
        (line,) = chart.axes.plot(seconds, values, color=COLOURS[index], linestyle=DASHES[index], linewidth=1.9)
        line.set(marker=".", markersize=5, clip_on=False)
        told = f"{text} {reading.brief(float(values[-1]) / reading.factor)}"
        chart.name_line(float(values[-1]), told, COLOURS[index], DASHES[index])
    chart.axes.set(ylabel=reading.label)
    if not reading.share:
        chart.fit(low, worst)
    chart.time_axis(float(history.seconds[-1]), run.clock)
    chart.place_names()
    return chart


def density_figure(run: Run) -> Chart:
    """Draw the density of every client over time: one row per client, the fastest on top."""
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm, ListedColormap

    clients, seconds = run.clients_by_speed, run.history.seconds
    rows = run.history.density[:, clients].T  # [C, E]
    steps = np.unique(rows)
    # Colour by rank, not by value: on a linear scale 0.05 and 0.1 would look the same.
    ranks = np.searchsorted(steps, rows)
    chart = Chart(f"Density of each client over {run.clock} time", 0.3, rows=len(clients))
    norm = BoundaryNorm(np.arange(len(steps) + 1) - 0.5, len(steps))
    positions = np.linspace(0.92, 0.06, len(steps)) if len(steps) > 1 else np.array([0.3])
    palette = ListedColormap([tuple(colormaps["viridis"](position)) for position in positions])
    # One cell per evaluation, half way to its neighbours, with nothing beyond the first and the last.
    edges = np.concatenate([seconds[:1], (seconds[1:] + seconds[:-1]) / 2, seconds[-1:]])
    if len(seconds) == 1:
        edges = edges + np.array([-0.5, 0.5])
    borders = np.arange(len(clients) + 1) - 0.5
    mesh = chart.axes.pcolormesh(edges, borders, ranks, cmap=palette, norm=norm, rasterized=True)
    gap = 1.5 if len(clients) <= 30 else 0.0
    chart.axes.hlines(borders[1:-1], edges[0], edges[-1], color="white", linewidth=gap)
    ticks = np.linspace(0, len(steps) - 1, min(len(steps), 10)).round().astype(int)
    bar = chart.figure.colorbar(mesh, ax=chart.axes, pad=0.02, aspect=14, ticks=ticks.tolist())
    bar.ax.set_yticklabels([f"{steps[tick]:.3g}" for tick in ticks])
    bar.ax.tick_params(length=0, labelsize=10)
    bar.minorticks_off()
    bar.set_label("density")
    bar.outline.set_visible(False)
    chart.axes.spines[:].set_visible(False)
    chart.time_axis(float(edges[-1]), run.clock)
    chart.client_axis(clients)
    return chart


def mean_density_figure(curves: Mapping[str, Curve]) -> Chart:
    """Draw the mean density of the clients over virtual time, one line per method."""
    chart = Chart("Mean density over virtual time", 3.4)
    constant = {title: round(curve.mean[0], 3) for title, curve in curves.items() if np.ptp(curve.mean) < 1e-3}
    for index, (title, curve) in enumerate(curves.items()):
        # Methods with fixed densities coincide: they share one line in stripes. A method that restores is
        # drawn wider and below, so that it shows where it meets them.
        mates = [mate for mate in constant if title in constant and constant[mate] == constant[title]]
        stripes = (7.0 * mates.index(title), (7.0, 7.0 * (len(mates) - 1))) if len(mates) > 1 else DASHES[0]
        width, order = (2.2, 3) if title in constant else (4.0, 2)
        colour = COLOURS[index % len(COLOURS)]
        (line,) = chart.axes.step(curve.seconds, curve.mean, where="post", color=colour, linestyle=stripes)
        line.set(linewidth=width, zorder=order, dash_capstyle="butt")
        last = float(curve.mean[-1])
        chart.name_line(last, f"{title} {last:.2f}", colour, DASHES[0])
    chart.axes.set(ylabel="mean density", ylim=(0, 1.06))
    chart.time_axis(max(float(curve.seconds[-1]) for curve in curves.values()))
    chart.place_names()
    return chart


def bytes_figure(run: Run) -> Chart:
    """Draw the bytes that each client received and sent in the whole run, the fastest client on top."""
    clients = run.clients_by_speed
    chart = Chart("Data per client, whole run", 0.36, rows=len(clients))
    chart.draw_bars(run.history.bytes_down[-1][clients] / 1e6, run.history.bytes_up[-1][clients] / 1e6)
    chart.client_axis(clients)
    return chart


def rates_figure(rates: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]) -> Chart:
    """Draw rates in Mbit/s over time, a line each, from the edges of their stretches in seconds and their values."""
    chart = Chart("Rates over time", 3.4)
    for index, (title, (edges, values)) in enumerate(rates.items()):
        colour, dashes = COLOURS[index % len(COLOURS)], DASHES[0]
        chart.axes.stairs(values, edges, color=colour, linewidth=1.2, baseline=None)
        chart.name_line(float(values[-1]), f"{title} {float(values.mean()):.3g}", colour, dashes)
    chart.axes.set(ylabel="Mbit/s (names: mean)", ylim=(0, None))
    chart.time_axis(max(float(edges[-1]) for edges, _ in rates.values()), "trace")
    chart.place_names()
    return chart


def method_bytes_figure(totals: Mapping[str, NDArray[np.float64]]) -> Chart:
    """Draw the bytes (down, up) of all clients together: one pair of bars per method."""
    down, up = np.array(list(totals.values())).T / 1e6
    chart = Chart("Data of all clients, whole run", 0.5, rows=len(totals))
    chart.draw_bars(down, up)
    chart.axes.set_yticks(range(len(totals)), list(totals))
    return chart


def _of_one_run(run: Run) -> Chart:
    curve = Curve(seconds=run.history.seconds, mean=run.history.accuracy)
    return accuracy_figure({run.title: curve}, clock=run.clock, reading=run.reading)


FIGURES: Mapping[str, Callable[[Run], Chart]] = {
    "accuracy": _of_one_run,
    "density": density_figure,
    "bytes": bytes_figure,
    "clients": _clients_figure,  # where clients were measured
}


def charts_of(run: Run) -> dict[str, Chart]:
    """All figures of a run, by name."""
    measured = bool(np.isfinite(run.history.of_clients("p50")).any())
    return {name: draw(run) for name, draw in FIGURES.items() if measured or name != "clients"}
