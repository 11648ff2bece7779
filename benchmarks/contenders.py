"""A simulator in a process of its own that takes turns with the others; used by `simulators.py`."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SCRIPTS = Path(__file__).parent / "simulators"
GATE = 1e-5  # largest relative difference of the global weights from the plain loop's
LINE = "@@ "  # as in simulators/workload.py


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One simulator in one setting."""

    system: str
    setting: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Simulator and setting, for people."""
        return f"{self.system}, {self.setting}"


class Failed(Exception):  # noqa: N818 - a state of a simulator
    """A simulator ended or said something unexpected."""


@dataclass
class Contender:
    """A running simulator and its measured times."""

    entry: Entry
    process: subprocess.Popen[str]
    errors: Path
    weights: Path
    rounds: int = 0  # in a turn
    to_gate: float = 0.0  # seconds from its start to the end of the gate's rounds
    difference: float = float("nan")
    walls: list[float] = field(default_factory=list)  # seconds per round, by turn
    processors: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, entry: Entry, interpreter: str, plan: Path, gate: Path) -> "Contender":
        """Start it and wait until it has passed the gate's rounds and is ready for its first turn."""
        stem = plan / entry.name.replace(" ", "_").replace(",", "")
        script = SCRIPTS / ("bare.py" if entry.system == "bare" else f"with_{entry.system}.py")
        weights, errors = stem.with_suffix(".npy"), stem.with_suffix(".err")
        command = [interpreter, str(script), str(plan), str(gate), "--out", str(weights), *entry.arguments]
        with errors.open("w") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)
        contender = cls(entry=entry, process=process, errors=errors, weights=weights)
        began = time.perf_counter()
        try:
            contender._hear("gate")
            contender.to_gate = time.perf_counter() - began
            contender._hear("ready")
        except Failed:
            contender.stop()
            raise
        return contender

    def take_turn(self, rounds: int, *, counts: bool = True) -> None:
        """Let it run this many rounds while all others wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"go {rounds}\n")
        self.process.stdin.flush()
        wall, processor = self._hear("took")
        self._hear("ready")
        if counts:
            self.rounds = rounds
            self.walls.append(float(wall) / rounds)
            self.processors.append(float(processor) / rounds)

    def stop(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()

    def _hear(self, word: str) -> list[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(LINE):
                first, *rest = line.removeprefix(LINE).split()
                if first != word:
                    break
                return rest
        last = self.errors.read_text().strip().splitlines()[-1:] or ["it ended without a word"]
        raise Failed(f"{self.entry.name}: {last[0][:300]}")


def gate(contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders whose weights equal the plain loop's; the others are printed."""
    reference = np.load(contenders[0].weights).astype(np.float64)
    passed = []
    for contender in contenders:
        weights = np.load(contender.weights).astype(np.float64)
        contender.difference = float(np.linalg.norm(weights - reference) / np.linalg.norm(reference))
        if contender.difference <= GATE:
            passed.append(contender)
        else:
            print(f"{contender.entry.name} failed the gate, not timed: weights differ by {contender.difference:.1e}")
    return passed
