"""The text of the page: markup, style and scripts of `browser/` in one file, with a policy that forbids the rest.

`fedgmr watch` serves it without data, a report has its data inlined; the browser runs the same code for both. Charts
are drawn by hand: for uPlot, whose lines share their x values, 50 runs of 2,000 rows took 290 ms to join and 120 ms to
zoom; here drawing all lines took 20 ms, and the same strokes give the SVG files.
"""

import base64
import hashlib
from importlib.resources import files

from markupsafe import Markup

from fedgmr.reporting.markup import render

_SCRIPTS = (
    "elements",
    "source",
    "runs",
    "series",
    "pens",
    "drawing",
    "chart",
    "view",
    "table",
    "settings",
    "run",
    "strips",
    "clients",
    "theory",
    "page",
)


def policy(*, live: bool) -> str:
    """The content policy: this page's own style and script, by their checksums; a live page may ask its server."""
    asks = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; style-src {_checksum(_style())}; script-src {_checksum(_script())}; img-src data: blob:"
        f"{asks}; base-uri 'none'; form-action 'none'"
    )


def page(title: str, data: str | None = None) -> str:
    """The whole page; `data` is the JSON text of a report's data, without it the page asks the server it came from."""
    inlined = "" if data is None else data.replace("<", "\\u003c")  # so no text of a run can end the element
    return render(
        "pages/browser",
        "page.html",
        policy=policy(live=data is None),
        title=title,
        style=Markup(_style()),
        data=Markup(inlined),
        script=Markup(_script()),
    )


def _style() -> str:
    return _text("page.css")


def _script() -> str:
    return "\n" + "\n".join(_text(f"{name}.js") for name in _SCRIPTS)


def _text(name: str) -> str:
    return files("fedgmr.pages").joinpath("browser", name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
