"""Files: written whole or not at all, read back as JSON, and the names of those in a run directory.

Imports nothing of the package, so every other part may use it. docs/run-directory.md says what the files hold.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

RECIPE = "recipe.yaml"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
MODEL = "model.safetensors"
VIEWS = "views.safetensors"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
UPDATES, EARLIER_UPDATES = "updates.jsonl", "updates-earlier.jsonl"
DIGEST_BYTES = 16
_TAIL = 1 << 16  # bytes at the end of a file in which its last row is looked for


def write_atomic(path: Path, content: str | bytes | Callable[[Path], object]) -> None:
    """Write a file so that a reader sees the old content or the new one, never half of it.

    Args:
        path: the file; its folder must exist.
        content: the whole content, text as UTF-8 (with `?` for what is no text in the name of a file); or a function
            that writes it to the path it is given.

    Raises:
        OSError: it cannot be written (a full disk, no permission); it names the file, and nothing is left of it.
    """
    # Not from tempfile: its files are private to their owner, and os.replace would keep them so.
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        if callable(content):
            draft.touch()
            mode = draft.stat().st_mode
            content(draft)
            draft.chmod(mode)  # safetensors puts a private file in its place
        else:
            draft.write_bytes(content.encode(errors="replace") if isinstance(content, str) else content)
        with draft.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(draft, path)
    except BaseException as error:  # an interruption, too, must not leave the draft behind
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError | SafetensorError):
            raise unwritable(path, error) from error
        raise


def unwritable(path: Path, error: Exception) -> OSError:
    """An error of the system that names the file, for one that may name none (a full disk) or another (a draft)."""
    code = getattr(error, "errno", None)
    return OSError(code or errno.EIO, os.strerror(code) if code else str(error), str(path))


def file_name(text: str) -> str:
    """A text as the name of one file or directory: no separators, no spaces."""
    return re.sub(r"[^\w.-]+", ".", text)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file, ValueError where it holds something else."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON, not text, a number too long, or nested too deep
        raise ValueError(f"{path} is not valid JSON ({error}): restore it or remove it.") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no JSON object: restore it or remove it.")
    return data


def digest(value: Any) -> str:
    """Return a checksum of JSON-ready data; the order of its keys does not matter."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def digest_file(path: Path) -> str:
    """Return a checksum of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()


def last_row(path: Path, **fields: object) -> dict[str, Any] | None:
    """The last complete line of a JSONL file with these values of its fields; None where there is none.

    Only the end of a long file is read. Another process may be writing the file, and may have been killed in a line.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:
        size, tail = file.seek(0, 2), _TAIL
        while True:
            file.seek(max(0, size - tail))
            lines = file.read().split(b"\n")[1 if size > tail else 0 : -1]
            if lines or size <= tail:
                break
            tail *= 2  # a row of a large fleet may be longer
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and all(row.get(key) == value for key, value in fields.items()):
            return row
    return None
