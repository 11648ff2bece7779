"""What was simulated is what is deployed: with the same arrivals, a Flower fleet gives the same weights bit for bit.

A simulated run says when each update arrives. The same recipe then runs with the Flower fleet, its threads and
messages and the client's app, on a grid that delivers at those moments of virtual time.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flower.grid import RUN, FakeGrid, Message, Node, identify, partitions
from flower.virtual import VirtualClock

from equivalence.runs import BRISK, LINKS, SCALE, Moment, drive
from fedgmr.experiments.assembly import assemble, make_task, resolve
from fedgmr.fleets.drive import Drive
from fedgmr.flower.server.server_app import assemble_deployed
from fedgmr.recipe import Recipe, recipe_from

TICKS = 20
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedgmr": ("fedgmr", BRISK),
    "fedgmr without ims": ("fedgmr", {**BRISK, "ims": False}),
    "fedavg": ("fedavg", {}),
    "fedasync": ("fedasync", {}),
    "heterofl": ("heterofl", {}),
    "heterofl in the workflow": ("heterofl+aux+gmr", BRISK),
    "fjord": ("fjord", {}),
    "fedrolex": ("fedrolex", {"local": {"kind": "width_sgd", "norm": "batch"}}),
    "fiarse": ("fiarse", {}),
}
QUICK = [("fedgmr", "server"), ("fedgmr", "clients"), ("fedavg", "server"), ("heterofl", "clients")]
PAIRS = [(case, validation) for case in CASES for validation in ("server", "clients")]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    identify(monkeypatch)


def recipe(method: str, rules: dict[str, Any], **sections: Any) -> Recipe:
    data = {
        "seconds": 5000.0,
        "task": "e2e.tiny:normed",
        "method": {"name": method, **rules},
        "fleet": {"name": "custom", "links": list(LINKS), "scale": SCALE},
        "partition": {"kind": "dirichlet", "alpha": 1.0, "min_samples": 12},
        "training": {"learning_rate": 0.1, "batch_size": 10, "steps": 3},
        "device": "cpu",
        "deployment": {"first_task": 1e6, "shortest": 1e6},  # virtual links are slow, and nothing is to be given up
        **sections,
    }
    plain = recipe_from(data)
    return resolve(plain, make_task(plain))


def simulated(plan: Recipe) -> tuple[list[Moment], dict[int, list[float]]]:
    """The moments of a run, and by client when its updates arrive."""
    run = assemble(plan, make_task(plan))
    arrivals: dict[int, list[float]] = defaultdict(list)
    send = run.fleet.network.send

    def recorded(tasks: Any, now: float) -> Any:
        trips = send(tasks, now)
        for trip in trips:
            arrivals[trip.client].append(trip.arrival)
        return trips

    run.fleet.network.send = recorded  # type: ignore[method-assign]
    return drive(run, ticks=TICKS), arrivals


def deployed(
    plan: Recipe, arrivals: dict[int, list[float]], directory: Path, refused: Collection[str] = ()
) -> list[Moment]:
    """The same with the Flower fleet."""
    clock = VirtualClock()

    def arrival(node: Node, message: Message) -> float | None:
        if message.metadata.message_type != "train":
            return clock.now()
        return arrivals[node.config["partition-id"]].pop(0)

    grid = FakeGrid(clock, partitions(len(LINKS), directory), arrival)
    run = assemble_deployed(plan, grid, RUN, clock, None)
    moments = drive(run, ticks=TICKS)
    run.fleet.close()
    assert clock.problems == []
    assert set(run.fleet.refused) <= set(refused)
    return moments


@pytest.mark.parametrize("values", ["fp16", "bf16"])
def test_same_weights_with_values_in_16_bits(values: str, tmp_path: Path) -> None:
    plan = recipe("fedgmr", BRISK, network={"values": values})
    expected, arrivals = simulated(plan)
    moments = deployed(plan, arrivals, tmp_path)
    assert [moment.whole() for moment in moments] == [moment.whole() for moment in expected]
    exact, _ = simulated(recipe("fedgmr", BRISK))
    assert expected[-1].learned() != exact[-1].learned(), "the rounding is felt"
    assert expected[0].traffic < exact[0].traffic


@pytest.mark.parametrize(
    ("case", "validation"), [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS]
)
def test_same_weights(case: str, validation: str, tmp_path: Path) -> None:
    method, rules = CASES[case]
    plan = recipe(method, rules, evaluation={"validation": validation})
    expected, arrivals = simulated(plan)
    moments = deployed(plan, arrivals, tmp_path)
    assert [moment.learned() for moment in moments] == [moment.learned() for moment in expected]
    assert [moment.seconds for moment in moments] == [moment.seconds for moment in expected]
    clients = 2 * len(LINKS)
    assert [moment.traffic[:clients] for moment in moments] == [moment.traffic[:clients] for moment in expected]
    if plan.method.ims:  # Flower sends equal objects once in any case, a simulation only with IMS
        assert [moment.traffic[clients] for moment in moments] == [moment.traffic[clients] for moment in expected]
    if method == "fedgmr" and rules is BRISK:
        assert moments[-1].levels > moments[0].levels, "clients were restored on the way"
        assert len(set(moments[-1].staleness)) > 1


def test_levels_are_taken_back_alike(tmp_path: Path) -> None:
    """Both fleets tell how long a task took; on links that vary, clients go up and down by it."""
    rules = {**BRISK, "restoration": {"patience": 1, "retreat": {"periods": 1.5, "tasks": 1, "back": 1.0}}}
    links = [replace(link, trace=Drive(seconds=200)) for link in LINKS]
    plan = recipe("fedgmr", rules, fleet={"name": "custom", "links": links, "scale": SCALE})
    expected, arrivals = simulated(plan)
    moments = deployed(plan, arrivals, tmp_path)
    assert [moment.learned() for moment in moments] == [moment.learned() for moment in expected]
    levels = [moment.levels for moment in moments]
    steps = {b - a for one, other in pairwise(levels) for a, b in zip(one, other, strict=True)}
    assert {-1, 1} <= steps


def test_updates_are_shortened_alike(tmp_path: Path) -> None:
    """By a share that follows from the lengths of changes, of whole models too."""
    rules = {"coordination": {"period": 30.0}, "restoration": "none", "admission": {"beyond": "clip", "factor": 1.2}}
    rules["admission"] |= {"least": 0.01}
    plan = recipe("fedgmr", rules)
    expected, arrivals = simulated(plan)
    moments = deployed(plan, arrivals, tmp_path, refused={"clipped"})
    assert [moment.learned() for moment in moments] == [moment.learned() for moment in expected]


@pytest.mark.parametrize(("method", "rate"), [("fiarse", 0.12), ("fedasync", 0.3)])
def test_clients_that_diverge_are_judged_alike(method: str, rate: float, tmp_path: Path) -> None:
    """Their weights leave 16 bits; the server goes back to a good model, by which FIARSE ranks anew."""
    optimizer = {"kind": "sgd", "momentum": 0.9}
    training = {"learning_rate": rate, "batch_size": 30, "steps": 3, "optimizer": optimizer}
    sections = {"task": "e2e.tiny:numbers", "partition": "iid", "network": {"values": "fp16"}, "training": training}
    plan = recipe(method, {}, **sections)
    expected, arrivals = simulated(plan)
    moments = deployed(plan, arrivals, tmp_path, refused={"client-diverged", "change", "undone"})
    assert [moment.learned() for moment in moments] == [moment.learned() for moment in expected]


@pytest.mark.parametrize("method", ["fedgmr", "fedavg"])
def test_everybody_in_turn(method: str, tmp_path: Path) -> None:
    plan = recipe(method, CASES[method][1], participation={"count": 2, "policy": "round_robin"})
    expected, arrivals = simulated(plan)
    moments = deployed(plan, arrivals, tmp_path)
    assert [moment.learned() for moment in moments] == [moment.learned() for moment in expected]
    assert [moment.seconds for moment in moments] == [moment.seconds for moment in expected]


@pytest.mark.parametrize("method", ["fedgmr", "fedavg"])
def test_real_nodes_are_asked_by_what_was_measured(method: str, tmp_path: Path) -> None:
    """A task of client c takes c + 1 s. Who they are shows in the first tasks, and then the two fastest go on."""
    rules = {**CASES[method][1], **({"coordination": {"period": 6.0}} if method == "fedgmr" else {})}
    plan = recipe(method, rules, participation={"count": 2, "policy": "fastest"})
    clock = VirtualClock()

    def arrival(node: Node, message: Message) -> float:
        return clock.now() + (node.config["partition-id"] + 1 if message.metadata.message_type == "train" else 0)

    run = assemble_deployed(plan, FakeGrid(clock, partitions(len(LINKS), tmp_path), arrival), RUN, clock, None)
    moments = drive(run, ticks=6)
    run.fleet.close()
    assert clock.problems == []
    assert run.server.seconds_of == pytest.approx({client: client + 1.0 for client in range(5)}, abs=0.01)
    # Two at a time: 0 and 1; 2 and 3; 4 and 0; then 0 and 1 again and again.
    assert moments[-1].updates == (5, 4, 1, 1, 1)
    assert sorted(run.server.losses.known) == list(range(5))


@pytest.mark.parametrize("method", ["fedgmr", pytest.param("fjord", marks=pytest.mark.slow)])
def test_same_weights_where_nodes_keep_their_momentum(method: str, tmp_path: Path) -> None:
    optimizer = {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.001, "keep": True}
    training = {"learning_rate": 0.02, "batch_size": 10, "steps": 3}
    rules = BRISK if method == "fedgmr" else {}
    plan = recipe(method, rules, training={**training, "optimizer": optimizer})
    expected, arrivals = simulated(plan)
    moments = deployed(plan, arrivals, tmp_path)
    assert [moment.learned() for moment in moments] == [moment.learned() for moment in expected]
    forgetful, _ = simulated(recipe(method, rules, training={**training, "optimizer": optimizer | {"keep": False}}))
    assert expected[-1].learned() != forgetful[-1].learned(), "what is kept matters"
    assert expected[0].traffic == forgetful[0].traffic, "and does not travel"
