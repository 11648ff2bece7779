"""Damage to a run directory, as disks, editors and people do it: one seeded draw damages one file.

`damage` says what it has done, so that a failure can be repeated by its seed and understood by its words.
"""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

Change = Callable[[bytes, random.Random], bytes]
_NUMBER = re.compile(rb"-?\d+(\.\d+)?(e[-+]?\d+)?")
_WORD = re.compile(rb"[a-z_]{3,}")
_OTHER_NUMBERS = (b"0", b"1", b"-1", b"2.5", b"1e3", b"1e400", b"NaN", b"null", b"true", b'"7"', b"[]", b"9" * 30)


def damage(run: Path, other: Path, draw: random.Random) -> str:
    """Damage one file of a run, sometimes with one of another run; returns what was done."""
    files = sorted(path for path in run.rglob("*") if path.is_file())
    path = draw.choice(files)
    name, how = path.relative_to(run), draw.choice([*_TEXT, *_TEXT, *_BYTES, *_FILES])
    if how in _FILES:
        _FILES[how](path, other / name, draw)
    else:
        before = path.read_bytes()
        after = {**_TEXT, **_BYTES}[how](before, draw)
        path.write_bytes(after)
        how += "" if after != before else " (no change)"
    return f"{name}: {how}"


def _at(data: bytes, draw: random.Random) -> int:
    return draw.randrange(len(data)) if data else 0


def _flip(data: bytes, draw: random.Random) -> bytes:
    at = _at(data, draw)
    return data[:at] + bytes(byte ^ 1 << draw.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]


def _zeros(data: bytes, draw: random.Random) -> bytes:
    at = _at(data, draw)
    hole = data[at : at + draw.choice((16, 512, 4096))]
    return data[:at] + bytes(len(hole)) + data[at + len(hole) :]


def _cut_out(data: bytes, draw: random.Random) -> bytes:
    at = _at(data, draw)
    return data[:at] + data[at + draw.randrange(1, 40) :]


def _replaced(pattern: re.Pattern[bytes], data: bytes, new: Callable[[bytes], bytes], draw: random.Random) -> bytes:
    found = list(pattern.finditer(data[: 1 << 16]))
    if not found:
        return data
    one = draw.choice(found)
    return data[: one.start()] + new(one.group()) + data[one.end() :]


def _number(data: bytes, draw: random.Random) -> bytes:
    return _replaced(_NUMBER, data, lambda _: draw.choice(_OTHER_NUMBERS), draw)


def _digit(data: bytes, draw: random.Random) -> bytes:
    return _replaced(re.compile(rb"\d"), data, lambda digit: b"%d" % ((int(digit) + draw.randrange(1, 10)) % 10), draw)


def _word(data: bytes, draw: random.Random) -> bytes:
    return _replaced(_WORD, data, lambda word: draw.choice((word[:-1], word[::-1], b"auto", b"null", b"{}")), draw)


def _lines(change: Callable[[list[bytes], random.Random], None]) -> Change:
    def changed(data: bytes, draw: random.Random) -> bytes:
        lines = data.splitlines(keepends=True)
        if lines:
            change(lines, draw)
        return b"".join(lines)

    return changed


def _swap(lines: list[bytes], draw: random.Random) -> None:
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


def _twice(lines: list[bytes], draw: random.Random) -> None:
    lines.insert(draw.randrange(len(lines)), draw.choice(lines))


def _field(data: bytes, draw: random.Random) -> bytes:
    """A field of the last row gone, or another: what a script would do."""
    *rows, last = data.splitlines(keepends=True) or [b""]
    try:
        row = json.loads(last)
        name = draw.choice(sorted(row))
    except (ValueError, TypeError, IndexError):
        return data
    row[name] = draw.choice([None, -1, 1e9, "a", [], {}, True, 10**400])
    return b"".join([*rows, json.dumps(row).encode() + b"\n"])


_TEXT: dict[str, Change] = {
    "a number edited": _number,
    "a digit edited": _digit,
    "a word edited": _word,
    "a field edited": _field,
    "lines swapped": _lines(_swap),
    "a line twice": _lines(_twice),
    "a line gone": _lines(lambda lines, draw: lines.pop(draw.randrange(len(lines))) and None),
    "line ends of Windows": lambda data, draw: data.replace(b"\n", b"\r\n"),
    "a mark of an editor": lambda data, draw: b"\xef\xbb\xbf" + data,
}
_BYTES: dict[str, Change] = {
    "a bit flipped": _flip,
    "cut off": lambda data, draw: data[: _at(data, draw)],
    "emptied": lambda data, draw: b"",
    "a hole of zeros": _zeros,
    "bytes gone": _cut_out,
    "bytes more": lambda data, draw: data + draw.randbytes(draw.randrange(1, 100)),
    "noise": lambda data, draw: draw.randbytes(len(data)),
}


def _removed(path: Path, other: Path, draw: random.Random) -> None:
    path.unlink()


def _of_another_run(path: Path, other: Path, draw: random.Random) -> None:
    if other.is_file():
        shutil.copy(other, path)


def _a_folder(path: Path, other: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _a_dangling_link(path: Path, other: Path, draw: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _another_of_the_folder(path: Path, other: Path, draw: random.Random) -> None:
    shutil.copy(draw.choice(sorted(file for file in path.parent.iterdir() if file.is_file())), other.parent / "copy")
    (other.parent / "copy").replace(path)


def _folder_removed(path: Path, other: Path, draw: random.Random) -> None:
    shutil.rmtree(path.parent)


_FILES: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "removed": _removed,
    "that of another run": _of_another_run,
    "a folder": _a_folder,
    "a dangling link": _a_dangling_link,
    "another file of the folder": _another_of_the_folder,
    "its folder removed": _folder_removed,
}
