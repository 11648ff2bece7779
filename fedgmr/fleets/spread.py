"""Links in ten classes with mean rates that follow a lognormal distribution: for `lte`, `commute` and `day_night`.

The fastest class has 20 times the rate of the slowest, as in the paper's classes, and the mean of all is that of the
paper's High fleet, so periods and sub-models are of the paper's order. Read next: `presets.py`, which has their names.
"""

import math
from statistics import NormalDist

from fedgmr.fleets.links import Link

_MEDIAN = (3.0, 0.75)  # MiB/s down and up, four to one as in the paper's classes
_SPREAD = 20.0  # rate of the fastest class by that of the slowest
_LADDER = (0.05, 0.1, 0.2, 0.5, 1.0)
_CLASSES = 10


def spread_links(clients: int) -> list[Link]:
    """The links of a fleet, fastest first, in classes of equal size; fewer than ten clients are spread over them."""
    classes = _classes()
    if clients >= _CLASSES:
        return [classes[client * _CLASSES // clients] for client in range(clients)]
    return [classes[round((_CLASSES - 1) * client / max(clients - 1, 1))] for client in range(clients)]


def _classes() -> list[Link]:
    """Quantiles 95 %, 85 %, ..., 5 %, each with the largest density of at most rate / fastest rate (A31)."""
    normal = NormalDist()
    quantiles = [normal.inv_cdf(1 - (number + 0.5) / _CLASSES) for number in range(_CLASSES)]
    sigma = math.log(_SPREAD) / (quantiles[0] - quantiles[-1])
    factors = [math.exp(sigma * quantile) for quantile in quantiles]
    return [
        Link(
            down=_MEDIAN[0] * factor,
            up=_MEDIAN[1] * factor,
            density=max((density for density in _LADDER if density <= factor / factors[0]), default=_LADDER[0]),
        )
        for factor in factors
    ]
