"""Four ticks of a simulated run: what each client receives, trains and sends, and when the server merges.

The trips of four clients are recorded and drawn. The period is short, so that the last client misses every other merge.
"""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

import fedgmr
from figures.style import FAINT, INK, PHASES

LINKS = ((20.0, 5.0, 1.0), (4.0, 1.0, 0.2), (1.0, 0.25, 0.05), (0.25, 0.0625, 0.05))
PERIOD, TICKS = 3.5, 4  # the period in virtual seconds


def draw() -> Figure:
    """A strip per client, the merges as lines."""
    fleet = [fedgmr.Link(down=down / 12, up=up / 12, density=density) for down, up, density in LINKS]
    result = fedgmr.simulate(
        "mnist5k",
        method=fedgmr.named_method("fedgmr", {"coordination": {"period": PERIOD}}),
        fleet=fleet,
        seconds=15,
        network={"server_rate": 1.0},
        evaluation={"trips": True, "every_seconds": 15, "views": ["merged"]},
        progress=False,
    )
    figure = Figure(figsize=(7.6, 2.6))
    axes = figure.subplots()
    for client, _, left, ready, computed, end, *_ in [trip for row in result.history for trip in row.get("trips", [])]:
        for start, stop, name in ((left, ready, "download"), (ready, computed, "training"), (computed, end, "upload")):
            axes.barh(client, stop - start, left=start, height=0.55, color=PHASES[name])
    for tick in range(TICKS + 1):
        axes.axvline(tick * PERIOD, color=INK, linewidth=1.0)
        words = "start" if tick == 0 else f"merge {tick}"
        axes.text(tick * PERIOD, -0.75, words, ha="center")
    axes.set(xlim=(0, TICKS * PERIOD * 1.02), ylim=(len(fleet) - 0.5, -0.6), xlabel="virtual seconds")
    axes.set_yticks(range(len(fleet)), [f"client {n}, density {link.density:g}" for n, link in enumerate(fleet)])
    axes.tick_params(left=False)
    axes.spines["left"].set_color(FAINT)
    axes.legend(
        handles=[Patch(color=colour, label=name) for name, colour in PHASES.items()],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.22),
        ncols=3,
    )
    return figure
