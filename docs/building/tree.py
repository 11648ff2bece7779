"""The documents of the tree: which there are, what they link to, which anchors their headings have.

Links are written for the tree, so that they work where it is browsed. `stage.py` turns them into links of the site, and
`tests/docs/test_links.py` follows them. Read next: `contents.py`, the order in which a reader finds the documents.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "benchmarks", "examples")
INDEX = PurePosixPath("docs/index.md")

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$", re.MULTILINE)
_OUTSIDE = re.compile(r"^[a-z]+:")


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link in a document that stays within the tree."""

    span: tuple[int, int]  # of the target, in the text
    target: PurePosixPath  # from the root of the tree
    anchor: str


def documents() -> list[PurePosixPath]:
    """Every document of the tree by its path: Markdown and notebooks."""
    found = [*ROOT.glob("*.md")]
    for name in FOLDERS:
        found += [*(ROOT / name).rglob("*.md"), *(ROOT / name).rglob("*.ipynb")]
    hidden = (".ipynb_checkpoints", "__pycache__")
    return sorted(PurePosixPath(path.relative_to(ROOT)) for path in found if not set(hidden) & {*path.parts})


def text_of(path: PurePosixPath) -> str:
    """A document as Markdown; of a notebook its text cells."""
    text = (ROOT / path).read_text()
    if path.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def without_code(text: str, *patterns: re.Pattern[str]) -> str:
    """The same text with spaces in place of code, so that positions stay."""
    for pattern in patterns or (_FENCE, _INDENTED, _CODE):
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def links_of(path: PurePosixPath, text: str) -> Iterator[Link]:
    """The links of a document's text to other places of the tree, or to its own headings."""
    for found in _LINK.finditer(without_code(text)):
        if not _OUTSIDE.match(found[1]):
            name, _, anchor = found[1].partition("#")
            target = os.path.normpath(path.parent / name) if name else str(path)
            yield Link(span=found.span(1), target=PurePosixPath(target), anchor=anchor)


def headings_of(text: str) -> list[str]:
    """The headings of a text, as they are written."""
    return [found[2] for found in _HEADING.finditer(without_code(text, _FENCE, _INDENTED))]


def anchors_of(text: str) -> set[str]:
    """The anchors that code-hosting sites and MyST give to headings."""
    anchors: set[str] = set()
    for heading in headings_of(text):
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        numbered = (f"{slug}-{number}" for number in range(1, 100))
        anchors.add(slug if slug not in anchors else next(name for name in numbered if name not in anchors))
    return anchors
