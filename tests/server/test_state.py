"""The server's memory for a checkpoint: every distinct tensor once, and files written before that was so."""

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from e2e import tiny
from equivalence.runs import BRISK, drive, objects, same

from fedgmr.experiments.assembly import Assembly
from fedgmr.experiments.checkpoint import Checkpoint, load_checkpoint
from fedgmr.federation import federate
from fedgmr.server.restoration import Memory, Watcher
from fedgmr.server.state import restore_state, save_state

MODELS = ("model", "previous", "models.")
TICKS = 15


def some_run() -> Assembly:
    """Stale tasks of several versions and level maps are in flight, and clients are buffered."""
    run = objects(tiny.normed(), "fedgmr", BRISK)
    drive(run, ticks=TICKS)
    return run


def test_every_tensor_is_stored_once() -> None:
    server = some_run().server
    tensors, data = save_state(server)
    assert {task.version for task in server.dispatched.values()} == {TICKS - 1, TICKS}
    assert {task.map_version for task in server.dispatched.values()} == {server.map_version - 1, server.map_version}
    assert data["same"][f"models.{server.tick}"] == "model"
    models = [tensor for name, tensor in tensors.items() if name.startswith(MODELS)]
    assert len(models) == 2, "the current model, and the one before, from which a task in flight was cut"
    assert not any(same(one, other) for one, other in combinations(models, 2))


def test_a_restored_server_has_the_same_state() -> None:
    run, twin = some_run(), objects(tiny.normed(), "fedgmr", BRISK)
    tensors, data = save_state(run.server)
    restore_state(twin.server, tensors, json.loads(json.dumps(data)))
    again, more = save_state(twin.server)
    assert json.dumps(more) == json.dumps(data)
    assert list(again) == list(tensors)
    assert all(same(again[name], tensor) for name, tensor in tensors.items())
    assert {task.model is twin.server.model for task in twin.server.dispatched.values() if task.version == TICKS} == {
        True
    }


@pytest.mark.parametrize("keep", [True, False])
def test_a_restored_server_has_the_same_padded_model(keep: bool) -> None:
    rules = {**BRISK, "buffer": {"keep": keep}}
    run, twin = (objects(tiny.normed(), "fedgmr", rules) for _ in range(2))
    drive(run, ticks=TICKS)
    run.server.merge([], 1e6)  # a merge without updates: the last ones stay
    tensors, data = save_state(run.server)
    restore_state(twin.server, tensors, json.loads(json.dumps(data)))
    found, again = run.server.padded(), twin.server.padded()
    assert found is not None
    assert again is not None
    assert all(same(one, other) for one, other in zip(found, again, strict=True))
    assert any(run.server.weights.on_arrival)
    assert twin.server.weights.on_arrival == run.server.weights.on_arrival


def test_older_files_that_store_a_tensor_under_each_name_are_read() -> None:
    run, twin = some_run(), objects(tiny.normed(), "fedgmr", BRISK)
    tensors, data = save_state(run.server)
    del data["on_arrival"], data["memory"], data["own_metrics"], data["last_tasks"], data["presets"]
    data["detectors"] = [row[:3] for row in data["detectors"]]  # without hold-off
    assert data["detectors"]
    assert any(level > 0 for _, level in data["restored"])
    data["restored"] = [client for client, _ in data["restored"]]  # without the level
    older = tensors | {name: tensors[first].clone() for name, first in data.pop("same").items()}
    restore_state(twin.server, older, data)
    for client, task in run.server.dispatched.items():
        assert same(twin.server.dispatched[client].model, task.model)
        assert same(twin.server.dispatched[client].buffers, task.buffers)
    assert same(twin.server.model, run.server.model)
    assert twin.server.restored == run.server.restored
    assert {i: vars(watcher) for i, watcher in twin.server.memory.clients.items()} == {
        i: vars(watcher) for i, watcher in run.server.memory.clients.items()
    }


@pytest.mark.parametrize(
    "rules",
    [
        {"aggregation": {"over": "arrivals", "mix": True}, "buffer": {"keep": False}},
        {"aggregation": {"over": "arrivals"}},
        {"aggregation": {"mix": True}, "buffer": {"aging": False}},
        {"aggregation": {"kind": "zero_padded", "over": "arrivals"}},
        {"aggregation": {"kind": "gradient_average", "reference": "current", "over": "arrivals"}},
        {"restoration": {"patience": 1, "hold_off": 2, "metric": "own_update", "server": True}},
        {"restoration": {"patience": 1, "hold_off": 1, "server": True}, "buffer": {"keep": False}},
    ],
)
def test_a_run_cut_by_a_checkpoint_is_the_same_run(rules: dict[str, Any], tmp_path: Path) -> None:
    def run() -> Assembly:
        return objects(tiny.normed(), "fedgmr", {**BRISK, **rules})

    whole, cut, rest = run(), run(), run()
    expected = drive(whole, ticks=2 * TICKS)[-1]
    drive(cut, ticks=TICKS)
    Checkpoint.of(cut.server, cut.fleet, recorded=0).write(tmp_path, keep=1)
    load_checkpoint(tmp_path, rest.server, rest.fleet)
    federate(rest.server, rest.fleet, seconds=1e9, stop=lambda: rest.server.tick == 2 * TICKS, resumed=True)
    assert same(rest.server.model, expected.model)
    assert same(rest.server.buffers, expected.buffers)
    padded = whole.server.padded(), rest.server.padded()
    assert all(same(one, other) for one, other in zip(*padded, strict=True))  # type: ignore[arg-type]
    tensors, data = save_state(whole.server)
    again, more = save_state(rest.server)
    assert data == more
    assert all(same(again[name], tensor) for name, tensor in tensors.items())


def test_what_restoration_remembers_is_restored() -> None:
    run, twin = (objects(tiny.normed(), "fedgmr", BRISK) for _ in range(2))
    memory = run.server.memory = Memory(
        clients={1: Watcher(best=0.5, waited=2, hold=3), 3: Watcher(hold=1)},
        server=Watcher(best=0.25, waited=1),
        seen=0.125,
        armed=True,
        floor=1,
        pause=4,
    )
    run.server.own_metrics = {0: 0.75, 3: 0.0}
    tensors, data = save_state(run.server)
    restore_state(twin.server, tensors, json.loads(json.dumps(data)))
    again = twin.server.memory
    assert {i: vars(watcher) for i, watcher in again.clients.items()} == {
        1: {"best": 0.5, "waited": 2, "hold": 3},
        3: {"best": -math.inf, "waited": 0, "hold": 1},
    }
    assert vars(again.server) == vars(memory.server)
    assert (again.seen, again.armed, again.floor, again.pause) == (0.125, True, 1, 4)
    assert twin.server.own_metrics == run.server.own_metrics
