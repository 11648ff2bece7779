"""Input that cannot be used: one sentence on standard error, exit code 2, and nothing is written."""

import fcntl
import json
from pathlib import Path

import pytest

from e2e.command import Command, write_recipe
from e2e.recipes import recipe

# settings -> words of the sentence
SETTINGS = {
    "trainig.steps=3": ["trainig is not a known key", "did you mean training?"],
    "training.step=3": ["training.step is not a known key", "did you mean training.steps?"],
    "training.steps=two": ["training.steps is 'two'", "a whole number of at least 1"],
    "training.steps=2.5": ["training.steps is 2.5", "a whole number"],
    "training.learning_rate=[1]": ["training.learning_rate is [1]", "a number above 0"],
    "seconds=": ["seconds is null", "a number above 0"],
    "seconds=inf": ["seconds is inf", "finite"],
    "seed=-1": ["seed is -1", "at least 0"],
    "schema_version=1": ["schema_version is 1", "this release reads version 3", "tools/rewrite_results.py"],
    "schema_version=4": ["schema_version is 4", "this release reads version 3."],
    "fleet.links.0.density=0": ["fleet.links.0.density is 0", "above 0"],
    "fleet.links.0.density=1.5": ["fleet.links.0.density is 1.5", "at most 1"],
    "fleet.densities=[1, 1, 1, 1, -0.5]": ["fleet.densities.4 is -0.5", "above 0"],
    "fleet.densities=[1]": ["fleet.densities has 1 entries", "one per client, 5"],
    "fleet.links.0.density=0.3": ["density 0.3 is not on the ladder", "method.ladder"],
    "method.ladder=[0.5, 0.2, 1]": ["ladder [0.5, 0.2, 1.0] is not increasing", "smallest first"],
    "method.ladder=[0.5, 0.5, 1]": ["ladder [0.5, 0.5, 1.0] is not increasing"],
    "method.ladder=[0.5, 1.5]": ["outside (0, 1]"],
    "method.ladder=[]": ["ladder []"],
    'fleet={"name": "high", "clients": 0}': ["fleet.clients is 0", "at least 1"],
    "fleet.links=[]": ["links is []", "at least one client"],
    "fleet.links.0.up=-1": ["fleet.links.0.up is -1", "above 0"],
    "network.server_rate=-10": ["network.server_rate is -10", "above 0"],
    "fleet.links.9.up=1": ["fleet.links.9 is not an entry", "0 to 4"],
    'fleet.absences=[{"clients": [7], "start": 0, "end": 5}]': ["fleet.absences names client 7", "0 to 4"],
    'fleet.absences=[{"clients": [0], "start": 5, "end": 5}]': ["end is 5.0", "after start"],
    "participation.count=0": ["participation.count is 0", "at least 1"],
    'participation={"count": 2, "fraction": 0.5}': ["count is 2 and fraction is 0.5", "one of the two"],
    "participation.policy=oort": ["participation: policy is oort", "give count or fraction too"],
    'participation={"count": 2, "policy": "ort"}': ["participation.policy is 'ort'", "did you mean oort?"],
    'participation={"count": 2, "policy": {"kind": "oort", "decay": 0}}': ["policy.decay is 0", "above 0"],
    "method=fedgrm": ["method.name is 'fedgrm'", "did you mean fedgmr?"],
    "method=e2e.recipes:nothing": ["method.name is 'e2e.recipes:nothing'", "cannot be imported"],
    "method=e2e.recipes:recipe": ["method.name", "returned dict", "return a fedgmr Method"],
    "task=mnist": ["task.name is 'mnist'", "did you mean mnist5k?"],
    "task=e2e.nowhere:dense": ["task.name is 'e2e.nowhere:dense'", "cannot be imported"],
    "task=e2e.tiny:not_a_task": ["task.name is 'e2e.tiny:not_a_task'", "returned str", "return a fedgmr Task"],
    "task.options.sampels=3": ["task.options.sampels is not a known key"],
    "method.coordination=sometimes": ["method.coordination is 'sometimes'", "semi_asynchronous"],
    "method.aggregation.kind=median": ["method.aggregation.kind is 'median'", "mask_aware"],
    "partition=dirichlett": ["partition is 'dirichlett'", "did you mean dirichlet?"],
    "partition.min_samples=200": ["partition.min_samples is 200", "lower it or use fewer clients"],
    'partition={"kind": "dirichlet", "min_samples": 100}': ["5 clients need 500 samples", "lower it"],
    "partition=by_user": ["by_user", "user id per sample"],
    'evaluation={"validation": "clients", "client_holdout": 0.999}': ["evaluation.client_holdout", "lower it"],
    'task={"name": "e2e.tiny:few", "options": {"samples": 3}}': ["few.holdout", "samples on both sides"],
    "training..steps=3": ["'training..steps=3' is malformed", "key=value"],
    "=3": ["'=3' is malformed"],
    "training=[1": ["'training=[1'", "not valid YAML"],
    "device=cuda:99": ["device is 'cuda:99'", "give cpu or auto"],
    "device=abacus": ["device is 'abacus'", "give cpu or auto"],
    "methods.fedavgg.interval=3": ["'fedavgg'", "did you mean fedavg?"],
    "methods.fedavg.intervall=3": ["intervall is not a known key"],
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings(setting: str, fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe())
    sentence = fedgmr("run", "r.json", setting, "output=run").refusal()
    for words in SETTINGS[setting]:
        assert words in sentence
    _nothing_written(fedgmr.folder)


def test_the_settings_would_run_otherwise(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe())
    assert fedgmr("run", "r.json", "seconds=40", "output=run").code == 0
    assert (fedgmr.folder / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "missing.yaml"], "missing.yaml cannot be read (No such file or directory)"),
        (["run", "missing"], "The recipe 'missing' is neither a file nor one that ships"),
        (["run", "quickstat"], "did you mean quickstart?"),
        (["run", "r.json", "r.json"], "Two recipes are given, 'r.json' and 'r.json'"),
        (["run", "r.json", "output="], "output is empty"),
        (["run", "r.json", "output=r.json"], "output is 'r.json', which is a file"),
        (["run", "broken.json"], "broken.json, line 1, column 14 is not valid YAML"),
        (["run", "broken.yaml"], "broken.yaml, line 2, column 1 is not valid YAML"),
        (["run", "list.yaml"], "write a mapping of keys to values"),
        (["run", "twice.yaml"], "'seconds' appears twice"),
        (["resume", "missing"], "'missing' is not a run directory"),
        (["resume", "."], "'.' is not a run directory"),
        (["compare", "r.json", "--seeds", "0"], "--seeds is 0: give at least 1"),
        (["compare", "r.json", "--seeds", "-2"], "--seeds is -2: give at least 1"),
        (["compare", "r.json", "--methods", "fedavg,fedgrm"], "did you mean fedgmr?"),
        (["compare", "r.json", "--methods", "fedavg,fedavg"], "name each method once"),
        (["compare", "r.json", "--methods", ""], "method"),
        (["show", "r.json", "training.step=3"], "did you mean training.steps?"),
    ],
)
def test_commands(words: list[str], sentence: str, fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe())
    (fedgmr.folder / "broken.json").write_text('{"seconds": 1')
    (fedgmr.folder / "broken.yaml").write_text("seconds: [1\n")
    (fedgmr.folder / "list.yaml").write_text("- seconds\n")
    (fedgmr.folder / "twice.yaml").write_text("seconds: 1\nseconds: 2\n")
    before = _contents(fedgmr.folder)
    assert sentence in fedgmr(*words).refusal()
    assert _contents(fedgmr.folder) == before


@pytest.mark.parametrize("words", [[], ["runn"], ["resume"], ["compare", "--seeds", "many"], ["run", "--fast"]])
def test_words_the_parser_refuses(words: list[str], fedgmr: Command) -> None:
    ended = fedgmr(*words)
    assert ended.code == 2
    assert ended.err.startswith("usage: fedgmr")
    assert "Traceback" not in ended.err
    assert not _contents(fedgmr.folder)


def test_a_finished_run_is_left_alone(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe(seconds=40.0))
    assert fedgmr("run", "r.json", "output=run").code == 0
    before = _contents(fedgmr.folder)
    assert "'run' is finished: there is nothing to resume" in fedgmr("resume", "run").refusal()
    assert "'run', which holds a run already" in fedgmr("run", "r.json", "output=run").refusal()
    assert _contents(fedgmr.folder) == before


def test_a_run_in_use_is_left_alone(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe(seconds=40.0))
    assert fedgmr("run", "r.json", "output=run").code == 0
    run = fedgmr.folder / "run"
    (run / "summary.json").unlink()  # as if it were going on
    before = _contents(fedgmr.folder)
    with (run / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "run is in use by another process" in fedgmr("resume", "run").refusal()
        assert _contents(fedgmr.folder) == before
    assert fedgmr("resume", "run").code == 0


def test_a_recipe_of_a_run_that_was_edited(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe(seconds=40.0))
    assert fedgmr("run", "r.json", "output=run").code == 0
    run = fedgmr.folder / "run"
    (run / "summary.json").unlink()
    (run / "recipe.yaml").write_text(json.dumps(recipe(trainig={})))
    assert "trainig is not a known key" in fedgmr("resume", "run").refusal()


def _nothing_written(folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == ["r.json"]


def _contents(folder: Path) -> dict[str, bytes | None]:
    """By path: what is in it, None for a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}
