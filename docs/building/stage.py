"""The tree's documents, arranged as the source of the site: what Sphinx reads, in a folder that it alone reads.

A document keeps its path without `docs/`. Links between documents are written for the new places; a link to any other
file of the tree leads to a page that shows it. Marks in the text, `<!-- figure: NAME -->` and
`<!-- generated: NAME -->`, are replaced by figures and by what is generated from the code.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from building.contents import children, listed, sections
from building.tree import INDEX, ROOT, links_of, text_of

IMAGES = (".png", ".svg")
_MARK = re.compile(r"^<!-- (figure|generated): (\w+) -->$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "sh"}


def place_of(path: PurePosixPath) -> PurePosixPath:
    """Where a file of the tree lies in the site; what is no document and no image gets a page that shows it."""
    inner = path.relative_to("docs") if path.parts[:1] == ("docs",) else path
    if path.suffix == ".ipynb":
        return inner.with_suffix(".md")
    return inner if path.suffix == ".md" or path.suffix in IMAGES else PurePosixPath("source", f"{path}.md")


class Stage:
    """The folder that is filled."""

    def __init__(self, folder: Path, made: Mapping[str, Callable[[str], str]]) -> None:
        """`made`: by the word of a mark, what to put in its place, given its name."""
        self.folder, self.made = folder, made
        shutil.rmtree(folder, ignore_errors=True)

    def fill(self, notebook: Callable[[Path], str]) -> None:
        """Write every page; `notebook` turns a notebook's file into Markdown."""
        for path in listed():
            text = text_of(path) if path.suffix == ".md" else notebook(ROOT / path)
            text = self.linked(path, text)
            text = _MARK.sub(lambda mark: self.made[mark[1]](mark[2]), text)
            self._write(place_of(path), text + _toctrees(path))

    def linked(self, path: PurePosixPath, text: str) -> str:
        """The text of a document with its links for the site; what they lead to is put there."""
        for link in reversed(list(links_of(path, text))):
            start, stop = link.span
            if link.target != path:
                self._show(link.target)
                target = os.path.relpath(place_of(link.target), place_of(path).parent)
                text = text[:start] + target + (f"#{link.anchor}" if link.anchor else "") + text[stop:]
        return text

    def _show(self, path: PurePosixPath) -> None:
        """Put a file that is no document where its links lead."""
        place, source = place_of(path), ROOT / path
        if path.suffix in (".md", ".ipynb") or (self.folder / place).exists():
            return
        if path.suffix in IMAGES:
            (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, self.folder / place)
        elif source.is_dir():
            files = sorted(file for file in source.rglob("*") if file.is_file())
            links = [f"- [{file.relative_to(source)}]({os.path.relpath(file, source.parent)})" for file in files]
            self._write(place, _aside(f"# {path}/\n\n" + self.linked(path, "\n".join(links))))
        else:
            body, language = source.read_text().rstrip(), _LANGUAGES.get(path.suffix, "text")
            self._write(place, _aside(f"# {path}\n\n````{language}\n{body}\n````\n"))

    def _write(self, place: PurePosixPath, text: str) -> None:
        file = self.folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _aside(text: str) -> str:
    return f"---\norphan: true\nnosearch: true\n---\n\n{text}\n"


def _toctrees(path: PurePosixPath) -> str:
    """The table of contents below a page: all sections below the index, its children below the page of a folder."""
    if path == INDEX:
        trees = {title: [(entry.title, entry.path) for entry in entries] for title, entries in sections().items()}
        return "".join(_toctree(path, entries, caption=title) for title, entries in trees.items())
    return _toctree(path, [("", child) for child in below], caption="") if (below := children(path)) else ""


def _toctree(path: PurePosixPath, entries: list[tuple[str, PurePosixPath]], *, caption: str) -> str:
    lines = ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else [])]
    for title, entry in entries:
        place = os.path.relpath(place_of(entry).with_suffix(""), place_of(path).parent)
        lines.append(f"{title} <{place}>" if title else place)
    return "\n".join([*lines, "```", ""])
