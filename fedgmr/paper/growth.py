"""The figure of accuracy growth by density: one line per stage of training, each relative to its own steepest."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedgmr.reporting.plots import COLOURS, DASHES, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_APART = 1.2  # nearer to the last density than this factor there is no room for a name


def growth_figure(title: str, densities: Sequence[float], slopes: Mapping[str, Sequence[float]]) -> "Figure":
    """Slopes by density; stages differ by orders of magnitude, so each is drawn in percent of its largest."""
    figure, axes = canvas(title, 3.8)
    for index, (stage, values) in enumerate(slopes.items()):
        largest = max(values)
        shown = [100 * value / largest if largest > 0 else 0.0 for value in values]
        style = {"color": COLOURS[index], "linestyle": DASHES[index], "marker": "."}
        axes.plot(densities, shown, label=f"{stage} (largest {largest:.3g})", **style)  # type: ignore[arg-type]
    axes.set(xlabel="density", ylabel="growth, % of the stage's largest", xscale="log", ylim=(None, 105))
    axes.axhline(0.0, linewidth=0.8, color="#D9D9D9", zorder=0)
    named = [density for density in densities if density == densities[-1] or densities[-1] / density > _APART]
    axes.set_xticks(named, [f"{density:g}" for density in named])
    axes.minorticks_off()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False, fontsize=9)
    return figure
