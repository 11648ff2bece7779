"""Per client: the model that each would be handed, its level's sub-model, measured on samples that it holds out.

How evenly a run serves its clients is told by percentiles, the worst client and Jain's index. At the end every client
may fine-tune its model on its own samples, and is measured before and after. Read next: `dealing.py`, which holds the
samples out; `progress.py`, which records the figures.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedgmr.exchange import ClientTask
from fedgmr.experiments.assembly import Assembly, make_training
from fedgmr.experiments.views import level_name, view_of
from fedgmr.reading import Reading
from fedgmr.tasks.samples import Samples
from fedgmr.training.evaluation.evaluator import Measurement

_PERCENTILES = (10, 50, 90)


class ClientScores:
    """The evaluations per client of one run."""

    def __init__(self, assembly: Assembly[Any]) -> None:
        self.assembly = assembly
        self.every, self.steps = assembly.recipe.evaluation.clients, assembly.recipe.evaluation.personal
        train, held_out = assembly.task.train, assembly.held_out or ()
        wanted = self.every or self.steps
        self._samples: list[Samples] = [train.part(part) for part in held_out] if wanted else []

    def due(self, number: int, *, last: bool) -> bool:
        """Whether evaluation `number` of the run measures every client's model."""
        return self.every > 0 and (last or number % self.every == 0)

    def measure(self) -> list[Measurement]:
        """Start to measure the models that clients would be handed now; one measurement per client."""
        server = self.assembly.server
        measured: dict[int, Measurement] = {}
        for level in sorted(set(server.client_levels)):
            clients = [client for client, own in enumerate(server.client_levels) if own == level]
            samples = [self._samples[client] for client in clients]
            view = view_of(server, level_name(server.ladder[level]))
            measured |= zip(clients, self.assembly.evaluator.on(samples, *view), strict=True)
        return [measured[client] for client in range(len(measured))]

    def personal(self) -> dict[str, Any]:
        """What the summary says of fine-tuning: the figures before and after it."""
        if not self.steps:
            return {}
        reading = self.assembly.task.metrics[0]
        before = client_figures(self.measure(), reading)
        return {"personal": {"steps": self.steps, "before": before, "after": client_figures(self._tuned(), reading)}}

    def _tuned(self) -> list[Measurement]:
        """Train every client's model some steps on its own samples, as a task would, and measure it."""
        server, recipe, evaluator = self.assembly.server, self.assembly.recipe, self.assembly.evaluator
        assert self.assembly.parts is not None
        longer = replace(recipe, training=replace(recipe.training, steps=self.steps))
        training = make_training(longer, self.assembly.task, server.layout, server.plan, self.assembly.parts, None)
        executor = training.sequential()
        now = self.assembly.fleet.now
        measured = []
        for client, level in enumerate(server.client_levels):
            task = ClientTask(
                client=client,
                version=server.tick,
                level=level,
                levels=server.levels,
                map_version=server.map_version,
                model=server.model,
                buffers=server.buffers,
                learning_rate=server.learning_rate(server.rules.coordination.schedule_tick(server.tick, now)),
                first_batch=server.batches[client],
            )
            (update,) = executor.train([task])
            model = server.levels.spread(update.values, torch.zeros_like(server.model))
            measured += evaluator.on([self._samples[client]], model, update.buffers)
        return measured


def client_figures(measured: Sequence[Measurement], reading: Reading) -> dict[str, Any]:
    """Leading metric and loss of every client, and how evenly the metric is spread; null where it is not finite."""
    values, losses = [one.accuracy for one in measured], [one.loss for one in measured]
    known = {client: value for client, value in enumerate(values) if math.isfinite(value)}
    figures: dict[str, Any] = {
        "accuracy": [known.get(client) for client in range(len(values))],
        "loss": [loss if math.isfinite(loss) else None for loss in losses],
    }
    if not known:
        return figures
    spread = np.array(list(known.values()))
    worst = min(known, key=lambda client: reading.score(known[client]))
    return {
        **figures,
        "mean": float(spread.mean()),
        "std": float(spread.std()),
        **{f"p{share}": float(np.percentile(spread, share)) for share in _PERCENTILES},
        "worst": known[worst],
        "worst_client": worst,
        "jain": jain_index(known.values()),
    }


def jain_index(values: Iterable[float]) -> float | None:
    """(sum of x)² / (n × sum of x²): 1 where all have the same, 1/n where one has all; none for values under 0."""
    given = list(values)
    if min(given) < 0:
        return None
    squares = math.fsum(value * value for value in given)
    return math.fsum(given) ** 2 / (len(given) * squares) if squares else 1.0
