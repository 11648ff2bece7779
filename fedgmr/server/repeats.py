"""Repeats: an answer that its client has sent before, told from a few coordinates of each.

An honest update starts from the model that the task brought, so it goes with that model. An answer that stays where an
earlier one was, although the model has moved on, was not trained from it. The server remembers some coordinates of the
last answers of every client, spread over the run, and of the models that these started from. Read next:
`admission.py`, which asks.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Update

_SAMPLED = 1024  # coordinates of the whole model
_ENOUGH = 32  # that two answers must share, and the newer one have changed, to be compared
_REMEMBERED = 8  # answers of a client
_MOVED = 0.5  # of the answer's change: by so much the model must have moved on since


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Some coordinates of an answer."""

    client: int
    version: int
    values: Tensor  # NaN where the client holds none
    start: Tensor  # of the model that it started from


class Repeats:
    """Remembers answers."""

    def __init__(self, size: int) -> None:
        """Nothing was answered yet; the model has `size` coordinates."""
        self._places = torch.arange(0, size, max(1, -(-size // _SAMPLED)))
        self.answers: dict[int, list[tuple[int, Tensor]]] = {}  # by client: version, values
        self.models: dict[int, Tensor] = {}  # by version, those that remembered answers started from

    def sample(self, update: Update, task: ClientTask) -> Sample:
        """Some coordinates of an answer and of the model that it started from, on the host."""
        start = self.models.get(task.version)
        if start is None:
            start = task.model[self._places.to(task.model.device)].cpu()
        return Sample(client=update.client, version=task.version, values=self._sampled(update, task), start=start)

    def nearness(self, found: Sample) -> float:
        """The distance to the nearest earlier answer by the length of the change; infinite where none is comparable."""
        known = self.answers.get(found.client, [])
        if not known:
            return math.inf
        answers = torch.stack([answer for _, answer in known])
        models = torch.stack([self.models[version] for version, _ in known])
        # A comparison with NaN is false, and so is that of NaN with itself.
        both = (answers == answers) & (found.values == found.values) & (found.values != found.start)
        change = _lengths(found.values - found.start, both)
        apart, moved = _lengths(answers - found.values, both), _lengths(models - found.start, both)
        told = (both.sum(1) >= _ENOUGH) & (moved >= _MOVED * change)
        return float(torch.where(told, apart / change, math.inf).min())

    def remember(self, found: Sample) -> None:
        """Remember an answer that was admitted; where there are too many, every second one is forgotten."""
        if len(self._places) < _ENOUGH:
            return
        known = self.answers.setdefault(found.client, [])
        known.append((found.version, found.values))
        self.models.setdefault(found.version, found.start)
        if len(known) > _REMEMBERED:
            del known[1::2]  # the first and the newest stay
            used = {version for answers in self.answers.values() for version, _ in answers}
            self.models = {version: model for version, model in self.models.items() if version in used}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-ready data for a checkpoint."""
        rows = [(client, *entry) for client, known in sorted(self.answers.items()) for entry in known]
        if not rows:
            return {}, {"answers": [], "models": []}
        tensors = {
            "repeats.answers": torch.stack([answer for _, _, answer in rows]),
            "repeats.models": torch.stack(list(self.models.values())),
        }
        return tensors, {"answers": [row[:2] for row in rows], "models": list(self.models)}

    def restore(self, tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> None:
        """Continue from what `state()` has returned."""
        self.answers, self.models = {}, {}
        if data["answers"]:
            for (client, version), answer in zip(data["answers"], tensors["repeats.answers"].cpu(), strict=True):
                self.answers.setdefault(client, []).append((version, answer))
            self.models = dict(zip(data["models"], tensors["repeats.models"].cpu(), strict=True))

    def _sampled(self, update: Update, task: ClientTask) -> Tensor:
        """The update's values at our places."""
        places = self._places.to(update.values.device)
        order = None if update.natural else task.levels.order  # a whole model needs none, and making it takes time
        if order is None:
            return update.values[places].cpu()
        found = torch.full((len(places),), math.nan, device=update.values.device)
        levels = task.levels.levels[places]
        for level, (begin, end) in enumerate(itertools.pairwise([0, *task.levels.sizes[: task.level + 1]])):
            here = levels == level
            # Level order ascends within an increment.
            found[here] = update.values[begin + torch.searchsorted(order[begin:end], places[here])].to(found.dtype)
        return found.cpu()


def _lengths(differences: Tensor, both: Tensor) -> Tensor:
    return torch.where(both, differences, 0.0).square().sum(1).sqrt()
