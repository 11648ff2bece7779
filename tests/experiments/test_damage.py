"""Damaged run directories: each is refused with one sentence, or leads to the very result of an undamaged one."""

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from experiments.damage import damage
from experiments.sweep.runs import left, small
from experiments.test_seal import Stop, edit
from fedgmr.cli.main import main
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.seal import read_sealed_run

HOST = ("wall_seconds", "versions", "digest", "commit", "name", "device")  # what a repetition may say otherwise


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that was interrupted after six ticks, and both of another seed."""
    folder = tmp_path_factory.mktemp("kept")
    for name, seed in (("", 3), ("other-", 4)):
        run_recipe(small("fedgmr", f"seed={seed}"), folder / f"{name}finished")
        with pytest.raises(KeyboardInterrupt):
            run_recipe(small("fedgmr", f"seed={seed}"), folder / f"{name}begun", Stop(6))
    return folder


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 1000), marks=pytest.mark.slow)], ids=["a few", "all the others"]
)
def test_damaged_directories(
    seeds: range, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGMR_TRUST", "e2e")
    whole, ends, problems = described(kept / "finished"), Counter[str](), []
    for seed in seeds:
        draw, run = random.Random(seed), tmp_path / str(seed)
        state = draw.choice(["begun", "finished"])
        shutil.copytree(kept / state, run)
        done = f"seed {seed}, {state}, {damage(run, kept / f'other-{state}', draw)}"
        try:
            ends[outcome(run, whole, capsys)] += 1
        except Exception as problem:  # all of them at once, each with its seed
            problems.append(f"{done}: {problem!r}"[:600])
        shutil.rmtree(run, ignore_errors=True)
    assert not problems, "\n".join(problems)
    assert ends["refused"] > len(seeds) / 3
    assert ends["as undamaged"] > len(seeds) / 5


def test_a_damaged_checkpoint_does_not_outlive_one_that_is_written_after_it(tmp_path: Path) -> None:
    """Though its tick is later, and one is kept: a run that is killed a second time goes on from the new one."""
    run, checkpoint = tmp_path / "run", {"every": 2, "keep": 2}
    run_recipe(small(checkpoint=checkpoint), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_recipe(small(checkpoint=checkpoint), run, Stop(6))
    (run / "checkpoints" / "tick-000000006.safetensors").write_bytes(b"nothing")
    edit(run / "recipe.yaml", checkpoint__every=1, checkpoint__keep=1)
    with pytest.warns(UserWarning, match="Falling back"), pytest.raises(KeyboardInterrupt):
        resume_run(run, Stop(5), trust=["e2e"])
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["tick-000000005.safetensors"]
    resume_run(run, trust=["e2e"])
    assert left(run) == left(tmp_path / "whole")


def outcome(run: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    """How a damaged run ends: a resume refuses it, or makes of it what an undamaged one is; so does a reader."""
    code = main(["resume", str(run)])
    *warnings, last = capsys.readouterr().err.splitlines() or [""]
    assert code in (0, 2)
    assert all(line.startswith(("fedgmr: warning: ", "FedGMR seed 3")) for line in warnings), warnings
    if code == 2:
        assert re.fullmatch(r"fedgmr: .{20,800}[.?)]", last), last
        if "is finished" not in last:
            return "refused"
    sound = main(["verify", str(run)]) == 0
    printed = capsys.readouterr().out
    if not sound:
        assert (code, "does not hold together: " in printed) == (2, True), printed
        return "refused"
    if "without " in printed:
        return "refused"  # a model is gone, and it says which
    assert described(run) == whole
    assert read_sealed_run(run).summary == json.loads((run / "summary.json").read_text()), "as tables read it"
    return "as undamaged"


def described(run: Path) -> dict[str, Any]:
    """All that a run says of its result."""
    summary = json.loads((run / "summary.json").read_text())
    models = {name: load_file(run / name) for name in ("model.safetensors", "views.safetensors")}
    tensors = {f"{file} {name}": tensor.tolist() for file, model in models.items() for name, tensor in model.items()}
    return {key: summary[key] for key in summary if key not in HOST} | tensors | {"rows": left(run)[0]}
