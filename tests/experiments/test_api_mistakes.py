"""Mistakes through the Python API: one sentence each, with the argument and the fix."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from e2e import tiny
from torch import nn

import fedgmr
from fedgmr import FleetSettings, Link, Method, Stop, TrainingSettings, Watcher, load, named_method, resume
from fedgmr.fleets.network import NetworkSettings
from fedgmr.recipe import EvaluationSettings
from fedgmr.tasks.partition import Dirichlet

TASK = tiny.dense()
LINK = Link(down=20.0, up=20.0)


class Ticker(Watcher):
    """Its method lacks what it is given."""

    def after_tick(self) -> None:  # type: ignore[override]
        pass


class Yes(Watcher):
    """Says something else than Stop or nothing."""

    def after_evaluation(self, row: Any) -> Any:
        return True


def run(task: Any = TASK, **arguments: Any) -> fedgmr.Result:
    return fedgmr.simulate(task, **{"seconds": 1.0, "progress": False, **arguments})


# What is called, and the sentence or what it must hold.
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    # simulate: what it learns
    "a module as task": (lambda: run(nn.Linear(2, 2)), "task is of type Linear: give a fedgmr.Task"),
    "no task": (lambda: run(None), "task is of type NoneType: give a fedgmr.Task"),
    "tensors as task": (lambda: run((torch.zeros(1), torch.zeros(1))), "task is of type tuple: give a fedgmr.Task"),
    "a task's function": (lambda: run(tiny.dense), "task is the function dense: give the Task that it returns, dense("),
    "a task's class": (lambda: run(fedgmr.Task), "task is the class Task: give a fedgmr.Task"),
    "an unknown task": (lambda: run("mnist"), "task.name is 'mnist': did you mean mnist5k?"),
    "a task that is not there": (lambda: run("nowhere:task"), "task.name is 'nowhere:task', which cannot be imported"),
    "a function of no task": (lambda: run("e2e.tiny:not_a_task"), "which returned str: return a fedgmr Task."),
    # simulate: numbers and words
    "no seconds": (lambda: fedgmr.simulate(TASK), "missing 1 required keyword-only argument: 'seconds'"),  # type: ignore[call-arg]
    "seconds in words": (lambda: run(seconds="long"), "seconds is 'long': give a number above 0."),
    "no time": (lambda: run(seconds=None), "seconds is null: give a number above 0."),
    "endless": (lambda: run(seconds=float("inf")), "seconds is inf: give a finite time budget."),
    "half a seed": (lambda: run(seed=1.5), "seed is 1.5: give a whole number of at least 0."),
    "no seed": (lambda: run(seed=None), "seed is null: give a whole number"),
    "a misspelt argument": (lambda: run(trainig={}), "trainig is not an argument of simulate: did you mean training?"),
    "another library's": (lambda: run(callbacks=[]), "callbacks is not an argument of simulate: choose one of task, "),
    "an unknown device": (lambda: run(device="gpu"), "device is 'gpu', which cannot be used here"),
    "a device object": (lambda: run(device=torch.device("cpu")), "device is device(type='cpu'): give a text."),
    "a number as name": (lambda: run(name=3), "name is 3: give a text."),
    "a number as output": (lambda: run(output=5), "output is 5: give the path of a run directory."),
    "progress in words": (lambda: run(progress="no"), "progress is 'no': give True or False."),
    # simulate: sections
    "a misspelt key": (lambda: run(training={"step": 3}), "training.step is not a known key: did you mean training.st"),
    "a number as training": (
        lambda: run(training=0.1),
        "training is 0.1: give a mapping with keys among learning",
    ),
    "another's settings": (lambda: run(training=FleetSettings()), "training is FleetSettings("),
    "a misspelt partition": (lambda: run(partition="dirichet"), "(did you mean dirichlet?)."),
    "a bad part": (lambda: run(partition=Dirichlet(alpha=-1.0)), "partition.alpha is -1.0: give a number above 0."),
    "a bad network": (lambda: run(network=NetworkSettings(noise=-1.0)), "network.noise is -1.0: give a number of at"),
    "no rule to stop": (lambda: run(evaluation={"stop": {}}), "evaluation.stop: patience and target are none: give on"),
    "stop, yes": (lambda: run(evaluation={"stop": True}), "evaluation.stop is true: give a mapping with keys among pa"),
    "an unknown view": (lambda: EvaluationSettings(views=("best",)), "views.0 is 'best': give one of merged, padded"),  # type: ignore[arg-type]
    # methods
    "an unknown method": (lambda: run(method="fedgrm"), "method.name is 'fedgrm': did you mean fedgmr?"),
    "no method": (lambda: run(method=None), "method is null: give the name of a method, see `fedgmr list`, or a Meth"),
    "plain data": (lambda: run(method={"name": "fedavg", "interval": 3}), "give fedgmr.named_method('fedavg', {...})."),
    "the class Method": (lambda: run(method=Method), "give the name of a method, see `fedgmr list`, or a Method."),
    "an unknown key": (
        lambda: named_method("fedgmr", {"intervall": 3}),
        "method.intervall is not a known key: did yo",
    ),
    "a bad value": (lambda: named_method("fedgmr", {"interval": 0}), "method.interval is 0: give a whole number of at"),
    "a method's text": (lambda: named_method("fedgmr", "interval=3"), "method is 'interval=3': give a mapping"),  # type: ignore[arg-type]
    "no name": (lambda: named_method(None), "name is null: give the name of a method, see `fedgmr list`."),  # type: ignore[arg-type]
    "an unknown suffix": (lambda: named_method("fedavg+gmrr"), "method.name is 'fedavg+gmrr': did you mean fedavg+gmr"),
    "a ladder downwards": (lambda: Method(name="x", ladder=(0.5, 0.1)), "is not increasing: list each density once"),
    "a misspelt rule": (lambda: Method(name="x", ranking="tailor"), "ranking is 'tailor': give one of the kinds full"),  # type: ignore[arg-type]
    "no interval": (lambda: Method(name="x", interval=0), "interval is 0: give a whole number of at least 1."),
    # fleets
    "an unknown fleet": (lambda: run(fleet="hihg"), "fleet.name is 'hihg': give one of high, medium, low, lte, "),
    "a number of clients": (lambda: run(fleet=5), "fleet is 5: give a name (high, medium, low), a FleetSettings, or"),
    "one link": (lambda: run(fleet=LINK), "or a list with one Link per client."),
    "no clients": (lambda: run(fleet=[]), "links is []: give at least one client."),
    "rates alone": (lambda: run(fleet=[1.0, 2.0]), "fleet.links.0 is 1.0: give a mapping with keys among down, up"),
    "a link backwards": (lambda: Link(down=-1.0, up=1.0), "down is -1.0: give a rate above 0, in MiB/s."),
    "more than whole": (lambda: Link(down=1.0, up=1.0, density=2.0), "density is 2.0: give a number above 0 and of at"),
    "no such class": (lambda: FleetSettings(name="hihg"), "name is 'hihg': give one of high, medium, low, lte, "),  # type: ignore[arg-type]
    "nobody": (lambda: FleetSettings(clients=0), "clients is 0: give a whole number of at least 1 or null."),
    "no links": (lambda: FleetSettings(name="custom"), "name is 'custom' and links are not given: links go with name"),
    "off the ladder": (lambda: run(fleet=[Link(down=1.0, up=1.0, density=0.3)]), "0.3 is not on the ladder"),
    # training
    "uphill": (lambda: TrainingSettings(learning_rate=-0.1), "learning_rate is -0.1: give a number above 0."),
    "no work": (lambda: TrainingSettings(steps=0), "steps is 0: give a whole number of at least 1."),
    "an unknown schedule": (lambda: TrainingSettings(schedule="cosine"), "schedule is 'cosine': give one of the kinds"),  # type: ignore[arg-type]
    "an optimiser": (lambda: TrainingSettings(optimizer=torch.optim.SGD), "optimizer is <class 'torch.optim.sgd.SGD'>"),  # type: ignore[arg-type]
    # watchers
    "a function": (lambda: run(watcher=print), "give an object of a subclass of fedgmr.Watcher, or a list of them."),
    "a class": (lambda: run(watcher=Yes), "watcher is the class Yes: give an object of it, Yes(...)."),
    "one of them": (lambda: run(watcher=[Yes(), 3]), "watcher is 3: give an object of a subclass of fedgmr.Watcher"),
    "a short method": (lambda: run(watcher=Ticker()), "Ticker.after_tick cannot be called with one value"),
    "yes": (lambda: run(watcher=Yes()), "Yes.after_evaluation returned true: return fedgmr.Stop('why') to end the ru"),
    "no reason": (lambda: Stop(""), "reason is '': give Stop a text that says why the run ends."),
    # directories
    "no directory": (lambda: load("nowhere"), "'nowhere' is not a run directory: it has no recipe.yaml."),
    "a number to load": (lambda: load(3), "directory is 3: give the path of a run directory."),  # type: ignore[arg-type]
    "nothing to resume": (lambda: resume("nowhere"), "'nowhere' is not a run directory: it has no recipe.yaml."),
    "no path": (lambda: resume(None), "directory is null: give the path of a run directory."),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, words = MISTAKES[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    text = str(caught.value)
    assert words in text
    assert "\n" not in text
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_there_are_enough_of_them() -> None:
    assert len(MISTAKES) >= 40


def test_a_finished_run_and_one_that_is_there(tmp_path: Path) -> None:
    result = run(output=tmp_path / "run", fleet=[LINK] * 2)
    with pytest.raises(fedgmr.SettingError, match="is finished: there is nothing to resume"):
        resume(tmp_path / "run", task=TASK)
    with pytest.raises(fedgmr.SettingError, match="holds a run already: resume it or give another directory"):
        run(output=tmp_path / "run")
    with pytest.raises(fedgmr.SettingError, match="path is 3: give the path of a run directory"):
        result.save(3)  # type: ignore[arg-type]


def test_what_python_has_in_other_types_is_taken() -> None:
    assert TrainingSettings(steps=np.int64(3), learning_rate=np.float32(0.5)) == TrainingSettings(
        steps=3, learning_rate=0.5
    )
    assert type(TrainingSettings(steps=np.int64(3)).steps) is int
    assert FleetSettings(name="custom", links=[LINK]).links == (LINK,)  # type: ignore[arg-type]
    assert Method(name="x", ranking="magnitude") == Method(name="x", ranking={"kind": "magnitude"})  # type: ignore[arg-type]
    assert TrainingSettings(learning_rate=1).learning_rate == 1
