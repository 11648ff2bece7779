"""The built site, followed link by link: addresses and anchors within it are there, and nothing comes from outside.

A link to another site is a reader's choice; a script, style, picture or font from elsewhere would be a request.
"""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


class _Page(HTMLParser):
    """The ids of a page, and its addresses with whether a browser fetches them by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.addresses: list[tuple[bool, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if value and ((tag, name) in _FETCHED or (tag, name) == ("a", "href")):
                self.addresses.append(((tag, name) in _FETCHED, value))


def faults(site: Path) -> Iterator[str]:
    """What is wrong with the site, a sentence each."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for fetched, address in page.addresses:
            split = urlsplit(address)
            if split.scheme or split.netloc:
                if fetched and split.scheme != "data":
                    yield f"{path.relative_to(site)} fetches {address}."
                continue
            target = (path.parent / unquote(split.path)).resolve() if split.path else path
            if not target.exists():
                yield f"{path.relative_to(site)} leads to {address}, which is not there."
            elif split.fragment and target in pages and unquote(split.fragment) not in pages[target].ids:
                yield f"{path.relative_to(site)} leads to {address}, a page without this anchor."
