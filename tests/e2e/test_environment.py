"""A machine that runs out of something, or asks the command to end: one sentence, and a run that goes on later."""

import itertools
import json
import os
import re
import resource
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from e2e.command import Command, onward, spawn, write_recipe
from e2e.recipes import FLEET, recipe
from e2e.test_resume import left_by

WIDE = recipe("wide", seconds=80.0, fleet={**FLEET, "scale": 0.1})  # 2.7 MB a model


def limit_file_size(size: int) -> None:
    """No file may be longer: a write fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def limit_memory(more: int) -> None:
    """The process may take so many bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@pytest.mark.parametrize(
    ("most", "file"), [(1_000_000, "checkpoints/tick-000000002.safetensors"), (800, "recipe.yaml")]
)
def test_a_full_disk(most: int, file: str, fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", WIDE)
    ended = fedgmr("run", "r.json", "output=run", before=partial(limit_file_size, most))
    assert (ended.code, ended.out) == (2, "")
    last = ended.err.splitlines()[-1]
    assert re.fullmatch(rf"fedgmr: run/{file}: .*File too large.*\.", last), ended.err
    assert [path for path in (fedgmr.folder / "run").rglob(".*") if path.name != ".lock"] == [], "no draft is left"
    if file != "recipe.yaml":  # it had begun
        assert fedgmr("resume", "run").code == 0
        assert fedgmr("run", "r.json", "output=whole").code == 0
        assert left_by(fedgmr.folder / "run") == left_by(fedgmr.folder / "whole")


def test_no_memory(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", WIDE)
    for megabytes in (90, 110, 130, 160, 70, 50):  # what a run takes before its first checkpoint differs
        shutil.rmtree(fedgmr.folder / "run", ignore_errors=True)
        ended = fedgmr("run", "r.json", "output=run", before=partial(limit_memory, megabytes * 2**20))
        if ended.code != 0:
            assert ended.code == 2, ended.err
            how = r"(nothing was recorded yet: .*|`fedgmr resume run --trust e2e` goes on .*)"
            assert re.fullmatch(rf"fedgmr: out of memory \(.*\); {how}", ended.err.splitlines()[-1])
            if (fedgmr.folder / "run" / "checkpoints").exists():
                break
    assert "Traceback" not in ended.err
    assert not (fedgmr.folder / "run" / "summary.json").exists()
    assert fedgmr("resume", "run").code == 0
    assert fedgmr("run", "r.json", "output=whole").code == 0
    assert left_by(fedgmr.folder / "run") == left_by(fedgmr.folder / "whole")


@pytest.mark.parametrize("place", ["/proc/run", "/dev/null/run"])
def test_a_place_that_cannot_be_written(place: str, fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe())
    assert place.rpartition("/")[0] in fedgmr("run", "r.json", f"output={place}").refusal()


def _jump() -> None:
    """A date that jumps to and fro by years."""
    jumps, real = itertools.cycle([0.0, 1e8, -1e8]), time.time
    time.time = lambda: real() + next(jumps)


def test_a_clock_that_jumps(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe("dropped"))
    assert fedgmr("run", "r.json", "output=run", before=_jump).code == 0
    walls = [json.loads(line)["wall"] for line in (fedgmr.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert walls == sorted(walls)
    assert 0 <= walls[0] <= walls[-1] < 100


def test_data_that_is_gone_at_a_resume(fedgmr: Command) -> None:
    run = fedgmr.folder / "run"
    write_recipe(fedgmr.folder / "r.json", recipe())
    assert fedgmr("run", "r.json", "seconds=80", "output=run").code == 0
    (run / "summary.json").unlink()
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(
        text.replace("e2e.tiny:dense", "cifar10").replace("options: {}", "options: {root: gone}")
    )
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "gone" in fedgmr("resume", "run").refusal()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_nobody_reads_the_output(tmp_path: Path) -> None:
    process = spawn("schema", folder=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert (process.wait(60), process.stderr.read()) == (141, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_asked_to_end(number: signal.Signals, fedgmr: Command) -> None:
    folder = fedgmr.folder
    write_recipe(folder / "r.json", recipe("dropped", seconds=20000.0))
    process = spawn("run", "r.json", "output=run", folder=folder)
    while not list((folder / "run" / "checkpoints").glob("tick-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert onward(err.splitlines()[-1]) == ["resume", "run", "--trust", "e2e"]
    assert "Traceback" not in err
    assert not (folder / "run" / "summary.json").exists()
    assert fedgmr("verify", "run").code == 0
