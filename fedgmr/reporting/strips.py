"""Strips: what each client of a run did over time, and how fast its link carried it.

A strip shows receiving, training, sending, tasks that were lost, and when the client was away; where it is empty, the
client waited. The lines in it are the rates of its link down and up, or where links do not vary, the mean rate of each
transfer. It needs rows with trips (`evaluation.trips`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedgmr.reporting.chart import COLOURS, FAINT, INK, Chart
from fedgmr.reporting.records import Run, read_run

_MOST = 40  # strips in a figure; of more clients every so many-th is shown
_HEIGHT = 0.76  # of a strip, where a row has 1
_PHASES = ("receiving", "training", "sending")
_SHADES = dict(zip((*_PHASES, "lost", "away"), (COLOURS[0], COLOURS[2], COLOURS[4], COLOURS[1], FAINT), strict=True))
Piece = tuple[float, float]  # from, until
Step = tuple[float, float, float]  # from, until, MiB/s


def draw_strips(run_directory: str | Path, path: str | Path) -> None:
    """Draw the strips of a run into a file, PNG or PDF by its suffix.

    Raises:
        ValueError: this is no run directory, its rows have no trips, or the suffix is another.
    """
    strips_figure(read_run(run_directory)).write(path)


def strips_figure(run: Run) -> Chart:
    """Draw a strip per client, the fastest on top."""
    if "trips" not in run.history[-1]:
        raise ValueError(f"{run.path} records no trips: run its recipe with evaluation.trips=true.")
    by_speed = run.clients_by_speed
    clients = by_speed[:: -(-len(by_speed) // _MOST)]
    end = float(run.history.seconds[-1])
    try:
        pieces, lines = time_pieces(run.history, end), rate_lines(run.history)
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(f"{run.path}: the trips of an evaluation cannot be understood ({error}).") from error
    chart = Chart(f"What each client did over {run.clock} time", 0.36, rows=len(clients))
    for name, shade in _SHADES.items():
        for row, client in enumerate(clients):
            bars = [(begin, until - begin) for begin, until in pieces[name].get(client, ())]
            chart.axes.broken_barh(bars, (row - _HEIGHT / 2, _HEIGHT), color=shade, linewidth=0)
        chart.axes.barh([0], [0], color=shade, label=name)  # for the legend, whoever has such a piece
    fastest = max((rate for of in lines.values() for line in of for *_, rate in line), default=0.0) or 1.0
    for row, client in enumerate(clients):
        for line, style in zip(lines.get(client, ()), ("-", ":"), strict=True):
            moments = [moment for begin, until, _ in line for moment in (begin, until, math.nan)]
            heights = [row + _HEIGHT * (0.5 - math.sqrt(rate / fastest)) for *_, rate in line for _ in range(3)]
            chart.axes.plot(moments, heights, color=INK, linewidth=0.9, linestyle=style)
    chart.time_axis(end, run.clock)
    chart.client_axis(clients)
    for label, style in ((f"rate down (top: {fastest:.3g} MiB/s, root scale)", "-"), ("rate up", ":")):
        chart.axes.plot([], [], color=INK, linewidth=0.9, linestyle=style, label=label)
    chart.legend_below(columns=3)
    return chart


def time_pieces(rows: Iterable[Mapping[str, Any]], end: float) -> dict[str, dict[int, list[Piece]]]:
    """The pieces of every client's time, by what it did; the rest it waited."""
    pieces: dict[str, dict[int, list[Piece]]] = {name: defaultdict(list) for name in _SHADES}
    for row in rows:
        for client, begin, until in row["away"]:
            pieces["away"][client].append((begin, until))
        for client, _, *moments, _, up in row["trips"]:
            known = [end if moment is None else min(moment, end) for moment in moments]
            if up is None:
                pieces["lost"][client].append((known[0], known[-1]))
                continue
            for name, piece in zip(_PHASES, pairwise(known), strict=True):
                if piece[0] < piece[1]:
                    pieces[name][client].append(piece)
    return pieces


def rate_lines(rows: Sequence[Mapping[str, Any]]) -> dict[int, tuple[list[Step], list[Step]]]:
    """By client its rates down and up in MiB/s: those of its link, or of its transfers where rows have no rates."""
    lines: dict[int, tuple[list[Step], list[Step]]] = defaultdict(lambda: ([], []))
    if any("rates" in row for row in rows):
        for before, row in pairwise(rows):
            for client, both in enumerate(row.get("rates", ())):
                for line, rates in zip(lines[client], both, strict=True):
                    step = (row["seconds"] - before["seconds"]) / len(rates)
                    begins = (before["seconds"] + part * step for part in range(len(rates)))
                    line += [(begin, begin + step, rate) for begin, rate in zip(begins, rates, strict=True)]
        return lines
    for row in rows:
        for client, _, leaving, ready, computed, ended, down, up in row["trips"]:
            both = ((leaving, ready, down), (computed, ended, up)) if up is not None else ()
            for line, (begin, until, size) in zip(lines[client], both, strict=False):
                if until > begin:
                    line.append((begin, until, size / 2**20 / (until - begin)))
    return lines
