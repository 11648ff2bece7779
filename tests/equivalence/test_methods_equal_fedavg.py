"""Density 1 everywhere, synchronous, all labels alike: every method's server is FedAvg's, mostly its clients too."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from e2e import tiny
from torch import Tensor
from torch.nn import functional

from equivalence.runs import LINKS, drive, objects, same
from fedgmr import Task
from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments.assembly import Assembly
from fedgmr.seeding import generator
from fedgmr.tasks.partition import IID, Pool, SampleOrder

ROUNDS = 4
DENSE_LINKS = [replace(link, density=1.0) for link in LINKS[:4]]
SYNCHRONOUS = {"coordination": "synchronous"}
NO_LABELS = {"aggregation": {"label_aware": False}}
# What has to be said besides density 1 for everybody.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedgmr": ("fedgmr", {**SYNCHRONOUS, "interval": 2, "restoration": {"patience": 1}}),
    "fedgmr growing only": ("fedgmr", {**SYNCHRONOUS, "interval": 1, "ranking": {"refresh": "grow_only"}}),
    "fedgmr of widths": ("fedgmr", {**SYNCHRONOUS, "ranking": "width_prefix"}),
    "heterofl": ("heterofl", NO_LABELS),
    "fjord": ("fjord", {}),
    "fjord, distilled": ("fjord", {"local": {"distillation": True}}),
    "fedrolex": ("fedrolex", NO_LABELS),
    "fiarse": ("fiarse", {}),
    "fiarse, layerwise": ("fiarse", {"ranking": {"scope": "layerwise"}, "local": {"scope": "layerwise"}}),
    "heterofl, kept": ("heterofl", {**NO_LABELS, "buffer": {"keep": True}}),
}
ONE_LEVEL: dict[str, Any] = {"ladder": [1.0]}
# Where a client of density 1 does plain SGD; FIARSE's own rule does not.
SAME_TRAINING: dict[str, tuple[str, dict[str, Any]]] = {
    "fedgmr": ("fedgmr", {**SYNCHRONOUS, "interval": 2}),
    "heterofl": ("heterofl", NO_LABELS),
    "fedrolex": ("fedrolex", NO_LABELS),
    "fjord of one level": ("fjord", ONE_LEVEL),
    "fedgmr of one level": ("fedgmr", {**SYNCHRONOUS, **ONE_LEVEL, "restoration": None}),
    "heterofl of one level": ("heterofl", {**NO_LABELS, **ONE_LEVEL}),
    "fiarse with plain steps": ("fiarse", {"local": "sgd"}),
}


class Invented:
    """An executor whose clients' models are the same whichever the method: a named step away from what they got."""

    ahead = False

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        return [self._update(task) for task in tasks]

    def _update(self, task: ClientTask) -> Update:
        draw = generator(7, "step", task.client, task.version)
        step = torch.from_numpy(draw.standard_normal(len(task.model), dtype="float32"))
        buffers = task.buffers
        if len(buffers):
            block = torch.from_numpy(draw.random(32, dtype="float32"))  # of one width of the net below
            buffers = buffers + block.repeat(len(buffers) // 32)
        values = task.levels.pack(task.model + 0.1 * step, task.level)
        return Update(client=task.client, version=task.version, values=values, buffers=buffers, loss=1.0)


def ends(run: Assembly) -> list[tuple[Tensor, Tensor]]:
    """Model and statistics of the whole model after every round."""
    moments = drive(run, ticks=ROUNDS)
    assert [moment.tick for moment in moments] == list(range(1, ROUNDS + 1))
    assert set(run.server.staleness) == {0}
    size = run.server.layout.buffer_size
    return [(moment.model, moment.buffers[len(moment.buffers) - size :]) for moment in moments]


def invented(method: str, rules: dict[str, Any], make: Callable[[], Task] = tiny.normed) -> list[tuple[Tensor, Tensor]]:
    run = objects(make(), method, rules, links=DENSE_LINKS, seed=3)
    run.fleet.executor = Invented()
    return ends(run)


@pytest.mark.parametrize("one_level", [False, True])
@pytest.mark.parametrize("composition", METHODS)
def test_given_equal_client_models_the_server_is_fedavgs(composition: str, one_level: bool) -> None:
    method, rules = METHODS[composition]
    if one_level:
        rules = {**rules, **ONE_LEVEL, "restoration": None}
        if composition == "fjord, distilled":
            rules = {**rules, "local": {"distillation": False}}
    expected = invented("fedavg", {})
    for mine, fedavgs in zip(invented(method, rules), expected, strict=True):
        assert same(mine[0], fedavgs[0])
        assert same(mine[1], fedavgs[1])
    assert not same(expected[0][0], expected[-1][0])


def test_fedavgs_server_is_the_mean() -> None:
    """The other side of the equality above, in a few lines."""
    run = objects(tiny.normed(), "fedavg", links=DENSE_LINKS, seed=3)
    model = run.server.model
    executor = run.fleet.executor = Invented()
    drive(run, ticks=1)
    task = run.server.dispatched[0]
    tasks = [replace(task, client=client, version=0, model=model) for client in range(4)]
    mean = torch.stack([update.values for update in executor.train(tasks)]).mean(0)
    assert torch.allclose(run.server.model, mean, rtol=0, atol=1e-7)


def test_weights_by_samples_are_the_same_for_every_method() -> None:
    expected = invented("fedavg", {"weighting": "samples"})
    found = invented("heterofl", {**NO_LABELS, "weighting": "samples"})
    assert all(same(mine[0], fedavgs[0]) for mine, fedavgs in zip(found, expected, strict=True))


def test_below_density_one_they_part() -> None:
    """The equality above would hold if rankings and levels were ignored."""
    merged = []
    for composition in ("heterofl", "fedrolex", "fiarse", "fedgmr"):
        method, rules = METHODS[composition]
        run = objects(tiny.normed(), method, rules, seed=3)
        run.fleet.executor = Invented()
        merged.append(drive(run, ticks=2)[-1].model)
    run = objects(tiny.normed(), "fedavg", seed=3)
    run.fleet.executor = Invented()
    merged.append(drive(run, ticks=2)[-1].model)
    assert len({tuple(model.tolist()) for model in merged}) == 5


def test_labels_make_a_difference_where_clients_lack_some() -> None:
    skewed = {"kind": "dirichlet", "alpha": 0.1, "min_samples": 5}

    def end(rules: dict[str, Any], **more: Any) -> Tensor:
        run = objects(tiny.normed(), "heterofl", rules, links=DENSE_LINKS, seed=3, **more)
        run.fleet.executor = Invented()
        return ends(run)[-1][0]

    on, off = end({}, partition=skewed), end(NO_LABELS, partition=skewed)
    rows = 4 * 144 + 4  # the output layer comes last
    assert same(on[:-rows], off[:-rows])
    assert not same(on[-rows:], off[-rows:])
    assert torch.allclose(end({}), end(NO_LABELS), rtol=0, atol=1e-6), "all have all classes"


def trained(make: Callable[[], Task], method: str, rules: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    return ends(objects(make(), method, rules, links=DENSE_LINKS, seed=3))


@pytest.mark.parametrize("make", [tiny.dense, tiny.normed, tiny.dropped])
@pytest.mark.parametrize("composition", SAME_TRAINING)
def test_whole_runs_are_fedavgs(composition: str, make: Callable[[], Task]) -> None:
    method, rules = SAME_TRAINING[composition]
    if make is tiny.dense:
        rules = {"ladder": [0.2, 0.5, 1.0], **rules}  # too few units for all five
    expected = trained(make, "fedavg", {})
    for mine, fedavgs in zip(trained(make, method, rules), expected, strict=True):
        assert same(mine[0], fedavgs[0])
    assert not same(expected[0][0], expected[-1][0])


@pytest.mark.parametrize("method", ["heterofl", "fjord"])
def test_running_statistics_are_fedavgs(method: str) -> None:
    rules: dict[str, Any] = {**NO_LABELS, "local": {"norm": "tracked"}} if method == "heterofl" else ONE_LEVEL
    for mine, fedavgs in zip(trained(tiny.normed, method, rules), trained(tiny.normed, "fedavg", {}), strict=True):
        assert same(mine[1], fedavgs[1])


def test_fiarses_clients_do_something_else() -> None:
    """At density 1 theta is the smallest magnitude, nearly 0: its factor makes a small difference, and does."""
    fiarse, plain = trained(tiny.normed, "fiarse", {})[0][0], trained(tiny.normed, "fedavg", {})[0][0]
    distance = float(torch.linalg.vector_norm(fiarse - plain) / torch.linalg.vector_norm(plain))
    assert 0 < distance < 1e-2


@pytest.mark.parametrize("make", [tiny.dense, tiny.normed])
def test_fedasync_of_one_client_at_rate_one_is_sequential_sgd(make: Callable[[], Task]) -> None:
    """With its own staleness weights: the staleness of the only client is always 0."""
    task = make()
    run = objects(task, "fedasync", {"aggregation": {"rate": 1.0}}, links=LINKS[:1])
    moments = drive(run, ticks=6)
    net = task.initial_model(0).train()
    parameters = list(net.parameters())
    indices, _ = task.hold_out(0)
    dealt = IID().deal(Pool(indices=indices, labels=None, users=None, clients=1, seed=0))
    assert np.array_equal(dealt[0], np.sort(indices))
    for number, batch in enumerate(SampleOrder(dealt, seed=0, batch_size=10).batches(0, 0, 18), start=1):
        loss = functional.cross_entropy(net(task.train.inputs[batch]), task.train.targets[batch])
        with torch.no_grad():
            for tensor, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                tensor.add_(gradient, alpha=-0.1)
        if number % 3 == 0:
            assert same(moments[number // 3 - 1].model, torch.cat([p.detach().reshape(-1) for p in parameters]))
