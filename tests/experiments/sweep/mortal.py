"""Tasks that come to grief while they train: `experiments.sweep.mortal:NAME` where tests/ is on the path."""

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path

from e2e import tiny
from torch import Tensor

from fedgmr import Task

LIFE = 60  # batches until it happens, which is after the first checkpoints


def killed(seed: int = 0, *, count: str, times: int, life: int = LIFE) -> Task:
    """Its process is killed in the middle, `times` times in all; the file `count` keeps count of it."""

    def die() -> None:
        deaths = len(Path(count).read_text()) if Path(count).exists() else 0
        if deaths < times:
            Path(count).write_text("x" * (deaths + 1))
            os.kill(os.getpid(), signal.SIGKILL)

    return _after(tiny.dense(seed), die, life, Path(f"{count}.batches"))


def out_of_memory(seed: int = 0, *, count: str) -> Task:
    """Memory runs out, once."""

    def fail() -> None:
        if not Path(count).exists():
            Path(count).write_text("x")
            raise MemoryError("no room for another tensor")

    return _after(tiny.dense(seed), fail)


def broken(seed: int = 0) -> Task:
    """Has a defect."""

    def fail() -> None:
        raise TypeError("a defect of the program")

    return _after(tiny.dense(seed), fail)


def batches(count: Path) -> int:
    """How many batches a task that can be killed was asked for, in all its lives."""
    return count.with_name(f"{count.name}.batches").stat().st_size


def _after(task: Task, happen: Callable[[], None], life: int = LIFE, seen_by: Path | None = None) -> Task:
    seen = 0

    def prepare(inputs: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        if seen_by is not None:
            with seen_by.open("a") as file:
                file.write("b")
        if seen == life:
            happen()
        return inputs

    return dataclasses.replace(task, prepare=prepare)
