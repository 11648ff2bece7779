"""A client's own side: its data by the node's settings, and tasks that are not what they say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict

from fedgmr import wire
from fedgmr.experiments.assembly import make_task
from fedgmr.experiments.dealing import deal
from fedgmr.flower.answers import Hello
from fedgmr.flower.client import client_app, client_node
from fedgmr.flower.client.client_app import app
from fedgmr.flower.client.client_node import ClientNode
from fedgmr.flower.messages import HELLO, Piece, make_content
from fedgmr.recipe import Recipe, recipe_from
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain
from fedgmr.submodels.levels import LevelMap
from flower.grid import partitions
from flower.runs import Deployed
from flower.test_packing import order, pack, task


def recipe(**sections: Any) -> Recipe:
    data = {"seconds": 1, "task": "e2e.tiny:few", "method": "fedgmr", "fleet": {"clients": 2}, "device": "cpu"}
    return recipe_from({**data, **sections})


def test_a_partition_is_the_simulations() -> None:
    plan = recipe(task="e2e.tiny:dense", fleet={"clients": 3})
    part, held_out = ClientNode(plan, {"partition-id": 2}).samples(2)
    assert part.tolist() == deal(plan, make_task(plan), 3)[0][2].tolist()
    assert held_out is None


def test_without_a_partition_all_samples_are_the_nodes_own() -> None:
    part, held_out = ClientNode(recipe(), {"task.samples": 20}).samples(1)
    assert part.tolist() == list(range(20))
    assert held_out is None
    plan = recipe(evaluation={"validation": "clients", "client_holdout": 0.25})
    part, held_out = ClientNode(plan, {"task.samples": 20}).samples(1)
    assert held_out is not None
    assert (len(part), len(held_out)) == (15, 5)
    assert sorted([*part, *held_out]) == list(range(20))


def test_a_node_introduces_itself() -> None:
    node = ClientNode(recipe(), {"task.samples": 20})
    owned = tuple(sorted(set(node.task.train.targets.tolist())))
    node.task.train.targets[:3] = torch.tensor([255, owned[-1] + 1, -100])  # a loss leaves them out, and so does this
    assert set(node.task.train.targets[3:].tolist()) == set(owned)
    hello = node.introduce("me", classes=owned[-1] + 1)
    assert hello == Hello(client_id="me", partition=-1, samples=20, classes=owned, layout=hello.layout)
    assert len(hello.layout) == 32
    assert ClientNode(recipe(), {}).introduce("", classes=0).classes == ()
    other = ClientNode(recipe(task="e2e.tiny:normed"), {}).introduce("", classes=0)
    assert other.layout != hello.layout


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"partition": 1}, "node-config has 'partition': give partition-id"),
        ({"partition-id": 2}, "partition-id is 2: give a number from 0 to 1"),
        ({"partition-id": -3}, "node-config has partition-id=-3: give a whole number, at least 0"),
        ({"partition-id": 1.5}, "node-config has partition-id=1.5: give a whole number"),
        ({"partition-id": "first"}, "node-config has partition-id=first: give a whole number"),
        ({"partition-id": 0, "num-partitions": 0}, "node-config has num-partitions=0: give a whole number, at least 1"),
        ({"task.sample": 3}, "task.options.sample is not a known key"),
    ],
)
def test_mistakes_in_a_nodes_settings(node: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ClientNode(recipe(task="e2e.tiny:few"), node).samples(0)


def test_nodes_with_their_own_data_take_part(tmp_path: Path) -> None:
    nodes = partitions(3, tmp_path)
    for number, node in enumerate(nodes.values()):
        node.config = {"task.samples": 30 + 10 * number, "state-dir": str(tmp_path / str(number)), "device": "cpu"}
    run = Deployed(
        nodes,
        tmp_path,
        task="e2e.tiny:few",
        sections={"evaluation": {"validation": "clients", "every_seconds": 1e6}, "training": {"batch_size": 5}},
        rules={"coordination": {"period": 10.0}, "interval": 3, "weighting": "samples"},
    ).drive(4)
    assert sorted(profile.samples for profile in run.server.profiles) == [27, 36, 45]  # less a tenth each
    assert sorted(run.server.weights.clients) == [0.75, 1.0, 1.25]
    assert run.server.updates == [4, 4, 4]
    told = [json.loads(line) for line in (tmp_path / "updates.jsonl").read_text().splitlines()]
    seconds = [event["client_seconds"]["train"] for event in told if event["event"] == "accepted"]
    assert seconds == pytest.approx([0.01] * 12)


def test_a_process_makes_data_and_training_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes with three tasks and a hello each; the same updates as from nodes that are made anew every time."""
    made: list[str] = []
    for name in ("make_task", "make_training"):
        monkeypatch.setattr(client_node, name, _counted(made, getattr(client_node, name)))
    kept = Deployed(partitions(2, tmp_path / "a"), None, clients=2).drive(3)
    assert sorted(made) == ["make_task"] * 2 + ["make_training"] * 2
    made.clear()
    monkeypatch.setattr(client_app, "_kept_node", client_app._kept_node.__wrapped__)
    anew = Deployed(partitions(2, tmp_path / "b"), None, clients=2).drive(3)
    assert sorted(made) == ["make_task"] * 2 * 4 + ["make_training"] * 2 * 3
    assert torch.equal(kept.server.model, anew.server.model)


def test_a_servers_recipe_imports_only_what_the_node_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGMR_TRUST")
    made = tmp_path / "made"
    text = json.dumps({**plain(recipe()), "task": {"name": "os:mkdir", "options": {"path": str(made)}}})
    message = Message(make_content({"recipe": text, "classes": 0}), dst_node_id=1, message_type=HELLO)

    def hello(trust: str) -> None:
        config = {"state-dir": str(tmp_path / "state"), "trust": trust}
        app(message, Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={}))

    with pytest.raises(SettingError, match=r"'os:mkdir', code .* not trusted here"):
        hello(trust="shutil")
    assert not made.exists()
    with pytest.raises(SettingError, match="which returned NoneType"):
        hello(trust="os")
    assert made.is_dir()


def _counted(made: list[str], make: Any) -> Any:
    def counting(*words: Any) -> Any:
        made.append(make.__name__)
        return make(*words)

    return counting


class _Node(ClientNode):
    """For the values of `test_packing` instead of a model's."""

    @property
    def layout(self) -> Any:  # type: ignore[override]
        import torch

        return type("Layout", (), {"size": 1000, "buffer_size": 3, "dtype": torch.float32})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda pieces: pieces[1:], "level"),
        (lambda pieces: pieces[:1], "level"),
        (lambda pieces: [pieces[0], pieces[0]], "level"),
        (lambda pieces: [pieces[0], Piece(span=(2, 3), data=pieces[0].data)], "level"),
        (lambda pieces: [pieces[0], Piece(span=(2, 3), data=pieces[1].data[:-1])], "length"),
        (lambda pieces: [Piece(span=(0, 1), data=b"x" * 60), pieces[1]], "magic"),
    ],
)
def test_values_that_are_not_as_announced_are_refused(change: Any, reason: str) -> None:
    _, packed = pack([task(0, 1), task(1, 3)])
    node, levels = _Node(recipe(), {}), packed.task.levels
    whole = node._model(order(packed), packed.values, levels, 5)
    assert np.array_equal(whole["model"].numpy(), packed.task.model.numpy())
    with pytest.raises(wire.Refused) as refused:
        node._model(order(packed), change(list(packed.values)), levels, 5)
    assert refused.value.reason == reason


def test_values_of_another_map_are_refused() -> None:
    (packed,) = pack([task(0, 3)])
    fewer = LevelMap.full(1000)
    with pytest.raises(wire.Refused):
        _Node(recipe(), {})._model(replace(order(packed), map_version=9), packed.values, fewer, 5)


def test_a_task_that_is_given_up_begins_with_the_same_velocity_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = {"kind": "sgd", "momentum": 0.9, "keep": True}
    training = {"batch_size": 10, "steps": 3, "learning_rate": 0.02, "optimizer": optimizer}
    nodes, answered = partitions(2, tmp_path), list[tuple[Message, bytes]]()

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            answered.append((message, reply.content.array_records["objects"]["update"].data))
        return reply

    nodes[1000].answer = answer
    run = Deployed(nodes, tmp_path, clients=2, sections={"training": training}).drive(3)
    message, accepted = answered[-1]
    assert message.content.config_records["settings"]["first-batch"] == 6
    assert "begins at zero" not in caplog.text
    for _ in range(2):
        run.grid._answer(nodes[1000], message)
    assert answered[-1][1] == answered[-2][1] == accepted, "with the velocity of the tasks before it"
    (tmp_path / "0" / "memory.safetensors").unlink()
    run.grid._answer(nodes[1000], message)
    assert answered[-1][1] != accepted
    assert "Client 0 has no velocity here for mini-batch 6: it begins at zero." in caplog.text
