"""How figures look, and how they become part of a page: SVG without a background, in the page's own ink.

Everything that is drawn in `INK` takes the colour of the text around it, so a figure reads on light and dark pages.
"""

import io
import re
from importlib import import_module
from typing import Any

import matplotlib as mpl

INK = "#010203"  # stands for the colour of the text
FAINT = "#7f8790"  # lines that stay behind on light and dark
LEVELS = ("#4c6ef5", "#8057cf", "#b95fae", "#e2687f", "#f2a65a")  # level 0 to 4
PHASES = {"download": "#4c8dd6", "training": "#e09f3e", "upload": "#4fa58a"}

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 9,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "savefig.transparent": True,
    "svg.fonttype": "path",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def svg_of(name: str) -> str:
    """The figure that the module of this name draws, as an SVG element that the module's first line describes."""
    module, file = import_module(f"figures.{name}"), io.StringIO()
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        module.draw().savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    return inline(file.getvalue(), (module.__doc__ or "").partition("\n")[0]).replace(INK, "currentColor")


def inline(svg: str, about: str) -> str:
    """An SVG file as an element of a page: without its prologue, as wide as there is room, with a description."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>\s*", "", element, flags=re.DOTALL)
    words = about.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    width = re.search(r'width="([\d.]+)pt"', element)
    assert width is not None
    size = f'style="max-width: {float(width[1]) * 4 / 3:.0f}px" role="img" aria-label="{words}"'
    return re.sub(r'height="[\d.]+pt" ', "", element, count=1).replace(width[0], size, 1)
