"""FedGMR in one file: dense masks, plain loops, no care for speed. Read this first; the tests hold the library to it.

The method is that of "Breaking the Capacity Bottleneck in Model-Heterogeneous Federated Learning via Gradual Model
Restoration". Slow clients begin with a small nested sub-model. The server merges whatever has arrived by the next tick,
each coordinate over the clients that hold it. A client whose sub-model no longer improves moves up one density.

The library provides the data, the seeded draws and the order in which a client walks its samples. Batch norm, dropout
and augmentation are left out. Run this file to train on 5,000 MNIST images in less than a minute. Read next:
`fedgmr/federation.py`, the same loop for any fleet.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedgmr.seeding import generator
from fedgmr.tasks.mnist5k import mnist5k
from fedgmr.tasks.partition import SampleOrder
from fedgmr.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The method's constants; the names are those of a recipe."""

    ladder: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)  # the densities that a sub-model can have
    interval: int = 10  # k_rest: ticks between two checks, each followed by a new ranking
    patience: int = 2  # checks without improvement before a client moves up
    alpha: float = 0.5  # an update that is s ticks old weighs (1 + s)^-alpha
    floor: float = 0.02  # the share of every weight tensor that even the smallest sub-model keeps
    learning_rate: float = 0.15
    halving: float = math.inf  # ticks in which the learning rate halves
    batch_size: int = 20
    steps: int = 5  # mini-batches per task
    seed: int = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """The trained sub-model of one client."""

    version: int  # merges done when the client was sent its sub-model
    mask: Tensor  # bool [N]: the coordinates that the client holds
    values: Tensor  # float [N], zero outside the mask


class Ranking:
    """Gives every coordinate its level: the index of the smallest density whose sub-model keeps it."""

    def __init__(self, shapes: Sequence[torch.Size], settings: Settings) -> None:
        stops = list(accumulate(shape.numel() for shape in shapes))
        self.size, self.floor, self.ladder = stops[-1], settings.floor, settings.ladder
        # Only weights are ranked, tensors of two or more dimensions; biases are in every sub-model.
        self.tensors = [torch.arange(b - s.numel(), b) for b, s in zip(stops, shapes, strict=True) if len(s) > 1]

    def first(self, model: Tensor) -> Tensor:
        """Rank by magnitude within each tensor; the largest takes up the rounding, so that the totals are exact."""
        levels = torch.zeros(self.size, dtype=torch.long)
        by_size = sorted(self.tensors, key=len)
        left = self.counts(sum(map(len, by_size)))
        for tensor in by_size:
            wanted = left if tensor is by_size[-1] else self.counts(len(tensor))
            ends = [min(len(tensor), max(self.least(tensor), n)) for n in accumulate(wanted, max)]
            left = [total - n for total, n in zip(left, ends, strict=True)]
            levels[tensor[_descending(model[tensor].abs())]] = _cut(len(tensor), ends)
        return levels

    def refreshed(self, model: Tensor, previous: Tensor) -> Tensor:
        """Rank all weights together by Taylor importance, except that the floor of each tensor comes first."""
        magnitude, change = model.abs(), model - previous
        scores = torch.where(change.abs() > 2**-21 * magnitude, change * model, 0).square()  # less is rounding
        for tensor in self.tensors:
            scores[tensor[_descending(scores[tensor], magnitude[tensor])[: self.least(tensor)]]] = torch.inf
        levels, weights = torch.zeros(self.size, dtype=torch.long), torch.cat(self.tensors)
        order = _descending(scores[weights], magnitude[weights])
        levels[weights[order]] = _cut(len(weights), self.counts(len(weights)))
        return levels

    def counts(self, size: int) -> list[int]:
        """How many of `size` coordinates each level keeps: exactly density x size, rounded."""
        return [math.floor(density * size + 0.5) for density in self.ladder]

    def least(self, tensor: Tensor) -> int:
        """How many coordinates of a tensor every sub-model keeps."""
        return max(1, int(self.floor * len(tensor))) if self.floor > 0 else 0


def _descending(*keys: Tensor) -> Tensor:
    """Indices from the highest to the lowest; later keys decide between equal earlier ones, then the lower index."""
    order = torch.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[torch.sort(key[order], descending=True, stable=True).indices]
    return order


def _cut(size: int, ends: Sequence[int]) -> Tensor:
    """The level of each rank from 0 to size - 1: level l ends before rank ends[l]."""
    return torch.searchsorted(torch.tensor(ends), torch.arange(size), right=True)


class FedGMR:
    """The server, and its clients' training; when updates arrive is decided outside."""

    def __init__(self, task: Task, settings: Settings, densities: Sequence[float]) -> None:
        self.task, self.settings = task, settings
        self.module = task.initial_model(settings.seed)
        self.model = parameters_to_vector(self.module.parameters()).detach()
        self.ranking = Ranking([p.shape for p in self.module.parameters()], settings)
        self.levels = self.ranking.first(self.model)
        self.client_levels = [settings.ladder.index(density) for density in densities]
        self.checks = [(-math.inf, 0)] * len(densities)  # by client: best metric, checks since then
        self.tick = 0
        self.batches = [0] * len(densities)  # mini-batches that each client has been given
        self.in_flight: dict[int, Update] = {}
        self.buffer: dict[int, Update] = {}  # the latest update of each client; it stays for later merges

        indices, self.held_out = task.hold_out(settings.seed)
        shuffled = np.array_split(generator(settings.seed, "partition").permutation(indices), len(densities))
        self.order = SampleOrder(list(map(np.sort, shuffled)), seed=settings.seed, batch_size=settings.batch_size)

    def dispatch(self, clients: Iterable[int]) -> None:
        """Send each client its sub-model. It trains at once: only the arrival of its update takes time."""
        for client in clients:
            mask = self.levels <= self.client_levels[client]
            self.in_flight[client] = Update(version=self.tick, mask=mask, values=self.trained(client, mask))

    def trained(self, client: int, mask: Tensor) -> Tensor:
        """Local SGD on the masked model with the client's next mini-batches."""
        rate = self.settings.learning_rate * 0.5 ** (self.tick / self.settings.halving)
        (inputs, targets), values = self.task.train[:], self.model * mask
        for batch in self.order.batches(client, self.batches[client], self.settings.steps):
            vector_to_parameters(values, self.module.parameters())
            loss = self.task.loss(self.module(self.task.inputs(inputs[batch])), targets[batch])
            gradient = parameters_to_vector(torch.autograd.grad(loss, list(self.module.parameters())))
            values = (values - rate * gradient) * mask
        self.batches[client] += self.settings.steps
        return values

    def merge(self, arrived: Iterable[int]) -> None:
        """One tick: buffer what has arrived, merge the buffer, and when due check saturation and rank again."""
        self.buffer |= {client: self.in_flight.pop(client) for client in arrived}
        total, weight = torch.zeros_like(self.model), torch.zeros_like(self.model)
        for update in self.buffer.values():
            share = (1 + self.tick - update.version) ** -self.settings.alpha
            total += share * update.values
            weight[update.mask] += share
        previous, self.model = self.model, torch.where(weight > 0, total / weight, self.model)
        self.tick += 1
        if self.tick % self.settings.interval == 0:
            self.restore()
            self.levels = self.ranking.refreshed(self.model, previous)

    def restore(self) -> None:
        """Move each client whose sub-model has stopped improving up one level."""
        held_out = self.task.train[self.held_out]
        metrics = {level: self.accuracy(level, *held_out) for level in set(self.client_levels)}
        for client, level in enumerate(self.client_levels):
            best, waited = self.checks[client]
            self.checks[client] = (metrics[level], 0) if metrics[level] > best else (best, waited + 1)
            if self.checks[client][1] >= self.settings.patience and level < len(self.settings.ladder) - 1:
                self.client_levels[client], self.checks[client] = level + 1, (-math.inf, 0)

    @torch.no_grad()
    def accuracy(self, level: int, inputs: Tensor, targets: Tensor) -> float:
        """The share of samples that the sub-model at `level` classifies correctly."""
        vector_to_parameters(self.model * (self.levels <= level), self.module.parameters())
        correct, count = self.task.metrics[0].measure(self.module(self.task.inputs(inputs)), targets)
        return float(correct) / int(count)

    def densities(self) -> list[float]:
        """The density of each client's sub-model."""
        return [self.settings.ladder[level] for level in self.client_levels]


def main(ticks: int = 200) -> None:
    """Ten clients, six of them slow. A link carries its first density in one tick, a larger one in several."""
    links = (1.0, 0.5, 0.2, 0.1, *[0.05] * 6)
    server = FedGMR(mnist5k(), Settings(), links)
    due = dict.fromkeys(range(len(links)), 0)  # by client: the tick at which its update arrives
    print("tick  accuracy  density of each client")
    for tick in range(ticks + 1):
        free = [client for client, arrival in due.items() if arrival <= tick]
        if tick:
            server.merge(free)
        server.dispatch(free)
        due |= {client: tick + math.ceil(server.densities()[client] / links[client] - 1e-9) for client in free}
        if tick % 20 == 0:
            accuracy = server.accuracy(4, *server.task.test[:])
            print(f"{tick:4}  {accuracy:8.3f}  ", *(f"{density:4} " for density in server.densities()))


if __name__ == "__main__":
    torch.set_num_threads(1)  # the net is too small to share out
    main()
