"""Files are written whole or not at all, and the last row of a growing file is found."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedgmr.files import file_name, last_row, read_json, write_atomic
from fedgmr.reporting.recorder import Recorder


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_atomic(path, "old ü\n")
    write_atomic(path, "new ü\r\n")
    assert path.read_bytes() == "new ü\r\n".encode()
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()
    write_atomic(path, os.fsdecode(b"a name \xff"))
    assert path.read_bytes() == b"a name ?"
    write_atomic(path, b"\xff")
    assert path.read_bytes() == b"\xff"

    def fail(*_: Any) -> None:
        raise OSError("disk is gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk is gone"):
        write_atomic(path, "half")
    assert path.read_bytes() == b"\xff"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_who_may_read_a_file_does_not_depend_on_what_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_atomic(path, lambda draft: save_file({"weight": torch.ones(2)}, draft))
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_file_that_is_not_there_reads_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    assert read_json(path) == {}
    path.write_text('{"status": "finished"}')
    assert read_json(path) == {"status": "finished"}
    for text in ("[1, 2]", '{"status": "fin'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"no JSON object|Unterminated"):
            read_json(path)


def write_rows(path: Path, *rows: dict[str, object], tail: str = "") -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def test_last_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert last_row(path) is None
    write_rows(path, {"a": 1}, {"a": 2, "b": 1}, {"a": 3}, tail='{"a": 4')
    assert last_row(path) == {"a": 3}
    assert last_row(path, b=1) == {"a": 2, "b": 1}
    assert last_row(path, b=7) is None
    path.write_bytes(b'{"a": 1}\n{"a": \xff\n')  # a killed run, and the next line after it
    assert last_row(path) == {"a": 1}


def test_only_the_tail_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_rows(path, {"a": 0}, *({"fill": "x" * 1000, "n": n} for n in range(200)))
    row = last_row(path)
    assert row is not None
    assert row["n"] == 199
    assert last_row(path, a=0) is None  # too far back, and the cut line before it does no harm


@pytest.mark.parametrize("length", [60_000, 66_000, 300_000])
def test_rows_that_are_longer_than_the_tail(length: int, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_rows(path, *({"n": n, "fill": "x" * length} for n in range(3)))
    for rest in ("", '{"n": 3, "fill": "' + "x" * length):
        path.write_text(path.read_text() + rest)
        row = last_row(path)
        assert row is not None
        assert row["n"] == 2
    path.write_text('{"n": 3, "fill": "' + "x" * length)
    assert last_row(path) is None
    path.write_text("")
    assert last_row(path) is None


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"\[Errno 28\] No space left on device: '.*/summary.json'"):
        write_atomic(tmp_path / "summary.json", "text")
    with pytest.raises(OSError, match=r"'.*/model.safetensors'"):
        write_atomic(tmp_path / "model.safetensors", lambda draft: save_file({}, draft / "no" / "such"))
    assert list(tmp_path.iterdir()) == []


def test_rows_on_a_full_disk_name_their_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    recorder = Recorder(tmp_path)
    with pytest.raises(OSError, match=r"No space left on device: '.*/metrics.jsonl'"):
        recorder.record({"seconds": 0.0})
    recorder.close()


def test_the_name_of_a_run_is_one_name() -> None:
    assert file_name("../../evil-1") == "......evil-1"
    assert file_name("a b/c\\d") == "a.b.c.d"
