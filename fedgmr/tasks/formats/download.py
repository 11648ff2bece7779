"""Public files that are small enough to download: into a temporary file, checked, then renamed.

A file is never seen half written, and a file with another checksum than the published one is not kept.
"""

import hashlib
import os
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO

from fedgmr.tasks.formats.arrays import DataError

_BLOCK = 1 << 20
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
            with path.open("rb") as file:
                found = hashlib.file_digest(file, _md5).hexdigest()
            if found != self.md5:
                raise DataError(f"{path} has the MD5 checksum {found}, not {self.md5}: delete it and start again.")
            return path
        part = folder / f".{self.name}.{os.getpid()}.part"
        try:
            with part.open("wb") as file:
                found = self._copy(file, path)
            if found != self.md5:
                raise DataError(
                    f"{self.url} gave a file with the MD5 checksum {found}, not {self.md5}, which was not kept: "
                    f"try again, or put {self.name} into {folder} by hand."
                )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path

    def _copy(self, file: IO[bytes], path: Path) -> str:
        """Write what the address gives to the open file; return its checksum."""
        digest = _md5()
        try:
            with urllib.request.urlopen(self.url, timeout=_SECONDS) as answer:
                while block := answer.read(_BLOCK):
                    digest.update(block)
                    file.write(block)
        except (OSError, HTTPException) as error:  # no network, no such file, a broken connection
            reason = " ".join(str(error).split()).strip("<>") or type(error).__name__
            raise DataError(
                f"{self.url} cannot be downloaded ({reason}): "
                f"put {path.name} into {path.parent} by hand and start again."
            ) from error
        return digest.hexdigest()


def _md5() -> "hashlib._Hash":
    return hashlib.md5(usedforsecurity=False)
