"""Every Python snippet of the documents runs: those of one document in order, in one namespace, in a new folder."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from own_task import two_moons
from torch import nn

import fedgmr
from building.tree import ROOT, documents, text_of
from fedgmr.experiments.model_files import write_model

SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = {str(path): found for path in documents() if (found := SNIPPET.findall(text_of(path)))}
NOT_RUN = {"docs/sweeps.md": "its three runs of the quickstart take minutes; tests/experiments/sweep performs sweeps"}


def _moons(names: dict[str, Any]) -> None:
    """A finished run of the example's task, and a model of it in the formats that docs/model.md opens."""
    result = fedgmr.simulate(two_moons(), seconds=100, output="runs/mine", progress=False)
    for form in ("safetensors", "torch.export"):
        write_model(result, "level 0.2", form, Path(f"level-0.2.{'pt2' if form == 'torch.export' else form}"))
    names["two_moons"] = two_moons


def _demo(names: dict[str, Any]) -> None:
    """A run where the demo leaves one."""
    points = torch.eye(4).repeat(20, 1), torch.arange(4).repeat(20)
    task = fedgmr.Task(name="corners", model=lambda: nn.Linear(4, 4), train=points, test=points)
    fedgmr.simulate(task, seconds=5, output="runs/demo/fedgmr-seed3", progress=False)


BEFORE: dict[str, Callable[[dict[str, Any]], None]] = {
    "README.md": lambda names: names.update(torch=torch, nn=nn),  # as the file that it quotes
    "docs/data.md": lambda names: names.update(numpy=numpy),
    "docs/model.md": _moons,
    "docs/run-directory.md": _demo,
    "docs/theory.md": lambda _: Path("results").symlink_to(ROOT / "results"),
}


@pytest.mark.parametrize("document", sorted(set(SNIPPETS) - set(NOT_RUN)))
def test_snippets_run(document: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    BEFORE.get(document, lambda _: None)(names)
    for body in SNIPPETS[document]:
        exec(compile(body, document, "exec"), names)
    if check := AFTER.get(document):
        check(names)


def _restored(names: dict[str, Any]) -> None:
    first, last = names["result"].history[0], names["result"].history[-1]
    assert sum(last["density"]) > sum(first["density"]), "clients are restored, as the page says"


def _python_page(names: dict[str, Any]) -> None:
    _restored(names)
    assert names["stopped"].stopped["by"] == "Enough"
    assert names["saturated"].stopped["by"] == "evaluation.stop"


AFTER: dict[str, Callable[[dict[str, Any]], None]] = {
    "README.md": _restored,
    "docs/getting-started.md": _restored,
    "docs/python.md": _python_page,
}


def test_what_does_not_run_has_snippets() -> None:
    assert {*NOT_RUN, *BEFORE, *AFTER} <= set(SNIPPETS)
