"""Strips: what each client of a run did over time, and how fast its link carried it.

A strip shows receiving, training, sending, tasks that were lost, and when the client was away; where it is empty, the
client waited. The line in it is the mean rate of each transfer. It needs rows with trips (`evaluation.trips`).
"""

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
        pieces, rates = time_pieces(run.history, end), transfer_rates(run.history)
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(f"{run.path}: the trips of an evaluation cannot be understood ({error}).") from error
    chart = Chart(f"What each client did over {run.clock} time", 0.36, rows=len(clients))
    for name, shade in _SHADES.items():
        for row, client in enumerate(clients):
            bars = [(begin, until - begin) for begin, until in pieces[name].get(client, ())]
            chart.axes.broken_barh(bars, (row - _HEIGHT / 2, _HEIGHT), color=shade, linewidth=0)
        chart.axes.barh([0], [0], color=shade, label=name)  # for the legend, whoever has such a piece
    fastest = max((rate for of in rates.values() for *_, rate in of), default=1.0)
    for row, client in enumerate(clients):
        for begin, until, rate in rates.get(client, ()):
            height = row + _HEIGHT * (0.5 - (rate / fastest) ** 0.5)
            chart.axes.plot((begin, until), (height, height), color=INK, linewidth=0.9, solid_capstyle="butt")
    chart.time_axis(end, run.clock)
    chart.client_axis(clients)
    chart.axes.plot([], [], color=INK, linewidth=0.9, label=f"rate (top: {fastest:.3g} MiB/s, root scale)")
    chart.axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, fontsize=9)
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


def transfer_rates(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[tuple[float, float, float]]]:
    """By client the transfers of its tasks that were not lost: from, until, MiB/s on average."""
    rates: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for row in rows:
        for client, _, leaving, ready, computed, ended, down, up in row["trips"]:
            if up is not None:
                for begin, until, size in ((leaving, ready, down), (computed, ended, up)):
                    if until > begin:
                        rates[client].append((begin, until, size / 2**20 / (until - begin)))
    return rates
