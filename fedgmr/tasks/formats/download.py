"""Public files that are small enough to download: into a temporary file, checked, then renamed.

A file is never seen half written, and a file with another checksum than the published one is not kept.
"""

import hashlib
import os
import shutil
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from fedgmr.settings.refusals import say_in_one_line
from fedgmr.tasks.formats.arrays import DataError

_SECONDS = 60  # without an answer


@dataclass(frozen=True, kw_only=True)
class Download:
    """A public file with its published checksum."""

    url: str
    name: str  # of the file on disk
    md5: str

    def fetch(self, folder: Path) -> Path:
        """The file in `folder`, downloaded if it is not there yet.

        Raises:
            DataError: it cannot be downloaded, or it is not the published file.
        """
        path = folder / self.name
        if path.exists():
            if (found := _md5(path)) != self.md5:
                raise DataError(f"{path} has the MD5 checksum {found}, not {self.md5}: delete it and start again.")
            return path
        part = folder / f".{self.name}.{os.getpid()}.part"
        try:
            self._copy(part, path)
            if (found := _md5(part)) != self.md5:
                raise DataError(
                    f"{self.url} gave a file with the MD5 checksum {found}, not {self.md5}, which was not kept: "
                    f"try again, or put {self.name} into {folder} by hand."
                )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path

    def _copy(self, part: Path, path: Path) -> None:
        """Write what the address gives to `part`, which is to become `path`."""
        with part.open("wb") as file:
            try:
                with urllib.request.urlopen(self.url, timeout=_SECONDS) as answer:
                    shutil.copyfileobj(answer, file)
            except (OSError, HTTPException) as error:  # no network, no such file, a broken connection
                reason = say_in_one_line(error).strip("<>")
                raise DataError(
                    f"{self.url} cannot be downloaded ({reason}): "
                    f"put {path.name} into {path.parent} by hand and start again."
                ) from error


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
