"""A page in one HTML file that opens anywhere, offline, on a phone or in the dark.

Everything is inside the file (images as data, style in the head) and a content policy forbids the rest. The pages of a
run, of a comparison and of the paper's tables are made with it.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from fedgmr.files import write_atomic

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5c636b; --line: #dfe2e6; --paper: #fff;
  --card: #f5f6f8; --warn: #fff3cd; --warn-ink: #5c4400; --warn-line: #e0b83a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #a0a7b0; --line: #363b42;
  --paper: #16181c; --card: #20242a; --warn: #3a2f0b; --warn-ink: #ffe49a; --warn-line: #8a6d14; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 54rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.notice { border: 1px solid var(--warn-line); border-left-width: 5px; border-radius: 6px;
  background: var(--warn); color: var(--warn-ink); padding: .55rem .9rem; margin: .9rem 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; }
.facts div { background: var(--card); border-radius: 8px; padding: .55rem .8rem; }
.facts dt { color: var(--soft); font-size: .8rem; }
.facts dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.facts div:first-child { grid-column: 1 / -1; }
.facts div:first-child dd { font-size: 1.9rem; line-height: 1.25; }
figure { margin: 1.2rem 0; } figcaption { color: var(--soft); font-size: .88rem; margin-top: .4rem; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
.image { background: #fff; } .image img { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .8rem; text-align: right; white-space: nowrap; }
th { color: var(--soft); white-space: normal; vertical-align: bottom; }
td { border-top: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
details { border: 1px solid var(--line); border-radius: 8px; padding: .6rem .9rem; margin: .8rem 0; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; margin: .6rem 0 0; font: .85rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Page:
    """A page under construction: parts are added from top to bottom, then it is written.

    The title is also the browser window's, the lead is a line below it; `soft` makes the lead a side note.
    """

    def __init__(self, title: str, lead: str, *, soft: bool = False) -> None:
        look = ' class="soft"' if soft else ""
        self._title = title
        self._parts = [f"<header><h1>{escape(title)}</h1>\n<p{look}>{escape(lead)}</p></header>"]

    def add(self, html: str) -> None:
        """Add what is HTML already."""
        self._parts.append(html)

    def heading(self, text: str, level: int = 2) -> None:
        """Add the heading of a section."""
        self.add(f"<h{level}>{escape(text)}</h{level}>")

    def notices(self, texts: Iterable[str]) -> None:
        """Add sentences that nobody should miss."""
        for text in texts:
            self.add(f'<p class="notice" role="note">{escape(text)}</p>')

    def facts(self, entries: Mapping[str, str]) -> None:
        """Add cards with a name and a value each, the first one large."""
        cards = [f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries.items()]
        self.add(f'<dl class="facts">{"".join(cards)}</dl>')

    def figure(self, image: bytes, caption: str) -> None:
        """Add a PNG image; the caption is also what a screen reader says."""
        data = base64.b64encode(image).decode()
        self.add(
            f'<figure><div class="wide image"><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
            f"</div><figcaption>{escape(caption)}</figcaption></figure>"
        )

    def table(self, header: Sequence[str], *rows: Sequence[str]) -> None:
        """Add a table that scrolls sideways where the screen is narrow."""
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
        self.add(f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>')

    def details(self, summary: str, text: str, *, shown: bool = False) -> None:
        """Add a text that opens with a click on its summary, or is open at once."""
        look = " open" if shown else ""
        self.add(f"<details{look}><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>")

    def write(self, path: Path) -> Path:
        """Write the page, whole or not at all, so that an open browser never loads half of one; returns its path."""
        body = "\n".join(self._parts)
        write_atomic(
            path,
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<title>{escape(self._title)}</title>\n<link rel="icon" href="data:,">\n<style>{_STYLE}</style>\n</head>\n'
            f"<body>\n{body}\n</body>\n</html>\n",
        )
        return path
