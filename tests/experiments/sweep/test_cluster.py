"""A sweep on a Ray cluster of this machine: the same runs, and a worker that is killed costs time alone.

Needs the extra `sweep`. Ray keeps its files in a folder of the test, not in the user's.
"""

import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.sweep.mortal import LIFE, batches
from experiments.sweep.runs import left, small
from experiments.sweep.test_plan import Log
from fedgmr.experiments.sweep import perform_sweep, plan_sweep, run_sweep
from fedgmr.recipe import Recipe
from fedgmr.settings.refusals import SettingError


def test_without_ray_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"^--ray needs the package ray: run pip install ray\.$"):
        run_sweep([small()], tmp_path, ray="local")


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    pytest.importorskip("ray", reason="the extra sweep is not installed: pip install ray")
    # One folder for all: a process reads Ray's token once. Not below a test's: the names of sockets must be short.
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HOME", folder)
        patch.setenv("RAY_TMPDIR", folder)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_two_workers_and_some_are_killed(tmp_path: Path) -> None:
    def mortal(name: str, **options: object) -> Recipe:
        options["count"] = str(tmp_path / name)
        return small("fedgmr", f"task={{name: 'experiments.sweep.mortal:killed', options: {options}}}", "seconds=300")

    (tmp_path / "never").write_text("x")  # it has died often enough
    recipes = [mortal("once", times=1), mortal("never", times=1), mortal("always", times=99, life=2), small("fedavg")]
    plan, log = plan_sweep(recipes, tmp_path / "ray"), Log()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = perform_sweep(plan, ray="local", jobs=2, watcher=log)
    assert [outcome.status for outcome in outcomes] == ["finished", "finished", "died", "finished"]
    assert (tmp_path / "once").read_text() == "x"
    assert (tmp_path / "always").read_text() == "xxx"
    assert "died 3 times" in outcomes[2].problem
    assert sorted(line[0] for line in log.lines) == ["began"] * 4 + ["ended"] * 4

    asked = batches(tmp_path / "once")
    here = run_sweep([recipes[0], recipes[1], recipes[3]], tmp_path / "here")
    assert [left(path) for path in here] == [left(plan[number].directory) for number in (0, 1, 3)]
    alone = batches(tmp_path / "once") - asked
    assert alone < asked < alone + LIFE  # it went on from a checkpoint


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_no_gpu_to_share_and_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^--gpu-share is 0.5 and the cluster has no GPU: leave it out.$"):
        run_sweep([small()], tmp_path, ray="local", gpu_share=0.5)
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:port"):
        with pytest.raises(SettingError, match=rf"^--ray is '{address}', which does not answer .* or local.$"):
            run_sweep([small()], tmp_path, ray=address)
    assert not list(tmp_path.iterdir())
