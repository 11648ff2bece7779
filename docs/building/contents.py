"""The table of contents: read from the lists of `docs/index.md`, for the site's side bar and for `llms.txt`.

A section of the index is a heading with a list; an entry is a link and what the page answers. The page of a folder, its
`README.md`, brings the other documents of that folder with it, in the order of its links.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from building.tree import INDEX, documents, headings_of, links_of, text_of

_SECTION = re.compile(r"^## (.+)\n((?:(?!^## ).*\n?)*)", re.MULTILINE)
_ENTRY = re.compile(r"^- \[(.+?)\]\((\S+?)\): ((?:.+\n?)(?:  .+\n?)*)", re.MULTILINE)
OVERVIEW = "README.md"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One page in the table of contents."""

    title: str
    path: PurePosixPath
    answers: str


def sections() -> dict[str, list[Entry]]:
    """The entries of the index by section."""
    found = {}
    for title, body in _SECTION.findall(text_of(INDEX)):
        entries = []
        for name, target, answers in _ENTRY.findall(body):
            (link,) = links_of(INDEX, f"[]({target})")
            entries.append(Entry(title=name, path=link.target, answers=" ".join(answers.split())))
        if entries:
            found[title] = entries
    return found


def children(path: PurePosixPath) -> list[PurePosixPath]:
    """The documents that the page of a folder brings with it."""
    if path.name != OVERVIEW or path.parent == PurePosixPath("."):
        return []
    named = {entry.path for entries in sections().values() for entry in entries} | {path}
    inside = [other for other in documents() if path.parent in other.parents and other not in named]
    linked = [link.target for link in links_of(path, text_of(path))]
    return sorted(inside, key=lambda other: linked.index(other) if other in linked else len(linked))


def listed() -> list[PurePosixPath]:
    """Every document of the table of contents, in its order."""
    entries = [entry.path for section in sections().values() for entry in section]
    return [INDEX, *(page for path in entries for page in (path, *children(path)))]


def title_of(path: PurePosixPath) -> str:
    """The first heading of a document."""
    return re.sub(r"[`*]", "", headings_of(text_of(path))[0])
