"""The page about own data, and its examples."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_snippets_of_the_page_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    text, names = (ROOT / "docs" / "own-data.md").read_text(), {"__name__": "page"}
    for body in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(body, names)
    found: Any = names
    assert found["owned"].users[:5].tolist() == [0, 1, 2, 3, 0]
    assert found["wards"].users.tolist() == [0] * 100 + [1] * 400
    assert found["result"].recipe.partition.kind == "by_user"
    assert "<600 samples, lazy>" in capsys.readouterr().out


def test_the_page_shows_the_example_as_it_is() -> None:
    text, example = (ROOT / "docs" / "own-data.md").read_text(), (ROOT / "examples" / "hugging_face.py").read_text()
    shown = next(body for body in re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if "topics" in body)
    assert re.sub(r"\s", "", shown) in re.sub(r"\s", "", example)


def test_lazy_example_keeps_its_memory() -> None:
    command = [sys.executable, str(ROOT / "examples" / "lazy_dataset.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    disk, before, most, accuracy = (float(number) for number in re.findall(r"\d[\d.]*", done.stdout))
    assert disk > 390
    assert most - before < disk / 2
    assert accuracy > 0.5


def test_example_of_users_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "users_own_split.py"), run_name="__main__")
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("by_user")
    assert float(first.split()[-1]) > 0.75
