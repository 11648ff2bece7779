"""What crosses the server's uplink for four clients: every sub-model by itself, or with IMS each shared part once.

The objects are those that `plan_transmissions` makes for the 6.6 million coordinates of Conv-2, in MiB of float32.
"""

import torch
from matplotlib.figure import Figure

import fedgmr
from fedgmr.exchange import Shipment
from fedgmr.fleets.multicast import plan_transmissions
from fedgmr.submodels.levels import LevelMap
from figures.style import LEVELS

CLIENT_LEVELS = (4, 2, 0, 0)
COORDINATES = 6_603_710
MIB = 4 / 2**20  # of a float32


def draw() -> Figure:
    """One row per object, from the first to leave to the last, for both ways of sending."""
    ladder = fedgmr.named_method("fedgmr").ladder
    levels = LevelMap.from_scores(torch.arange(COORDINATES, dtype=torch.float32), ladder)
    shipments = [
        Shipment(client=client, level=level, levels=levels, map_version=0, first_batch=0)
        for client, level in sorted(enumerate(CLIENT_LEVELS), key=lambda pair: pair[1])  # the smallest leaves first
    ]
    figure = Figure(figsize=(7.6, 3.1))
    panels = figure.subplots(2, 1, sharex=True, gridspec_kw={"hspace": 0.75, "height_ratios": [4, 3]})
    for axes, (title, ims) in zip(panels, (("Without IMS", False), ("With IMS", True)), strict=True):
        sent, rows = 0.0, []
        for row, object_ in enumerate(plan_transmissions(shipments, ims=ims)):
            first, last = object_.span
            for level in range(first, last + 1):
                width = levels.increments[level] * MIB
                axes.barh(row, width, left=sent, height=0.75, color=LEVELS[level])
                sent += width
            receivers = ", ".join(map(str, sorted(shipment.client for shipment in object_.receivers)))
            rows.append(f"to client{'s' if len(object_.receivers) > 1 else ''} {receivers}")
        axes.set_yticks(range(len(rows)), rows)
        axes.invert_yaxis()
        axes.set_title(f"{title}: {sent:.1f} MiB leave the server")
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
    panels[0].tick_params(labelbottom=True)
    panels[1].set_xlabel("MiB sent so far; at 10 MiB/s ten of them are a second")
    return figure
