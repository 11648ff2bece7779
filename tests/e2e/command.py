"""The command line in processes of its own.

`Command` forks them from a server that has imported the package already, so that one costs milliseconds instead of
seconds; arguments, streams, exit code and the way they die are those of the real command. `spawn` starts the real one.
"""

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended; a negative code is the signal that killed it."""

    code: int
    out: str
    err: str

    def refusal(self) -> str:
        """The one sentence of a command that refused its input."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert self.out == ""
        assert "Traceback" not in self.err
        (line,) = self.err.splitlines()
        assert line.startswith("fedgmr: ")
        return line.removeprefix("fedgmr: ")


def onward(line: str) -> list[str]:
    """The arguments of the command with which an interrupted one says that it goes on."""
    assert line.startswith("fedgmr: interrupted; `"), line
    words = shlex.split(line.split("`")[1])
    return words[words.index("-m") + 2 if "-m" in words else 1 :]


class Command:
    """`fedgmr ARGUMENTS` in `folder`."""

    def __init__(self, folder: Path, streams: Path) -> None:
        self.folder, self.streams = folder, streams
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pytest", "fedgmr.cli.main", "fedgmr.experiments.run", "torch.optim"])

    def __call__(self, *arguments: str, before: Callable[[], None] | None = None) -> Outcome:
        """Run to the end; `before` is called in the process first."""
        files = (str(self.streams / "out"), str(self.streams / "err"))
        process = self._context.Process(target=_child, args=(arguments, str(self.folder), files, before))
        process.start()
        process.join(120)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"fedgmr {' '.join(arguments)} did not end")
        out, err = (Path(file).read_text() for file in files)
        return Outcome(code=process.exitcode, out=out, err=err)


def _child(
    arguments: tuple[str, ...],
    folder: str,
    files: tuple[str, str],
    before: Callable[[], None] | None,
) -> None:
    for number, file in enumerate(files, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
    os.chdir(folder)
    sys.argv = ["fedgmr", *arguments]
    from fedgmr.cli.main import main

    if before is not None:
        before()
    sys.exit(main(list(arguments)))


def spawn(*arguments: str, folder: Path, path: Path | None = None) -> "subprocess.Popen[str]":
    """Start the real command; `path` is put before everything else that can be imported."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedgmr", *arguments],
        cwd=folder,
        env=environment(path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def environment(path: Path | None = None) -> dict[str, str]:
    """The tests' own tasks are importable."""
    places = [*([str(path)] if path else []), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def write_recipe(path: Path, recipe: Mapping[str, Any]) -> Path:
    """A recipe file (JSON, which is YAML too)."""
    path.write_text(json.dumps(recipe))
    return path
