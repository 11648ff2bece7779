"""Generated links of a phone on the road: a Markov chain of good, weak and silent seconds.

Fitted to a measured LTE drive (AT&T, in the traces of Mahimahi, recorded with the Saturator of K. Winstein, A.
Sivaraman and H. Balakrishnan: *Stochastic Forecasts Achieve High Throughput and Low Delay over Cellular Networks*,
NSDI 2013): 5.2 Mbit/s down and 0.8 up on average, and 94 silent seconds in 17 minutes. docs/links.md has the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedgmr.fleets.curves import Curve
from fedgmr.fleets.traces import Trace
from fedgmr.seeding import generator
from fedgmr.settings.build import settle

Rates = npt.NDArray[np.float64]

_MEASURED = (5.2, 0.8)  # Mbit/s down and up, on average
COMMUTE_REST = 2040  # seconds of a steady link that follow the 1,020 of a commuter's drive
_GOOD, _WEAK, _SILENT = range(3)
_DWELL = (30.0, 10.0, 4.0)  # mean seconds of a stay in each state
_TO_SILENT = 0.58  # of the stays in weak so many end in silence, the others in good; both lead back to weak
_LEVEL = (1.0, 0.15, 0.0)  # mean rates of the states, by that of good
_SIGMA = 0.5  # of the logarithm of the rate within a state
_CORRELATION = 0.8  # of that logarithm from one second to the next
_MEMORY = 64  # seconds after which nothing of it is left
_MIB_OF_MBIT = 1e6 / 8 / 2**20


@dataclass(frozen=True, kw_only=True)
class Drive(Trace):
    """Generated drives, which clients share, each scaled to its link and from another second on."""

    kind: ClassVar[str] = "drive"

    seconds: int = field(
        default=1020, metadata={"at_least": 100, "at_most": 1_000_000, "help": "length of a drive, which then repeats"}
    )
    rest: int = field(
        default=0,
        metadata={"at_least": 0, "at_most": 1_000_000, "help": "seconds of a steady link between two drives"},
    )
    pool: int = field(
        default=32,
        metadata={"at_least": 1, "at_most": 32, "help": "drives that are drawn; each client has one of them"},
    )
    shift: float | Literal["random"] = field(
        default="random",
        metadata={
            "at_least": 0,
            "help": (
                "seconds of the trace that are over at the start; `random`: drawn by seed and client, over the "
                "whole trace"
            ),
        },
    )

    def __post_init__(self) -> None:
        settle(self)

    def load(self, seed: int) -> Sequence[tuple[Curve, Curve]]:
        """Draw the pool, down and up, at the measured rates."""
        starts = range(self.seconds + self.rest)
        pairs = []
        for number in range(self.pool):
            down, up = drive_rates(self.seconds, seed=seed, number=number, rest=self.rest)
            curves = (Curve(starts=starts, rates=rates.tolist(), end=len(rates)) for rates in (down, up))
            pairs.append((next(curves), next(curves)))
        return pairs


def state_shares() -> tuple[float, float, float]:
    """The shares of time that the chain spends in good, weak and silent seconds."""
    visits = (1 - _TO_SILENT, 1.0, _TO_SILENT)  # by stay in weak
    times = [visit * dwell for visit, dwell in zip(visits, _DWELL, strict=True)]
    good, weak, silent = (time / sum(times) for time in times)
    return good, weak, silent


def good_rates() -> tuple[float, float]:
    """The mean rates down and up of good seconds, MiB/s."""
    mean_level = sum(share * level for share, level in zip(state_shares(), _LEVEL, strict=True))
    down, up = (mbit * _MIB_OF_MBIT / mean_level for mbit in _MEASURED)
    return down, up


def drive_rates(seconds: int, *, seed: int, number: int = 0, rest: int = 0) -> tuple[Rates, Rates]:
    """The rates down and up of every second of a drive, MiB/s, and of a steady link for `rest` seconds after it.

    Both directions are in the same state. The mean varies with the draw; over many draws it is the measured one.
    """
    draws = generator(seed, "drive", number)
    levels = np.array(_LEVEL)[_states(seconds, draws)]
    down, up = (
        np.concatenate([rate * levels * _factors(seconds, draws), np.full(rest, rate)]) for rate in good_rates()
    )
    return down, up


def _states(seconds: int, draws: np.random.Generator) -> npt.NDArray[np.intp]:
    """The state of every second; the first one by its share, and stays have no memory."""
    state = int(draws.choice(3, p=state_shares()))
    states = np.empty(seconds, dtype=np.intp)
    now = 0
    while now < seconds:
        end = now + int(draws.geometric(1 / _DWELL[state]))
        states[now:end] = state
        now = end
        leaves = draws.random() < _TO_SILENT
        state = _WEAK if state != _WEAK else _SILENT if leaves else _GOOD
    return states


def _factors(seconds: int, draws: np.random.Generator) -> Rates:
    """Lognormal factors of mean one; their logarithms are an autoregression of the first order, cut off at the end."""
    kernel = _CORRELATION ** np.arange(_MEMORY)
    kernel /= np.sqrt(np.sum(kernel**2))
    logarithms = np.convolve(draws.standard_normal(seconds + _MEMORY - 1), kernel, mode="valid")
    return np.exp(_SIGMA * logarithms - _SIGMA**2 / 2)
