"""Links measured from bytes and times: how long a task will take, and the largest sub-model that fits the period.

A task takes overhead + training + down/D + up/U. Each client has a small Kalman filter for overhead, 1/D and 1/U, so
that a few tasks settle it, noise averages out and a link that changes is followed. Used by both fleets; knows no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgmr.exchange import News, Shipment
from fedgmr.fleets.network import MIB
from fedgmr.fleets.sizes import Sizes

_RATE_DEVIATION = 1000.0  # s/MiB, of a rate nobody has seen yet
_DRIFT = 0.1  # how much a rate may change from one task to the next, as a share
_FALLEN, _IN_A_ROW = 3.0, 2  # a link has changed where so many tasks take this many times the expected time
_TOLERANCE = 1.1  # a level is kept until its round is this much longer than the period


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The assumptions about every client before its first task."""

    overhead: float  # seconds of a task without bytes and training
    deviation: float  # of the overhead
    jitter: float  # seconds by which the same task takes longer or shorter, whatever its size
    noise: float = 0.05  # the same as a share of the time


SIMULATED = Prior(overhead=0.0, deviation=0.0, jitter=0.01)


class LinkEstimate:
    """One client's overhead and rates, from observations."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.mean = np.array([prior.overhead, 0.0, 0.0])
        self.covariance = np.diag([prior.deviation, _RATE_DEVIATION, _RATE_DEVIATION]) ** 2
        self.observed = 0
        self.late = 0  # tasks in a row, the last included, that took far longer than expected

    def observe(self, *, down: int, up: int, seconds: float) -> None:
        """Take in a task of so many bytes that took `seconds` beside its training."""
        x = _regressor(down, up)
        expected = float(x @ self.mean)
        error = seconds - expected
        self.late = self.late + 1 if self.observed and seconds > _FALLEN * expected else 0
        if self.late >= _IN_A_ROW and down + up:
            # Long times are noisy ones to the filter, so without this it follows a tenth of the rate after eight tasks.
            rate = error / float(x[1:].sum())
            self.covariance = self.covariance + np.diag([min(error, self.prior.deviation), rate, rate]) ** 2
        gain = self.covariance @ x
        variance = float(x @ gain) + self.prior.jitter**2 + (self.prior.noise * seconds) ** 2
        gain = gain / max(variance, np.finfo(float).tiny)
        self.mean = np.maximum(self.mean + gain * error, 0.0)
        self.covariance = self.covariance - np.outer(gain, x @ self.covariance)
        drift = np.array([_DRIFT * min(self.mean[0], self.prior.deviation), *(_DRIFT * self.mean[1:])])
        self.covariance = (self.covariance + self.covariance.T) / 2 + np.diag(drift**2)
        self.observed += 1

    def seconds(self, *, down: int, up: int) -> float:
        """The expected time of a task of so many bytes, without its training."""
        return float(_regressor(down, up) @ self.mean)


class Meter:
    """The estimates of all clients and, where densities are measured, the levels that fit."""

    def __init__(self, prior: Prior, sizes: Sizes, *, period: float | None = None) -> None:
        """`period`: seconds that a round may take, where densities are measured."""
        self.prior, self.sizes, self.period = prior, sizes, period
        self.estimates: dict[int, LinkEstimate] = {}
        self.training: dict[int, float] = {}  # seconds by client, of its last task
        self.took: dict[int, float] = {}  # the same of the whole task

    def probe(self, client: int, *, down: int, up: int, seconds: float) -> None:
        """Take in a message without training."""
        self.estimates.setdefault(client, LinkEstimate(self.prior)).observe(down=down, up=up, seconds=seconds)

    def observe(self, task: Shipment, *, down: int, up: int, seconds: float, training: float) -> list[News]:
        """Take in a task: its bytes, its time from dispatch to arrival, and how much of that was training.

        Returns how long it took, and the level that fits the period, where there is one.
        """
        training = min(max(training, 0.0), seconds)
        self.probe(task.client, down=down, up=up, seconds=seconds - training)
        self.training[task.client], self.took[task.client] = training, seconds
        level = None if self.period is None else self._fitting(task, self.period)
        return [News(client=task.client, seconds=seconds, level=level)]

    def _fitting(self, task: Shipment, period: float) -> int:
        """The highest level whose round fits the period, or 0; the task's own stays while it is hardly too long."""
        times = self.times(task)
        fitting = max((level for level, seconds in enumerate(times) if seconds <= period), default=0)
        hardly = fitting < task.level and times[task.level] <= _TOLERANCE * period
        return task.level if hardly else fitting

    def times(self, task: Shipment) -> list[float]:
        """The expected time of a task of this client at each level, if it has the level map."""
        estimate, training = self.estimates[task.client], self.training.get(task.client, 0.0)
        levels = range(len(task.levels.ladder))
        return [
            training
            + estimate.seconds(down=self.sizes.download(task.levels, [level]), up=self.sizes.update(task.levels, level))
            for level in levels
        ]

    def expected(self, client: int, *, down: int, up: int) -> float | None:
        """The expected time of a task, at least that of its last one; None for a client that has not finished one yet.

        A busy machine takes long whatever the bytes, and the filter, which looks for a link, is slow to believe it.
        """
        if client not in self.training:
            return None
        known = self.training[client] + self.estimates[client].seconds(down=down, up=up)
        return max(known, self.took.get(client, 0.0))

    def state(self) -> list[list[Any]]:
        """Everything, as JSON-ready data."""
        return [
            [client, e.mean.tolist(), e.covariance.tolist(), e.observed, *(of.get(client) for of in self._last), e.late]
            for client, e in sorted(self.estimates.items())
        ]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Continue from what `state()` has returned."""
        self.estimates, self.training, self.took = {}, {}, {}
        for client, mean, covariance, observed, *last in state:  # older files do not know how long a task took
            estimate = self.estimates[client] = LinkEstimate(self.prior)
            estimate.mean, estimate.covariance = np.array(mean), np.array(covariance)
            estimate.observed = observed
            estimate.late = last[2] if len(last) > 2 else 0
            for of, seconds in zip(self._last, last, strict=False):
                if seconds is not None:
                    of[client] = seconds

    @property
    def _last(self) -> tuple[dict[int, float], dict[int, float]]:
        return self.training, self.took


def _regressor(down: int, up: int) -> npt.NDArray[np.float64]:
    return np.array([1.0, down / MIB, up / MIB])
