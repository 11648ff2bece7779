"""Whether a deployed fleet keeps its period, and the period that would do.

In a simulation the period is a choice of the experiment. On real machines a period that most tasks outlast means that
the machines, or Flower's start of a process per task, are slower than whoever set it believed.
"""

import math
from typing import Any

from fedgmr.federation import Fleet
from fedgmr.server.server import Server

_MARGIN = 1.10  # as in the periods that are computed
_SHARE = 0.9  # of the clients, whose tasks are to fit


def advice(server: Server, fleet: Fleet) -> dict[str, Any]:
    """The period in whole seconds that would do for nine of ten clients, for the summary; empty where the present does.

    It does if at least half of the last tasks fit. Clients that restoration has moved up do not count, because their
    tasks are longer by design, and nothing is said while fewer than half of the clients are left to judge by.
    """
    period = server.rules.coordination.period
    took = sorted(seconds for client, seconds in fleet.took.items() if client not in server.restored)
    if period is None or not server.rules.coordination.wait(server.tick, fleet.in_flight).timed:
        return {}
    if 2 * len(took) < fleet.clients or 2 * sum(seconds > period for seconds in took) <= len(took):
        return {}
    # Less a rounding error: 1.1 x 50 is 55.00000000000001.
    needed = float(math.ceil(_MARGIN * took[math.ceil(_SHARE * len(took) - 1e-9) - 1] - 1e-9))
    slow = sum(seconds > period for seconds in fleet.took.values())
    text = (
        f"The fleet cannot keep its period of {period:g} s: the last task of {slow} of {len(fleet.took)} clients took "
        f"longer. method.coordination.period={needed:g} would do."
    )
    return {"period_needed": needed, "advice": text}
