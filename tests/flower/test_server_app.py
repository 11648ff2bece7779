"""The server's app from its configuration to a run directory, and again from a checkpoint."""

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict

from fedgmr.exchange import Diverged
from fedgmr.experiments import rundir
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import read_recipe
from fedgmr.flower.server import server_app
from fedgmr.flower.server.server_app import run
from fedgmr.recipe import recipe_from
from fedgmr.reporting.display import Display
from fedgmr.reporting.records import read_run
from fedgmr.reporting.watcher import Stop, Watcher
from fedgmr.settings.refusals import SettingError
from flower.grid import RUN, FakeGrid, Node, partitions
from flower.runs import Deployed
from flower.test_faults import diverged, journal
from flower.virtual import VirtualClock

RECIPE = {
    "name": "small",
    "seconds": 65.0,
    "task": "e2e.tiny:dense",
    "method": {"name": "fedgmr", "coordination": {"period": 10.0}},
    "fleet": {"clients": 3},
    "evaluation": {"every_seconds": 20.0},
    "checkpoint": {"every": 1, "keep": 2},
    "deployment": {"shortest": 30.0},
    "device": "cpu",
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(RECIPE))
    return path


def grid(tmp_path: Path, clock: VirtualClock, *, blow: float | None = None, run_id: int = RUN) -> FakeGrid:
    """Answers after 4 s; at the moment `blow` the server's app dies."""

    def arrival(node: Node, message: Message) -> float | None:
        return clock.now() + 4.0

    made = FakeGrid(clock, partitions(3, tmp_path / "nodes"), arrival, run_id=run_id, blocking=False)
    if blow is not None:
        look = made.get_nodes

        def dying() -> list[Node]:
            if clock.now() >= blow:
                made.fails = 10**9
            return look()

        made.get_nodes = dying  # type: ignore[method-assign]
    return made


def test_a_run_from_its_configuration(recipe: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": "seed=5 name=other"}
    directory, result = run(grid(tmp_path, clock), RUN, config, clock)
    assert directory == tmp_path / "run"
    assert (result.recipe.seed, result.recipe.name) == (5, "other")
    assert read_recipe(directory).seed == 5
    assert result.summary["status"] == "finished"
    assert result.summary["clock"] == "real"
    assert result.summary["ticks"] == 6
    assert result.summary["refused"] == {}
    made = read_run(directory)
    assert made.history.seconds.tolist() == [0.0, 20.0, 40.0, 60.0, 65.0]
    assert made.history.updates[-1].tolist() == [6, 6, 6]
    assert (made.history.bytes_down[-1] > 0).all()
    assert (directory / "model.safetensors").is_file()
    lines = journal(directory)
    assert [event["seconds"] for event in lines if event["event"] == "joined"] == [0.0] * 3
    assert all("seconds" in event for event in lines)
    events = [event["event"] for event in lines]
    assert events.count("tick") == 7
    assert events.count("accepted") == 18
    assert clock.problems == []


def test_a_deployed_run_is_measured_by_an_error(recipe: Path, tmp_path: Path) -> None:
    """Clients report their errors, of which less is better; the display of another process follows them."""
    words = "task=e2e.tiny:numbers evaluation.validation=clients training.learning_rate=0.01"
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": words}
    clock = VirtualClock()
    directory, result = run(grid(tmp_path, clock), RUN, config, clock)
    assert (result.summary["metric"], result.summary["refused"]) == ("MAE", {}), "every report was believed"
    assert result.history["MAE"][-1] < result.history["MAE"][0]
    stream = io.StringIO()
    with Display(stream=stream) as display:
        display.begin("", "A", 65.0).follow(directory)
    assert f"MAE {result.final_accuracy:.3f} kWh" in stream.getvalue()


def test_the_log_names_the_metric_of_the_run(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = "task=e2e.tiny:numbers training.learning_rate=0.01 seconds=15"
    clock, config = VirtualClock(), {"recipe": str(recipe), "output": str(tmp_path / "run"), "overrides": words}
    monkeypatch.setattr(server_app, "Clock", lambda: clock)
    monkeypatch.setattr(server_app, "_show_log", lambda: None)
    context = Context(run_id=RUN, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with caplog.at_level("INFO", "fedgmr"):
        server_app.main(grid(tmp_path, clock), context)
    said = [line for line in caplog.messages if "Report" in line]
    assert re.fullmatch(r"Final MAE \d+\.\d+ kWh\. Report: .*/run/report\.html", said[0])


def test_a_deployed_run_ends_early_as_its_recipe_says(recipe: Path, tmp_path: Path) -> None:
    """No score is better by more than 1, so the third evaluation is the second without a better one."""
    words = "evaluation.stop.patience=2 evaluation.stop.improvement=1"
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": words}
    clock = VirtualClock()
    directory, result = run(grid(tmp_path, clock), RUN, config, clock)
    assert (result.summary["status"], result.summary["stopped"]["by"]) == ("finished", "evaluation.stop")
    assert read_run(directory).history.seconds.tolist() == [0.0, 20.0, 40.0]
    assert (result.summary["ticks"], clock.problems) == (4, [])
    assert clock.now() < 60.0


def test_the_server_computes_with_the_threads_of_its_recipe(recipe: Path, tmp_path: Path) -> None:
    clock, before = VirtualClock(), torch.get_num_threads()
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "overrides": "execution.threads=2 seconds=15"}
    assert run(grid(tmp_path, clock), RUN, config, clock)[1].summary["versions"]["threads"] == "2"
    assert torch.get_num_threads() == before


def test_a_watcher_ends_a_deployed_run_which_a_resume_continues(recipe: Path, tmp_path: Path) -> None:
    class Third(Watcher):
        def after_tick(self, state: Any) -> Stop | None:
            return Stop("three ticks") if state["tick"] == 3 else None

    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": ""}
    clock = VirtualClock()
    _, result = run(grid(tmp_path, clock), RUN, config, clock, [Third()])
    assert result.summary["status"] == "stopped"
    assert {"by": "Third", "reason": "three ticks", "tick": 3}.items() <= result.summary["stopped"].items()
    assert (tmp_path / "run" / "model.safetensors").is_file()
    clock = VirtualClock()
    _, result = run(grid(tmp_path, clock, run_id=RUN + 1), RUN + 1, config | {"resume": True}, clock)
    assert (result.summary["status"], result.summary["ticks"]) == ("finished", 6)


def test_a_run_goes_on_from_its_checkpoint(recipe: Path, tmp_path: Path) -> None:
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": ""}
    clock = VirtualClock()
    with pytest.raises(ConnectionError):
        run(grid(tmp_path, clock, blow=35.0), RUN, config, clock)
    before = journal(tmp_path / "run")
    nodes = {event["client"]: event["node"] for event in before if event["event"] == "joined"}
    assert [event["tick"] for event in before if event["event"] == "tick"] == [0, 1, 2, 3]

    clock = VirtualClock()
    clock.sleep(1000.0)
    directory, result = run(grid(tmp_path, clock, run_id=RUN + 1), RUN + 1, config | {"resume": True}, clock)
    events = journal(directory)
    resumed = next(event for event in events if event["event"] == "resumed")
    assert resumed["seconds"] == pytest.approx(30.0, abs=1.0)
    assert resumed["tick"] == 3
    assert sorted(resumed["lost"]) == [0, 1, 2], "what was in flight is lost"
    assert result.summary["refused"] == {"interrupted": 3}
    assert result.summary["ticks"] == 6
    assert result.history["tick"] == sorted(result.history["tick"])
    assert result.history[-1]["updates"] == [6, 6, 6], "none is lost for good, none counts twice"
    joined = [event for event in events if event["event"] == "joined"]
    assert {event["client"]: event["node"] for event in joined[3:]} == nodes, "the same fleet"
    # Each task of 3 mini-batches is handed out again until it is merged: none is left out.
    accepted = [event["task"] for event in events if event["event"] == "accepted"]
    assert len(accepted) == 18


def test_a_run_goes_on_without_a_node_that_is_gone_for_good(recipe: Path, tmp_path: Path) -> None:
    """Two nodes are back at once; the third one is waited for up to the first look after a minute."""
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": ""}
    clock = VirtualClock()
    with pytest.raises(ConnectionError):
        run(grid(tmp_path, clock, blow=35.0), RUN, config, clock)
    clock = VirtualClock()
    clock.sleep(1000.0)
    smaller = grid(tmp_path, clock, run_id=RUN + 1)
    smaller.nodes[998].online = False
    _, result = run(smaller, RUN + 1, config | {"resume": True}, clock)
    assert result.history[-1]["updates"] == [6, 6, 3], "three before the crash"
    assert 60.0 < clock.now() - 1000.0 - 35.0 <= 63.0, "35 s of the run were left"


def test_a_fleet_that_cannot_keep_its_period_is_told_so(recipe: Path, tmp_path: Path) -> None:
    """Answers take 4 s and are looked for every quarter of a second; the period is 3 s: 1.1 x 4.25 s is under 5 s."""
    words = "method.coordination.period=3"
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": words}
    clock = VirtualClock()
    with pytest.warns(UserWarning, match=r"its period of 3 s: the last task of 3 of 3 clients .*period=5 would do"):
        directory, result = run(grid(tmp_path, clock), RUN, config, clock)
    assert result.summary["period_needed"] == 5.0
    assert read_run(directory).notices == [result.summary["advice"]]


def test_a_run_without_a_checkpoint_begins_again(recipe: Path, tmp_path: Path) -> None:
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": ""}
    clock = VirtualClock()
    with pytest.raises(ConnectionError):
        run(grid(tmp_path, clock, blow=6.0), RUN, config, clock)
    assert [event["event"] for event in journal(tmp_path / "run")].count("dispatched") == 3
    clock = VirtualClock()
    directory, result = run(grid(tmp_path, clock, run_id=RUN + 1), RUN + 1, config | {"resume": True}, clock)
    assert result.summary["ticks"] == 6
    events = [event["event"] for event in journal(directory)]
    assert (events.count("joined"), events.count("resumed"), events.count("accepted")) == (3, 0, 18)
    assert read_run(directory).history.seconds.tolist() == [0.0, 20.0, 40.0, 60.0, 65.0]


def test_the_interrupted_run_learns_as_an_undisturbed_one(recipe: Path, tmp_path: Path) -> None:
    """With every client answering within the period, a crash changes nothing but the time."""
    config = {"recipe": str(recipe), "output": "", "resume": False, "overrides": ""}
    clock = VirtualClock()
    whole = run(grid(tmp_path / "a", clock), RUN, config | {"output": str(tmp_path / "whole")}, clock)[1]
    clock = VirtualClock()
    with pytest.raises(ConnectionError):
        run(grid(tmp_path / "b", clock, blow=35.0), RUN, config | {"output": str(tmp_path / "cut")}, clock)
    clock = VirtualClock()
    resumed = run(
        grid(tmp_path / "b", clock, run_id=RUN + 1),
        RUN + 1,
        config | {"output": str(tmp_path / "cut"), "resume": True},
        clock,
    )[1]
    assert all(torch.equal(whole.model[name], resumed.model[name]) for name in whole.model)


def test_a_run_that_accepted_nothing_says_so(recipe: Path, tmp_path: Path) -> None:
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": ""}
    clock = VirtualClock()
    mute = grid(tmp_path, clock)
    mute.arrival = lambda node, message: None if message.metadata.message_type == "train" else clock.now() + 1.0
    directory, result = run(mute, RUN, config | {"overrides": "deployment.first_task=40"}, clock)
    assert result.summary["status"] == "empty"
    assert result.summary["refused"] == {"expired": 3}
    assert result.summary["problem"].startswith("No update was accepted in the whole run (3 expired):")
    written = json.loads((directory / "summary.json").read_text())
    assert (written["status"], written["problem"]) == ("empty", result.summary["problem"])


def test_a_run_whose_clients_all_diverge_ends_as_diverged(recipe: Path, tmp_path: Path) -> None:
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": ""}
    clock = VirtualClock()
    wild = grid(tmp_path, clock)
    for node in wild.nodes.values():
        node.answer = diverged
    with pytest.raises(Diverged, match="the updates of 3 of 3 clients are out of bounds"):
        run(wild, RUN, config, clock)
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (written["status"], written["refused"]) == ("diverged", {"client-diverged": 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overrides": "evaluation.clients=5"}, "evaluation.clients is 5: a deployed server does not have the samples"),
        ({"overrides": "deployment.min_clients=4"}, "deployment.min_clients is 4: the fleet has 3 clients"),
        ({"recipe": "quikstart"}, "quikstart"),
        ({"overrides": "seed"}, "overrides has 'seed'"),
        ({"overrides": "fleet.clients=0"}, "fleet.clients"),
        ({"resume": True}, "is not a run directory"),
    ],
)
def test_mistakes_are_told_in_a_sentence(change: dict[str, Any], message: str, recipe: Path, tmp_path: Path) -> None:
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": ""} | change
    clock = VirtualClock()
    with pytest.raises(SettingError, match=message):
        run(grid(tmp_path, clock), RUN, config, clock)


def test_the_two_kinds_of_run_are_told_apart(recipe: Path, tmp_path: Path) -> None:
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": ""}
    clock = VirtualClock()
    with pytest.raises(ConnectionError):
        run(grid(tmp_path, clock, blow=25.0), RUN, config, clock)
    with pytest.raises(ValueError, match="is a deployed run"):
        resume_run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe_from({**RECIPE, "checkpoint": {"every": 1}}), tmp_path / "simulated", _Interrupting())
    with pytest.raises(ValueError, match="is a simulation"):
        run(grid(tmp_path, clock), RUN, {"output": str(tmp_path / "simulated"), "resume": True}, VirtualClock())


def test_a_run_that_ended_while_its_lock_was_awaited_is_not_resumed(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has had the lock has finished it; going on from its checkpoint would forget its end."""
    config = {"recipe": str(recipe), "output": str(tmp_path / "run"), "resume": False, "overrides": ""}
    clock = VirtualClock()
    with pytest.raises(ConnectionError):
        run(grid(tmp_path, clock, blow=25.0), RUN, config, clock)

    @contextlib.contextmanager
    def finishing(directory: Path) -> Iterator[None]:
        (directory / "summary.json").write_text('{"status": "finished"}')
        yield

    monkeypatch.setattr(rundir, "locked", finishing)
    with pytest.raises(ValueError, match="is finished: there is nothing to resume"):
        run(grid(tmp_path, clock, run_id=RUN + 1), RUN + 1, config | {"resume": True}, clock)
    assert (tmp_path / "run" / "summary.json").exists()


class _Interrupting(Watcher):
    def after_tick(self, state: Any) -> None:
        if state["tick"] == 2:
            raise KeyboardInterrupt


def test_densities_are_measured(tmp_path: Path) -> None:
    """Links of 4 MB/s, 1 kB/s and 270 B/s, half of that up, behind 5 s of overhead; the period is 12 s."""
    rates = {0: 4e6, 1: 1e3, 2: 270.0}
    nodes = partitions(3, tmp_path)
    run = Deployed(
        nodes,
        tmp_path,
        task="e2e.tiny:normed",
        method="fedgmr_without_restoration",
        rules={"coordination": {"period": 12.0}, "interval": 1000},
        sections={"fleet": {"clients": 3, "densities": "measured"}, "deployment": {"first_task": 1000.0}},
    )

    def arrival(node: Node, message: Message) -> float:
        run.received.append(message)
        records, settings = message.content.array_records, message.content.config_records["settings"]
        down = len(settings.get("recipe", ""))
        down += sum(len(array.data) for record in records.values() for array in record.values())
        up = 0.0
        if message.metadata.message_type == "train":
            task = run.server.dispatched[settings["client"]]
            up = 4.0 * task.levels.sizes[task.level]
        return run.clock.now() + 5.0 + (down + 2 * up) / rates[node.config["partition-id"]]

    run.grid.arrival = arrival
    history: list[list[int]] = []
    run.drive(12, lambda tick: history.append(list(run.server.client_levels)))
    assert [run.tasks_of(client)[0]["level"] for client in range(3)] == [0, 0, 0], "all begin with the smallest"
    sizes = run.server.levels.sizes
    fitting = [max(i for i in range(5) if 5.0 + 12.0 * sizes[i] / rate <= 12.0) for rate in rates.values()]
    assert history[-1] == fitting == [4, 3, 1]
