"""The complete lines of a growing file, each given once; never through a link, nor waiting for what is no file."""

import os
import stat
from pathlib import Path

_END = 256  # bytes before the place where reading goes on, to notice a file that was written anew


class Tail:
    """A file, to be looked at again and again."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._end = path, 0, b""
        self._seen: os.stat_result | None = None

    def read(self) -> list[bytes] | None:
        """The lines since the last look, without a half-written last one; None where the file was written anew."""
        try:
            number = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return [] if self._seen is None else None
        now, seen = os.fstat(number), self._seen
        if not stat.S_ISREG(now.st_mode):  # Python opens no directory, and would leave the number open
            os.close(number)
            return []
        with os.fdopen(number, "rb") as file:
            if seen is not None and (
                (now.st_dev, now.st_ino) != (seen.st_dev, seen.st_ino)
                or now.st_size < self._offset
                or (now.st_size == seen.st_size and now.st_mtime_ns != seen.st_mtime_ns)
            ):
                return None
            if seen is not None and now.st_size == seen.st_size:
                return []
            file.seek(self._offset - len(self._end))
            data = file.read()
        if not data.startswith(self._end):
            return None
        self._seen = now
        complete = data[: data.rfind(b"\n") + 1]
        if len(complete) <= len(self._end):
            return []
        self._offset += len(complete) - len(self._end)
        lines = complete[len(self._end) :].splitlines()
        self._end = complete[-_END:]
        return lines
