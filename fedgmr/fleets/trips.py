"""Notes for the rows of a run whose links vary or whose clients come and go: its trips, who was away, the rates.

They are short lists, because a row may have thousands. docs/run-directory.md says what stands where.
"""

import math
from typing import Any

from fedgmr.fleets.network import Network, Trip
from fedgmr.fleets.presence import Presence

_DIGITS = 6  # of seconds
_RATES, _ALL_RATES = 10, 1000  # parts of the time between two rows for which rates are noted, of a client and of all


def note_trip(trip: Trip, level: int, leaving: float) -> list[Any]:
    """A trip for a row: client, level, moments of leaving, ready, computed and the end, bytes down and up.

    What a lost task never came to is None, and so are its bytes up.
    """
    moments = [round(m, _DIGITS) if m <= trip.arrival else None for m in (trip.ready, trip.computed)]
    end = None if trip.arrival == math.inf else round(trip.arrival, _DIGITS)
    return [
        trip.client,
        level,
        round(min(leaving, trip.arrival), _DIGITS),
        *moments,
        end,
        trip.down,
        None if trip.lost else trip.up,
    ]


def note_away(presence: Presence, since: float, until: float) -> list[list[Any]]:
    """Who was away between two rows: client, from, until."""
    gone = presence.gone(since, until)
    return [[client, round(begin, _DIGITS), round(end, _DIGITS)] for client, begin, end in gone]


def note_rates(network: Network, since: float, until: float) -> list[list[list[float]]]:
    """By client the rates of its link down and up between two rows, in as many equal parts as keep a row short."""
    clients = len(network.links)
    count = max(1, min(_RATES, _ALL_RATES // clients))
    means = (network.mean_rates(client, since, until, count) for client in range(clients))
    return [[[float(f"{rate:.3g}") for rate in of] for of in pair] for pair in means]
