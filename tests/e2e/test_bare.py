"""Where matplotlib and the optional packages are missing, a recipe runs and resumes."""

import json
from pathlib import Path

import pytest

from e2e.command import Command, spawn, write_recipe
from e2e.recipes import RECIPES

# Imported by Python itself at its start, from the first place on the path.
BLOCKER = """
import sys

BLOCKED = {"matplotlib", "mlxtend", "flwr", "pandas", "scipy", "sklearn"}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, Blocker())
"""


def test_a_run_needs_no_figures(fedgmr: Command, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, blocked = fedgmr.folder, tmp_path_factory.mktemp("blocked")
    (blocked / "sitecustomize.py").write_text(BLOCKER)
    write_recipe(folder / "r.json", RECIPES["fedgmr"])

    def run(*words: str, code: int = 0) -> str:
        process = spawn(*words, folder=folder, path=blocked)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        assert "warning" not in err
        return err if code else out

    out = run("run", "r.json", "output=run", "checkpoint.every=4")
    assert "Report: run/report.html" in out
    assert "--figures needs the package matplotlib" in run("report", "run", "--figures", "figures", code=2)
    whole = _left(folder / "run")

    for name in ("summary.json", "model.safetensors"):  # as if it had been interrupted
        (folder / "run" / name).unlink()
    run("resume", "run")
    assert _left(folder / "run") == whole
    assert fedgmr("run", "r.json", "output=full").code == 0
    assert _left(folder / "full") == whole


def _left(run: Path) -> tuple[bytes, list[dict[str, object]]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return (run / "model.safetensors").read_bytes(), [{**row, "wall": 0} for row in rows]
