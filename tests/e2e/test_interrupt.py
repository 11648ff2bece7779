"""Ctrl-C: one line with the command that goes on, exit code 130, and a directory that can be resumed."""

import shutil
import signal
import time
from pathlib import Path

from e2e.command import Command, onward, spawn, write_recipe
from e2e.recipes import recipe


def test_interrupt_and_resume(fedgmr: Command) -> None:
    folder = fedgmr.folder
    write_recipe(folder / "r.json", recipe("dropped", seconds=2500.0))
    # Python may swallow an interrupt that falls into a finaliser, and the run may be over before it: try thrice.
    for _ in range(3):
        shutil.rmtree(folder / "run", ignore_errors=True)
        code, out, err = _interrupted(folder, folder / "run", "run", "r.json", "output=run")
        if code == 130:
            break
    assert code == 130, err
    assert out == ""
    first, *progress, last = err.splitlines()
    assert first == "Run: run"
    assert last.endswith("` goes on from the last checkpoint.")
    assert onward(last) == ["resume", "run", "--trust", "e2e"]
    assert all(line.startswith("FedGMR seed 3") for line in progress)
    assert not (folder / "run" / "summary.json").exists()

    assert fedgmr(*onward(last)).code == 0
    assert fedgmr("run", "r.json", "output=whole").code == 0
    assert _model(folder / "run") == _model(folder / "whole")


def test_an_interrupted_comparison_goes_on_in_its_directory(fedgmr: Command) -> None:
    """By the command that it names, and by the one that began it, which names no directory."""
    folder, words = fedgmr.folder, ("compare", "r.json", "--methods", "fedgmr,fedavg")
    write_recipe(folder / "r.json", recipe("dropped", seconds=1500.0))
    code, out, err = _interrupted(folder, folder / "runs", *words)
    assert (code, out) == (130, ""), err
    first, *listed, last = err.splitlines()
    (directory,) = (folder / "runs").iterdir()
    assert first == f"2 runs: 2 to start. Directory: runs/{directory.name}"
    assert [line.split("  ")[:3] for line in listed[:2]] == [
        ["FedGMR seed 3", "waiting", "0/1,500 s"],
        ["FedAvg seed 3", "waiting", "0/1,500 s"],
    ]
    assert onward(last) == [*words, f"output=runs/{directory.name}"]
    (directory / "fedgmr-seed3" / "checkpoints").rename(folder / "aside")
    code, _, err = _interrupted(folder, directory, *words)
    assert err.splitlines()[0] == f"2 runs: 1 interrupted, 1 to start. Directory: runs/{directory.name}"
    assert code == 130, err
    again = fedgmr(*onward(last))
    assert again.code == 0, again.err
    assert [path.name for path in (folder / "runs").iterdir()] == [directory.name]
    # What is finished is not taken up: a new command begins anew.
    assert "2 runs: 2 to start." in fedgmr(*words, "seconds=20").err
    assert len(list((folder / "runs").iterdir())) == 2


def _interrupted(folder: Path, watched: Path, *words: str) -> tuple[int, str, str]:
    """Start a command, interrupt it after its first checkpoint: (exit code, stdout, stderr)."""
    process = spawn(*words, folder=folder)
    while not list(watched.rglob("tick-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def _model(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()
