"""The figures of the document of results: all settings and methods in one picture, and the curves of a setting.

A figure is drawn when it is asked for: the text of the document does without. Read next: `results.py`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgmr.paper.accuracy import Kind, accuracies
from fedgmr.paper.grid import Setting
from fedgmr.paper.kept_runs import ResultRow
from fedgmr.paper.tables import STAND_IN_MARK, Cell
from fedgmr.reporting.chart import FAINT, INK, Chart
from fedgmr.reporting.plots import accuracy_figure
from fedgmr.reporting.records import Curve, Run

_STRONGEST = 6.0  # points of difference from which on a colour does not get stronger
_GREY = "#767676"
_SHOWN = 0.2  # share of accuracy that a figure of curves shows below the lowest end of a line


def overview_figure(cells: Mapping[tuple[Setting, str], Cell], columns: Mapping[str, str]) -> Chart:
    """Draw a cell for every setting and method (its title by its name): our number, coloured, above the paper's."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    settings = list(dict.fromkeys(setting for setting, _ in cells))
    chart = Chart("Accuracy in percent: ours above the paper's", 0.29, rows=len(settings))
    # The ends of the palette are too dark to write on.
    palette = LinearSegmentedColormap.from_list("", colormaps["RdBu"](np.linspace(0.22, 0.78, 64)))
    norm, axes = Normalize(-_STRONGEST, _STRONGEST), chart.axes
    for (setting, method), cell in cells.items():
        row, column, ours, paper = settings.index(setting), list(columns).index(method), cell.ours, cell.paper
        if ours is not None:
            gap = ours.mean - paper.mean if paper else 0.0
            shade = palette(norm(gap, clip=True))
            axes.fill_between([column - 0.5, column + 0.5], row - 0.5, row + 0.5, color=shade, linewidth=0)
            text = f"{ours.mean:.1f}" + (STAND_IN_MARK if cell.stand_in else "")
            axes.text(column, row - 0.2, text, ha="center", va="center", size=7.5, color=INK)
        if paper is not None:
            axes.text(column, row + 0.24, f"{paper.mean:.1f}", ha="center", va="center", size=5.5, color=_GREY)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(settings) - 0.5, -0.5))
    titles = [title.replace(" w/o ", "\nw/o ") for title in columns.values()]
    axes.set_xticks(range(len(columns)), titles, size=7.5, rotation=40, ha="right")
    axes.set_yticks(range(len(settings)), [setting.long_title for setting in settings], size=7.5)
    axes.tick_params(length=0)
    axes.hlines(np.arange(len(settings) + 1) - 0.5, -0.5, len(columns) - 0.5, color=FAINT, linewidth=0.6)
    axes.vlines(np.arange(len(columns) + 1) - 0.5, -0.5, len(settings) - 0.5, color=FAINT, linewidth=0.6)
    axes.spines[:].set_visible(False)
    bar = chart.figure.colorbar(ScalarMappable(norm, palette), ax=axes, pad=0.02, aspect=50, shrink=0.5, extend="both")
    bar.set_label("ours minus the paper's (points)", size=7.5)
    bar.ax.tick_params(length=0, labelsize=7.5)
    bar.outline.set_visible(False)
    return chart


def curves_figure(rows: Sequence[ResultRow]) -> Chart:
    """Draw the accuracy over time of the number that each row is ordered by, the best at t* first.

    The first minutes, in which all rise from chance, are cut off below, so that the ends can be told apart.
    """
    curves = {row.title: _curve([entry.run for entry in row.runs], row.order_kind) for row in rows}
    return accuracy_figure(curves, bottom=max(0.0, min(float(curve.mean[-1]) for curve in curves.values()) - _SHOWN))


def _curve(runs: Sequence[Run], kind: Kind) -> Curve:
    def column(run: Run) -> NDArray[np.float64]:
        values = accuracies(run, kind)
        tested = np.flatnonzero(~np.isnan(values))  # a view may be tested seldom: its last value stands
        latest = np.searchsorted(tested, np.arange(len(values)), side="right") - 1
        return values[tested[np.maximum(latest, 0)]]

    return Curve.average(runs, column)
