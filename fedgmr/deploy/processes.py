"""Processes under supervision: started with a mark, started again when they die, ended with all their descendants.

Flower's programs start programs of their own, and some of these outlive a parent that was killed. So every process
carries a mark in its environment, which children inherit, and the end is decided by looking for that mark.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MARK = "FEDGMR_DEPLOYMENT"
LARGEST_LOG = 16 * 2**20  # bytes
_GRACE = 6.0  # seconds between asking a process to end and ending it
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command to be kept running."""

    name: str
    command: Sequence[str]
    restart_delay: float  # seconds between its end and its next start
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Running:
    """A program and its newest process."""

    program: Program
    process: "subprocess.Popen[bytes]"
    died: float | None = None


class Supervisor:
    """Keeps programs running until it is closed, or until this process ends, however that happens.

    Args:
        folder: their mark, and where they run unless `cwd` is given.
        logs: where their output goes, one file per program; a long one is put aside, in place of the one before it.
        environment: of all programs.
    """

    def __init__(self, folder: Path, logs: Path, environment: Mapping[str, str], *, cwd: Path | None = None) -> None:
        self.folder, self.logs, self.cwd = folder, logs, cwd or folder
        self._environment = {**environment, _MARK: str(folder)}
        self._programs: dict[str, _Running] = {}
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def start(self, program: Program) -> None:
        """Start a program; it is watched from now on."""
        self._programs[program.name] = _Running(program=program, process=self._spawn(program))

    def check(self) -> list[str]:
        """Start again what died long enough ago; returns the names of the programs that were found dead just now."""
        found = []
        for name, running in self._programs.items():
            if running.died is None and running.process.poll() is not None:
                running.died = time.monotonic()
                _end_group(running.process.pid)  # what it left behind would compete with its successor
                found.append(name)
            _put_aside(self._log(running.program))
            if running.died is not None and time.monotonic() - running.died >= running.program.restart_delay:
                running.process, running.died = self._spawn(running.program), None
        return found

    def call(self, command: Sequence[str], *, timeout: float) -> str:
        """Run a command to its end and return what it printed; ValueError with its last lines where it fails."""
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"{Path(command[0]).name} {command[1]} did not end within {timeout:g} s.") from error
        if done.returncode != 0:
            words = " ".join((done.stderr + done.stdout).split())[-600:]
            raise ValueError(f"{Path(command[0]).name} {command[1]} failed: {words}")
        return done.stdout

    def close(self) -> None:
        """End everything, in the reverse order of the starts, and whatever else carries the mark."""
        processes = [running.process for running in reversed(self._programs.values())]
        self._programs.clear()
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _GRACE
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in processes:
            _end_group(process.pid)
            process.wait()
        end_marked(self.folder)

    def __enter__(self) -> "Supervisor":
        for number in (signal.SIGTERM, signal.SIGHUP):  # a polite end of this process is like Ctrl-C
            if self._handlers[number] is not signal.SIG_IGN:  # as nohup leaves it
                signal.signal(number, signal.default_int_handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._handlers:  # a second Ctrl-C must not leave half of the fleet behind
            signal.signal(number, signal.SIG_IGN)
        try:
            self.close()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def _log(self, program: Program) -> Path:
        return self.logs / f"{program.name}.log"

    def _spawn(self, program: Program) -> "subprocess.Popen[bytes]":
        with self._log(program).open("ab") as log:
            return subprocess.Popen(
                program.command,
                cwd=self.cwd,
                env={**self._environment, **program.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )


def _put_aside(log: Path) -> None:
    """Copy a long log away and empty it; its program goes on writing at its end, which is now the beginning."""
    if log.exists() and log.stat().st_size >= LARGEST_LOG:
        shutil.copyfile(log, log.with_suffix(".earlier.log"))
        os.truncate(log, 0)


def end_marked(folder: Path) -> None:
    """Kill every process that carries the mark of this folder (found where there is a /proc)."""
    deadline = time.monotonic() + _GRACE
    while (found := marked_processes(folder)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def marked_processes(folder: Path) -> dict[int, list[str]]:
    """The living processes with the mark of this folder, except this one: their command lines by process id."""
    wanted = f"{_MARK}={folder}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                found[int(entry.name)] = words
        except OSError:
            continue  # ended meanwhile, or somebody else's
    return found


def _end_group(leader: int) -> None:
    """Kill what is left of the process group of a program."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
