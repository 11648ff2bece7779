"""Ctrl-C: one line, exit code 130, and a directory that can be resumed."""

import shutil
import signal
import time
from pathlib import Path

from e2e.command import Command, spawn, write_recipe
from e2e.recipes import recipe


def test_interrupt_and_resume(fedgmr: Command) -> None:
    folder = fedgmr.folder
    write_recipe(folder / "r.json", recipe("dropped", seconds=2500.0))
    # Python may swallow an interrupt that falls into a finaliser, and the run may be over before it: try thrice.
    for _ in range(3):
        shutil.rmtree(folder / "run", ignore_errors=True)
        code, out, err = _interrupted(folder)
        if code == 130:
            break
    assert code == 130, err
    assert out == ""
    *progress, last = err.splitlines()
    assert last == "fedgmr: interrupted; `fedgmr resume RUN` goes on from the last checkpoint."
    assert all(line.startswith("FedGMR seed 3") for line in progress)
    assert not (folder / "run" / "summary.json").exists()

    assert fedgmr("resume", "run").code == 0
    assert fedgmr("run", "r.json", "output=whole").code == 0
    assert _model(folder / "run") == _model(folder / "whole")


def _interrupted(folder: Path) -> tuple[int, str, str]:
    """Start a run, interrupt it after its first checkpoint: (exit code, stdout, stderr)."""
    process = spawn("run", "r.json", "output=run", folder=folder)
    while not list((folder / "run" / "checkpoints").glob("tick-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def _model(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()
