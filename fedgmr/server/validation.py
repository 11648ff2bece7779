"""Validation metrics for restoration: of sub-models, of clients' own updates, of the zero-padded mean.

The server measures them on samples of its own. Where clients validate instead (`evaluation.validation: clients`), their
reports give those of the sub-models, and there are no others. Read next: `restoration.py`, which asks for them.
"""

from typing import TYPE_CHECKING

import torch

from fedgmr.server.buffer import Contribution

if TYPE_CHECKING:
    from fedgmr.server.server import Server


class CheckMetrics:
    """The metrics of one check: each model is measured once, when a rule asks for it."""

    def __init__(self, server: "Server") -> None:
        """Where clients validate, what they have reported counts for this check alone."""
        self._server = server
        self._levels: dict[int, float] = {}
        if server.validate is None:
            reports, server.reports = server.reports, {}
            self._levels = {level: total / n for level, (total, n) in reports.items() if n}

    def of_level(self, level: int) -> float | None:
        """That of the global model's sub-model at a level."""
        server = self._server
        if server.validate is not None and level not in self._levels:
            buffers = server.buffers[: (level + 1) * server.layout.buffer_size]  # kept per width: its own come last
            self._levels[level] = server.validate(server.sub_model(level), buffers)()
        return self._levels.get(level)

    def of_update(self, client: int) -> float | None:
        """That of a client's update, as it was last measured."""
        return self._server.own_metrics.get(client)

    def of_padded(self) -> float | None:
        """That of the zero-padded mean of the latest updates."""
        validate = self._server.validate
        padded = None if validate is None else self._server.padded()
        return None if validate is None or padded is None else validate(*padded)()


def measure_update(server: "Server", c: Contribution) -> None:
    """Note the metric of a client's own model, zero outside its sub-model: of its first update and every `interval`-th.

    So a client that reports to every merge is measured at every check, and a slow one as often as it has trained.
    """
    rule, count = server.rules.restoration, server.updates[c.client]
    if rule is None or not rule.own_updates or server.validate is None:
        return
    if server.client_levels[c.client] == len(server.ladder) - 1 or (count > 1 and count % server.rules.interval):
        return
    model = c.values if c.levels is None else c.levels.spread(c.values, torch.zeros_like(server.model))
    server.own_metrics[c.client] = server.validate(model, c.buffers)()
