"""Per client: figures by hand, the very models that clients would be handed, and fine-tuning as plain SGD."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from e2e import tiny
from e2e.recipes import FLEET, recipe
from torch.nn import functional

import fedgmr
from fedgmr import metrics
from fedgmr.experiments.assembly import assemble, resolve
from fedgmr.experiments.client_scores import ClientScores, client_figures, jain_index
from fedgmr.experiments.dealing import deal
from fedgmr.pages.watch import Watch
from fedgmr.recipe import recipe_from
from fedgmr.reporting import compare_runs
from fedgmr.tasks.partition import SampleOrder

EVALUATION = {"every_seconds": 40.0, "clients": 3, "client_holdout": 0.25}
TRAINING = {"learning_rate": 0.1, "batch_size": 10, "steps": 2}


def test_jains_index() -> None:
    assert [jain_index([0.5, 0.5, 0.5]), jain_index([0.0, 0.0])] == [1.0, 1.0], "all the same"
    assert jain_index([1.0, 0.0, 0.0]) == pytest.approx(1 / 3), "one has all"
    assert jain_index([1.0, 2.0, 3.0]) == pytest.approx(36 / (3 * 14))
    assert jain_index([-1.0, 1.0]) is None


def test_figures_by_hand() -> None:
    measured: Any = [SimpleNamespace(accuracy=value, loss=1 - value) for value in (0.4, 0.2, 1.0, 0.6, 0.8)]
    figures = client_figures(measured, metrics.accuracy())
    assert figures["accuracy"] == [0.4, 0.2, 1.0, 0.6, 0.8]
    assert figures["loss"][1] == pytest.approx(0.8)
    # Places 0, 1, ... 4 of the sorted values are the percentiles 0, 25, ... 100.
    spread = [figures[name] for name in ("mean", "std", "p10", "p50", "p90", "worst", "worst_client", "jain")]
    assert spread == pytest.approx([0.6, math.sqrt(0.08), 0.28, 0.6, 0.92, 0.2, 1, 9 / (5 * 2.2)])
    error = client_figures(measured, metrics.mae())
    assert [error["worst"], error["worst_client"]] == [1.0, 2], "the largest error"
    broken: Any = [SimpleNamespace(accuracy=math.inf, loss=math.nan), SimpleNamespace(accuracy=2.0, loss=1.0)]
    figures = client_figures(broken, metrics.mae())
    assert [figures["accuracy"], figures["loss"], figures["mean"]] == [[None, 2.0], [None, 1.0], 2.0]


def _simulate(**evaluation: Any) -> fedgmr.Result:
    return fedgmr.simulate(
        tiny.normed(seed=3),
        method=fedgmr.named_method("fedgmr", {"interval": 3, "restoration": {"patience": 1}}),
        fleet=FLEET,
        seconds=300.0,
        seed=3,
        partition={"kind": "dirichlet", "alpha": 1.0, "min_samples": 10},
        training=TRAINING,
        evaluation={**EVALUATION, **evaluation},
        progress=False,
    )


def test_clients_are_measured_with_the_models_they_would_be_handed(tmp_path: Path) -> None:
    result = _simulate(personal=2)
    rows = result.history.rows
    assert [number for number, row in enumerate(rows) if "clients" in row] == [0, 3, 6, len(rows) - 1]
    task, clients = tiny.normed(seed=3), rows[-1]["clients"]
    parts, held_out = deal(result.recipe, task, 5)
    assert held_out is not None
    assert [len(own) for own in held_out] == [
        round(0.25 * (len(own) + len(part))) for own, part in zip(held_out, parts, strict=True)
    ]
    assert not set(np.concatenate(parts)) & set(np.concatenate(held_out))
    assert len(set(result.history.level[-1])) > 1
    for client, own in enumerate(held_out):
        inputs, targets = task.train[own]
        with torch.no_grad():
            outputs = result.model_for(client)(inputs)
        assert clients["accuracy"][client] == pytest.approx((outputs.argmax(1) == targets).float().mean().item())
        assert clients["loss"][client] == pytest.approx(functional.cross_entropy(outputs, targets).item(), rel=1e-5)
    personal = result.summary["personal"]
    assert personal["steps"] == 2
    assert personal["before"] == clients
    assert personal["after"]["loss"] != clients["loss"]
    assert result.history.of_clients("worst")[-1] == min(clients["accuracy"])
    assert np.isnan(result.history.of_clients("jain")[1])
    assert result.history.client_table()[-1]["clients.accuracy"] == clients["accuracy"][-1]

    watch = Watch([result.save(tmp_path / "run")])
    assert watch.state()["runs"][0]["summary"]["personal"] == personal
    shown = watch.columns(0, 0, 0)
    assert shown is not None
    assert [shown["columns"][f"clients {name}"][-1] for name in ("p10", "jain")] == [clients["p10"], clients["jain"]]
    assert shown["clients"]["own"][-1] == clients["accuracy"]
    assert shown["clients"]["own"][1] == [None] * len(clients["accuracy"])
    comparison = compare_runs([tmp_path / "run"], clients=True)
    header, row = comparison.table()
    assert header[-3:] == ["10th percentile (%)", "worst client (%)", "Jain's index"]
    assert row[-3:] == [f"{100 * clients['p10']:.2f}", f"{100 * clients['worst']:.2f}", f"{clients['jain']:.3f}"]
    lines = [line.split(",") for line in comparison.csv().splitlines()]
    assert float(dict(zip(*lines, strict=True))["client_worst"]) == clients["worst"]
    assert "client_worst" not in compare_runs([tmp_path / "run"]).csv()


def test_measuring_changes_nothing_else() -> None:
    often, seldom = ([_without(row) for row in _simulate(clients=every).history] for every in (1, 100))
    assert often == seldom
    settings = {"seconds": 300.0, "partition": {"kind": "dirichlet", "alpha": 1.0, "min_samples": 10}}
    task, plain = tiny.normed(seed=3), recipe_from(recipe("normed", **settings))
    parts, held_out = deal(plain, task, 5)
    assert held_out is None
    measured = recipe_from(recipe("normed", evaluation=EVALUATION, **settings))
    again, out = deal(measured, task, 5)
    assert out is not None
    for whole, part, own in zip(parts, again, out, strict=True):
        assert sorted([*part, *own]) == whole.tolist(), "the same samples, of which some are held out"


def _without(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("wall", "clients")}


def test_fine_tuning_is_plain_sgd_on_the_clients_own_samples() -> None:
    task = tiny.dense(seed=3)
    links = [{"down": 20, "up": 5, "density": 1.0}] * 3
    data = recipe("dense", "fedavg", fleet={"name": "custom", "links": links}, evaluation={**EVALUATION, "personal": 4})
    run = assemble(resolve(recipe_from(data), task), task)
    found = ClientScores(run).personal()["personal"]
    parts, held_out = deal(run.recipe, task, 3)
    assert held_out is not None
    order = SampleOrder(parts, seed=3, batch_size=10)
    for client, own in enumerate(held_out):
        model = task.initial_model(3)
        inputs, targets = task.train[own]
        for name in ("before", "after"):
            loss = functional.cross_entropy(model(inputs), targets).item()
            assert found[name]["loss"][client] == pytest.approx(loss, rel=1e-5)
            for batch in order.batches(client, 0, 4):
                samples, labels = task.train[batch]
                gradients = torch.autograd.grad(functional.cross_entropy(model(samples), labels), [*model.parameters()])
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.data -= 0.1 * gradient
    assert found["after"]["loss"] != found["before"]["loss"]
