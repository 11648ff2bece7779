"""Turns: compared actions alternate, so that a busy machine slows all equally; the fastest turn of each counts."""

import math
import time
from collections.abc import Callable, Mapping

import torch


def fastest(
    actions: Mapping[str, Callable[[], object]],
    *,
    turns: int,
    device: torch.device,
    repeat: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds of one call of each action: the least over all turns of the mean over `repeat` calls in a row."""
    best = dict.fromkeys(actions, math.inf)
    for turn in range(turns + 1):
        for name, action in actions.items():
            _wait(device)
            began = clock()
            for _ in range(repeat):
                action()
            _wait(device)
            took = (clock() - began) / repeat
            if turn:  # the first warms up: memory is taken, tables are made
                best[name] = min(best[name], took)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
