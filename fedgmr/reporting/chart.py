"""A figure in the style that all figures share: fonts, colours, time axis, bars, names at the ends of lines.

The colours are Okabe and Ito's and a wine red, which colour-blind readers can tell apart; line styles repeat the cue.
A chart has no global plotting state, so it can be drawn in any thread and without a display. Read `plots` next.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgmr.files import write_atomic

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#882255")
Dashes = tuple[float, tuple[float, ...]]
DASHES: tuple[Dashes, ...] = tuple(
    (0.0, pattern) for pattern in ((), (5, 1.5), (1.5, 1.2), (6, 1.5, 1.5, 1.5), (3, 1), (8, 2), (5, 1, 1, 1, 1, 1))
)
INK, FAINT = "#222222", "#D9D9D9"
_DOTS_PER_INCH = 150
_LARGE = 10.0  # times the smallest value: then a linear axis shows little of what comes later
_APART = 1.2  # times the density before: closer ones have no room for their names
_WIDTH = 6.4  # inches; wider would leave the text too small on a phone
_DOWN, _UP = "#0072B2", "#E69F00"


class Chart:
    """A figure with one pair of axes, its title above; the height is in inches, of each row where `rows` is given."""

    def __init__(self, title: str, height: float, *, rows: int | None = None) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        if rows is not None:
            height = min(8.5, 1.55 + height * max(rows, 4))
        self.figure = Figure(figsize=(_WIDTH, height), dpi=_DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(self.figure)
        self.figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
        self.axes = self.figure.add_subplot()
        self.axes.set_title(title, loc="left", size=12, pad=10)
        self.axes.spines[["top", "right"]].set_visible(False)
        self.axes.tick_params(labelsize=10, color=FAINT)
        self.axes.xaxis.label.set_fontsize(11)
        self.axes.yaxis.label.set_fontsize(11)
        self._names: list[tuple[float, str, str, Dashes]] = []  # height, text, colour, line style

    def time_axis(self, end: float, clock: str = "virtual") -> None:
        """Let the horizontal axis be time, virtual or real, from 0 to `end` seconds."""
        self.axes.set_xlabel(f"{clock} time (s)")
        self._start_at_zero(end)

    def density_axis(self, densities: Sequence[float]) -> None:
        """Let the horizontal axis be densities, logarithmic; of those close together the largest is named."""
        named = list[float]()
        for density in sorted(densities, reverse=True):
            if not named or named[-1] / density > _APART:
                named.append(density)
        self.axes.set(xlabel="density", xscale="log")
        self.axes.set_xticks(named, [f"{density:g}" for density in named])
        self.axes.minorticks_off()

    def client_axis(self, clients: Sequence[int]) -> None:
        """Let the rows be clients, from top to bottom; of many, only some are numbered."""
        shown = range(0, len(clients), math.ceil(len(clients) / 20))
        self.axes.set_yticks(shown, [str(clients[row]) for row in shown])
        self.axes.set_ylim(len(clients) - 0.5, -0.5)
        self.axes.tick_params(axis="y", length=0)
        self.axes.set_ylabel("client (fast at the top)")

    def draw_bars(self, down: NDArray[np.float64], up: NDArray[np.float64]) -> None:
        """Draw megabytes received and sent as a pair of bars in each row."""
        rows = np.arange(len(down))
        series = ((down, -0.2, _DOWN, "down (received)"), (up, 0.2, _UP, "up (sent)"))
        for values, offset, colour, label in series:
            bars = self.axes.barh(rows + offset, values, height=0.38, color=colour, label=label)
            if len(rows) <= 20:
                numbers = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values]
                self.axes.bar_label(bars, numbers, padding=3, size=8.5, color=INK)
        self.axes.set_xlabel("data (MB)")
        self._start_at_zero(1.12 * float(max(down.max(), up.max())))  # leaves room for the numbers
        self.axes.set_ylim(len(rows) - 0.5, -0.5)
        self.axes.tick_params(axis="y", length=0)
        self.axes.grid(axis="x", color=FAINT, linewidth=0.6)
        self.axes.set_axisbelow(True)
        self.legend_below(columns=2)

    def legend_below(self, *, columns: int) -> None:
        """Say under the axes what is drawn: above, long method names push the axes under the title, where both meet."""
        self.figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9.5)

    def fit(self, *lines: NDArray[np.float64]) -> None:
        """Let the vertical axis be logarithmic where positive values become much smaller, as errors do."""
        from matplotlib.ticker import LogLocator

        values = np.concatenate(lines)
        known = values[np.isfinite(values)]
        if known.size and known.min() > 0 and known.max() >= _LARGE * known.min():
            self.axes.set(yscale="log", ylim=(known.min() / 1.2, 1.2 * known.max()))
            self.axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            self.axes.yaxis.set_major_formatter("{x:g}")
            self.axes.minorticks_off()

    def name_line(self, height: float, text: str, colour: str, dashes: Dashes) -> None:
        """Note the name of a line that ends at `height`; `place_names` writes it."""
        self._names.append((height, text, colour, dashes))

    def place_names(self) -> None:
        """Name each line at its right end with a sample of its style, moved apart where names would overlap."""
        from matplotlib.lines import Line2D

        axes = self.axes
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        logarithmic = axes.get_yscale() == "log"
        apart = _logarithm if logarithmic else float
        bottom, top = map(apart, axes.get_ylim())
        gap = (top - bottom) * 0.19 / (self.figure.get_figheight() - 1.05)  # one text line, in units of the axis
        ordered = sorted(self._names)
        lowest = [max(bottom, apart(height)) for height, *_ in ordered]
        heights = [10**height if logarithmic else height for height in _spread_apart(lowest, gap, top)]
        place = axes.get_yaxis_transform()
        for height, (_, text, colour, dashes) in zip(heights, ordered, strict=True):
            sample = Line2D((1.015, 1.065), (height, height), color=colour, linestyle=dashes, linewidth=2.2)
            axes.add_artist(sample).set(transform=place, clip_on=False)
            axes.text(1.075, height, text, color=INK, transform=place, va="center", size=10)

    def save(self, directory: str | Path, name: str) -> bytes:
        """Write `NAME.png` (150 dpi) and `NAME.pdf` into a directory; returns the PNG image, for embedding."""
        image = self.image()
        write_atomic(Path(directory) / f"{name}.png", image)
        write_atomic(Path(directory) / f"{name}.pdf", self._pdf())
        return image

    def write(self, path: str | Path) -> None:
        """Write one file: a PNG image (150 dpi) or a PDF, by its suffix."""
        path = Path(path)
        if path.suffix not in (".png", ".pdf"):
            raise ValueError(f"The figure's file is {str(path)!r}: give a name that ends with .png or .pdf.")
        write_atomic(path, self.image() if path.suffix == ".png" else self._pdf())

    def image(self) -> bytes:
        """The PNG image (150 dpi)."""
        return self._render("png", {"Software": None})

    def _pdf(self) -> bytes:
        return self._render("pdf", {"CreationDate": None, "Creator": None, "Producer": None})

    def _render(self, kind: str, metadata: dict[str, None]) -> bytes:
        # Without dates and program names the same run always gives the same files.
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
        return buffer.getvalue()

    def _start_at_zero(self, end: float) -> None:
        self.axes.set_xlim(0.0, end if end > 0 else 1.0)
        if end >= 1000:
            self.axes.xaxis.set_major_formatter("{x:,.0f}")


def _logarithm(height: float) -> float:
    return math.log10(height) if height > 0 else -math.inf


def _spread_apart(values: Sequence[float], gap: float, top: float) -> list[float]:
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
