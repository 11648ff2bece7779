"""Gradual model restoration in a run: the level of each client over time, and the accuracy with and without it.

Two kept runs of VGG-11 on CIFAR-10, seed 0, with the fleet of the paper's High heterogeneity (docs/reproduction.md).
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from figures.style import FAINT, LEVELS

_RESULTS = Path(__file__).parents[2] / "results"
RESTORED = "cifar10-fedgmr-s0-084cf92a0e3e"
FIXED = "cifar10-fedgmr_without_restoration-s0-8e2a4776c3ae"
LADDER = (0.05, 0.1, 0.2, 0.5, 1.0)


def draw() -> Figure:
    """A strip per client, and below it the accuracy of the merged model."""
    rows, without = _rows(RESTORED), _rows(FIXED)
    figure = Figure(figsize=(7.6, 4.6))
    strips, curves = figure.subplots(2, 1, sharex=True, gridspec_kw={"hspace": 0.34})
    for client in range(len(rows[0]["level"])):
        for start, stop, level in _pieces(rows, client):
            strips.barh(client, (stop - start) / 1000, left=start / 1000, height=0.8, color=LEVELS[level])
    strips.set(ylim=(len(rows[0]["level"]) - 0.4, -0.6), yticks=[0, 3, 6, 9], ylabel="client")
    strips.set_title("Level of each client")
    strips.legend(
        handles=[Patch(color=colour, label=f"{density:g}") for colour, density in zip(LEVELS, LADDER, strict=True)],
        title="density",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )
    _curve(curves, rows, LEVELS[0], "with restoration")
    _curve(curves, without, LEVELS[4], "without")
    curves.set(xlabel="virtual time in 1,000 s", ylabel="accuracy in %", ylim=(30, 90), xlim=(0, 250))
    curves.set_title("Accuracy of the merged model, mean of 15 evaluations")
    curves.grid(color=FAINT, linewidth=0.4, alpha=0.5)
    curves.legend(loc="lower right")
    return figure


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_RESULTS / name / "metrics.jsonl").read_text().splitlines()]


def _pieces(rows: Sequence[dict[str, Any]], client: int) -> list[tuple[float, float, int]]:
    """The times in which a client stays at a level."""
    pieces: list[tuple[float, float, int]] = []
    for row, after in pairwise(rows):
        level = row["level"][client]
        start = pieces.pop()[0] if pieces and pieces[-1][2] == level else row["seconds"]
        pieces.append((start, after["seconds"], level))
    return pieces


def _curve(axes: Any, rows: Sequence[dict[str, Any]], colour: str, label: str) -> None:
    seconds, values = [row["seconds"] / 1000 for row in rows], [100 * row["accuracy"] for row in rows]
    means = [sum(part) / len(part) for part in (values[max(0, at - 7) : at + 8] for at in range(len(values)))]
    axes.plot(seconds, values, color=colour, linewidth=0.4, alpha=0.35)
    axes.plot(seconds, means, color=colour, linewidth=1.6, label=label)
