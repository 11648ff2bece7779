"""Files that a fleet is described by: where they lie, their bytes and numbers, the digest that binds them to a run.

A path that is not absolute is looked for under the directory FEDGMR_DATA, as tasks look for their data, then from the
working directory. A resolved recipe holds the digest of every such file, so a run never goes on with another content.
"""

import hashlib
import math
import os
import re
from pathlib import Path

from fedgmr.settings.refusals import SettingError, show_value

_VARIABLE = "FEDGMR_DATA"
_DIGEST_BYTES = 16
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST = 1 << 29  # bytes; the traces of 100,000 devices have a fifth of it


def _find_file(given: str, key: str) -> Path:
    """Return where the file lies that a user has given under `key`; SettingError where it is not there."""
    places = [Path(given).expanduser()]
    if root := os.environ.get(_VARIABLE):
        places.insert(0, Path(root).expanduser() / places[0])  # an absolute path stays as it is
    try:
        found = next((place for place in places if place.exists()), None)
    except (OSError, ValueError):  # a name too long, or with a null character
        found = None
    if found is None:
        where = f"in {_VARIABLE} or the working directory" if root else f"({_VARIABLE} is not set)"
        raise SettingError(f"{key} is {show_value(given)}, and there is no such file {where}: give one that is there.")
    if not found.is_file():
        raise SettingError(f"{key} is {show_value(given)}, which is no file: give one.")
    return found


def read_given(given: str, key: str, digest: str | None = None) -> bytes:
    """Read the file that a user has given under `key`; SettingError where its content has not the expected digest."""
    path = _find_file(given, key)
    size = path.stat().st_size
    if size > _LARGEST:
        raise SettingError(f"{key} is {show_value(given)}, a file of {size} bytes: give one of at most {_LARGEST}.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingError(
            f"{key} is {show_value(given)}, which cannot be read ({error.strerror}): mend it."
        ) from error
    if digest not in (None, digest_content(content)):
        raise SettingError(
            f"{key} is {show_value(given)}, whose content is not the one that the run began with (digest {digest}): "
            "restore the file, or start a new run."
        )
    return content


def digest_content(content: bytes) -> str:
    """Return a checksum of a file's bytes."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def read_number(text: str) -> float:
    """A number as files write it; NaN for anything else, also for what Python alone would read, such as 1_000."""
    return float(text) if _NUMBER.fullmatch(text) else math.nan
