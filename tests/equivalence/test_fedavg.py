"""With density 1 everywhere FedGMR is FedAvg, and FedAvg is a loop of thirty lines; FedAsync of one client is SGD."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from e2e import tiny
from torch import Tensor
from torch.nn import functional

from equivalence.runs import LINKS, distance, drive, objects, same
from fedgmr import Task
from fedgmr.tasks.partition import IID, Pool, SampleOrder

CLIENTS, ROUNDS, STEPS, BATCH = 4, 6, 3, 10
DENSE_LINKS = [replace(link, density=1.0) for link in LINKS[:CLIENTS]]
TRAINING = {"learning_rate": 0.1, "batch_size": BATCH, "steps": STEPS, "schedule": {"kind": "halving", "every": 4}}
FULL_FEDGMR = {"coordination": "synchronous", "interval": 2, "restoration": {"patience": 1}}
COMPOSITIONS = {"fedavg": ("fedavg", {}), "fedgmr": ("fedgmr", FULL_FEDGMR)}

Model = list[Tensor]  # parameters, then float buffers


def plain_fedavg(task: Task, *, clients: int, rounds: int, seed: int) -> list[Model]:
    """FedAvg as a textbook has it: the global model after every round."""
    indices, _ = task.hold_out(seed)
    pool = Pool(indices=indices, labels=None, users=None, clients=clients, seed=seed)
    order = SampleOrder(IID().deal(pool), seed=seed, batch_size=BATCH)
    net = task.initial_model(seed).train()
    parameters = list(net.parameters())
    state = [*parameters, *(buffer for buffer in net.buffers() if buffer.is_floating_point())]
    inputs, targets = task.train[:]
    whole = [tensor.detach().clone() for tensor in state]
    history = []
    for number in range(rounds):
        rate = 0.1 * 0.5 ** (number / 4)
        total = [torch.zeros_like(tensor) for tensor in whole]
        for client in range(clients):
            with torch.no_grad():
                for tensor, value in zip(state, whole, strict=True):
                    tensor.copy_(value)
            for batch in order.batches(client, number * STEPS, STEPS):
                loss = functional.cross_entropy(net(inputs[batch]), targets[batch])
                with torch.no_grad():
                    for tensor, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                        tensor.add_(gradient, alpha=-rate)
            with torch.no_grad():
                for summed, tensor in zip(total, state, strict=True):
                    summed.add_(tensor)
        whole = [summed / clients for summed in total]
        history.append(whole)
    return history


def flat(model: Model) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in model])


def federated(task: Task, method: str, rules: dict[str, Any], seed: int = 0) -> list[Tensor]:
    """Parameters and buffers after every round, in one vector each."""
    run = objects(task, method, rules, links=DENSE_LINKS, seed=seed, training=TRAINING)
    moments = drive(run, ticks=ROUNDS)
    assert [moment.tick for moment in moments] == list(range(1, ROUNDS + 1))
    return [torch.cat([moment.model, moment.buffers]) for moment in moments]


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("make", [tiny.dense, tiny.normed])
def test_density_one_synchronous_is_fedavg(make: Callable[[], Task], composition: str) -> None:
    task = make()
    found = federated(task, *COMPOSITIONS[composition], seed=3)
    expected = [flat(model) for model in plain_fedavg(task, clients=CLIENTS, rounds=ROUNDS, seed=3)]
    for mine, plain in zip(found, expected, strict=True):
        assert same(mine, plain)
    assert not same(expected[0], expected[-1])  # it has learned something


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("make", [tiny.dense, tiny.normed])
def test_aggregations_coincide_at_density_one(make: Callable[[], Task], composition: str) -> None:
    method, rules = COMPOSITIONS[composition]
    aware, padded, averaged = (
        federated(make(), method, {**rules, "aggregation": kind})
        for kind in ("mask_aware", "zero_padded", "gradient_average")
    )
    assert all(map(same, aware, padded))
    assert max(map(distance, averaged, aware)) < 1e-6


def test_aggregations_differ_below_density_one() -> None:
    """The test above would pass if the setting were ignored; here the three must part."""
    merged = []
    for kind in ("mask_aware", "zero_padded", "gradient_average"):
        run = objects(tiny.dense(), "fedgmr", {"coordination": "synchronous", "aggregation": kind})
        merged.append(drive(run, ticks=1)[0].model)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert distance(merged[one], merged[other]) > 1e-3


@pytest.mark.parametrize("make", [tiny.dense, tiny.normed])
def test_fedasync_of_one_client_is_sequential_sgd(make: Callable[[], Task]) -> None:
    task = make()
    rules = {"aggregation": {"rate": 1.0}, "staleness": "constant"}
    training = {"learning_rate": 0.1, "batch_size": BATCH, "steps": STEPS}
    run = objects(task, "fedasync", rules, links=LINKS[:1], training=training)
    moments = drive(run, ticks=8)

    net = task.initial_model(0).train()
    parameters = list(net.parameters())
    indices, _ = task.hold_out(0)
    dealt = IID().deal(Pool(indices=indices, labels=None, users=None, clients=1, seed=0))
    batches = SampleOrder(dealt, seed=0, batch_size=BATCH).batches(0, 0, 8 * STEPS)
    assert sorted(np.unique(batches)) == sorted(indices)  # more than an epoch
    for number, batch in enumerate(batches, start=1):
        loss = functional.cross_entropy(net(task.train.inputs[batch]), task.train.targets[batch])
        with torch.no_grad():
            for tensor, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                tensor.add_(gradient, alpha=-0.1)
        if number % STEPS == 0:
            moment = moments[number // STEPS - 1]
            assert same(moment.model, flat([p.detach() for p in parameters]))
            assert same(moment.buffers, flat([b for b in net.buffers() if b.is_floating_point()] or [torch.empty(0)]))
