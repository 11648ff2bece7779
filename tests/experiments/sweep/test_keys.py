"""A key says what decides a result, and nothing else."""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from e2e import tiny

from experiments.sweep.runs import small
from fedgmr import Task
from fedgmr.experiments.assembly import make_task, resolve
from fedgmr.experiments.sweep import keys, recipe_key
from fedgmr.experiments.sweep.keys import changes_results
from fedgmr.fleets.network import NetworkSettings
from fedgmr.recipe import SCHEMA_VERSION, load_recipe, recipe_from
from fedgmr.settings.schema import plain

COUNT: list[int] = []


def counted(seed: int = 0, size: int = 1) -> Task:
    COUNT.append(seed)
    return tiny.dense(seed)


def test_it_is_the_hash_of_the_resolved_recipe() -> None:
    recipe = small("fedgmr", "network.noise=0.5", "execution.autocast=bfloat16")
    period = resolve(recipe, make_task(recipe)).method.coordination.period
    # By hand: what differs from the defaults, whole numbers without a fraction, other floats with twelve digits, keys
    # in order, no spaces.
    method = {
        "coordination": {"kind": "semi_asynchronous", "period": f"<{period:.12g}>"},
        "ims": True,
        "interval": 3,
        "name": "fedgmr",
        "ranking": {"kind": "taylor"},
        "restoration": {"kind": "saturation", "patience": 1},
        "title": "FedGMR",
    }
    data = {
        "evaluation": {"every_seconds": 40},
        "execution": {"autocast": "bfloat16"},
        "fleet": {
            "links": [{"density": d, "down": 20 * d, "up": 5 * d} for d in (1, 0.5, 0.2, 0.1, 0.05)],
            "name": "custom",
            "scale": 0.0001,
        },
        "method": method,
        "network": {"noise": 0.5},
        "schema_version": SCHEMA_VERSION,
        "seconds": 120,
        "seed": 3,
        "task": {"name": "e2e.tiny:dense"},
        "training": {"batch_size": 10, "steps": 2},
    }
    text = json.dumps(data, sort_keys=True, separators=(",", ":")).replace('"<', "").replace('>"', "")
    text = re.sub(r"\.0(?=[],}])", "", text)
    assert recipe_key(recipe) == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_a_new_option_with_its_default_changes_no_key() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Later(NetworkSettings):
        jitter: float = 0.0

    recipe = small("fedgmr", "network.noise=0.5")
    later = replace(recipe, network=Later(noise=0.5))
    assert plain(later)["network"]["jitter"] == 0.0
    assert recipe_key(later) == recipe_key(recipe) != recipe_key(replace(recipe, network=Later(noise=0.5, jitter=1.0)))
    assert recipe_key(replace(recipe, schema_version=SCHEMA_VERSION + 1)) != recipe_key(recipe)


def test_what_does_not_change_the_result_is_not_in_it() -> None:
    key = recipe_key(small())
    without = (
        "name=other",
        "about=words",
        "device=cpu",
        "device=cuda",
        "checkpoint.every=7",
        "deployment.identity=claimed",
    )
    without += (
        "evaluation.views=merged",
        "evaluation.padded_every=3",
        "evaluation.levels_every=2",
        "deployment.patience=2",
    )
    for words in (*without, "execution.executor=sequential", "execution.slots=3", "execution.sparse=0.5"):
        assert recipe_key(small("fedgmr", words)) == key, words
        assert not changes_results(words.partition("=")[0]), words
    resolved = resolve(small(), make_task(small()))
    assert resolved.method.coordination != small().method.coordination
    assert recipe_key(resolved) == key
    assert recipe_key(recipe_from(json.loads(json.dumps(plain(resolved))))) == key


def test_what_changes_the_result_is_in_it() -> None:
    words = [
        "seed=4",
        "seconds=121",
        "short=true",
        "task=e2e.tiny:normed",
        "training.learning_rate=0.11",
        "training.steps=3",
        "method.interval=4",
        "method.coordination.period=7",
        "evaluation.every_seconds=41",
        "partition={kind: dirichlet, alpha: 1.0, min_samples: 10}",
        "network.noise=0.5",
        "fleet.scale=0.0002",
        "participation.count=4",
        "participation={count: 4, policy: oort}",
        "participation={count: 4, policy: {kind: oort, penalty: 1}}",
        "execution.autocast=bfloat16",
    ]
    assert all(changes_results(word.partition("=")[0]) for word in words)
    found = [recipe_key(small()), recipe_key(small("fedavg")), *(recipe_key(small("fedgmr", word)) for word in words)]
    assert len(set(found)) == len(words) + 2
    assert all(len(key) == 12 and set(key) <= set("0123456789abcdef") for key in found)


def test_tf32_counts_where_it_changes_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(device: str, tf32: str) -> str:
        return recipe_key(small("fedgmr", f"device={device}", f"execution.tf32={tf32}"))

    assert changes_results("execution.tf32")
    assert key("cuda", "false") != key("cuda", "true")
    assert key("cuda:1", "false") == key("cuda", "false")
    assert key("cpu", "false") == key("cpu", "true") == key("cuda", "true")
    for available, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda available=available: available)
        assert key("auto", "true") == key("cuda", "true")
        assert key("auto", "false") == key(device, "false")


def test_where_the_files_of_a_built_in_task_are_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "named_task", lambda name, options, seed: tiny.dense(seed))
    one, two, other = (
        recipe_key(load_recipe("paper/cifar10-short", [f"task.options={options}"]))
        for options in ("{root: here}", "{root: there}", "{root: here, source: packed}")
    )
    assert one == two != other


def test_numbers_are_the_same_however_they_are_written() -> None:
    task = "experiments.sweep.test_keys:counted"
    one, two, other = (
        recipe_key(small("fedgmr", f"task={{name: '{task}', options: {{size: {size}}}}}")) for size in ("2", "2.0", "3")
    )
    assert one == two != other


def test_the_task_is_made_once_for_many_recipes_and_never_for_resolved_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    COUNT.clear()
    task = "task={name: 'experiments.sweep.test_keys:counted', options: {size: 50}}"
    recipes = [small(method, task, f"seed={seed}") for method in ("fedgmr", "fedasync") for seed in range(50)]
    assert len({recipe_key(recipe) for recipe in recipes}) == 100
    assert len(COUNT) == 1

    resolved = [resolve(recipe, make_task(recipe)) for recipe in recipes[:3]]
    keys._layout.cache_clear()
    COUNT.clear()
    assert [recipe_key(recipe) for recipe in resolved] == [recipe_key(recipe) for recipe in recipes[:3]]
    assert len(COUNT) == 1  # for the second list


def test_missing_data_is_told_as_by_a_run(tmp_path: Path) -> None:
    recipe = load_recipe("paper/cifar10-short", [f"task.options.root={tmp_path}"])
    with pytest.raises(ValueError, match="cifar10") as by_run:
        make_task(recipe)
    with pytest.raises(ValueError, match="cifar10") as by_key:
        recipe_key(recipe)
    assert str(by_key.value) == str(by_run.value)
