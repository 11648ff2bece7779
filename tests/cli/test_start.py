"""The verbs for a beginning: doctor and demo."""

import argparse
import re
from pathlib import Path

import pytest

from fedgmr.cli.main import main, make_parser
from fedgmr.experiments import diagnosis
from fedgmr.version import __version__


def test_doctor_finds_nothing_broken_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line.split("  ")[0]: line for line in lines}
    assert __version__ in found["fedgmr"]
    assert {"Python", "packages", "device", "threads", "recipes", "data"} <= set(found)
    assert "mnist5k" in found["data"]
    assert lines[-1] == "Nothing is broken."


def test_doctor_says_what_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken() -> str:
        raise RuntimeError("no kernel image is available\nfor this device")

    versions = {"numpy": "1.0", "mlxtend": None}
    monkeypatch.setattr(diagnosis, "_device", broken)
    monkeypatch.setattr(diagnosis, "_version", lambda name: versions.get(name, "999" if name == "torch" else None))
    assert main(["doctor", "--root", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "RuntimeError: no kernel image is available for this device" in out
    assert "numpy 1.0 (not >=1.26)" in out
    assert "torch 999, " in out
    assert "safetensors missing" in out or "pyyaml missing" in out
    assert re.search(r"^extra demo +mlxtend missing$", out, re.MULTILINE)  # an extra may be
    assert f"for none in {tmp_path}" in out
    assert out.endswith("Broken: packages, device.\n")


def test_demo_is_the_comparison_of_the_quickstart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[argparse.Namespace] = []
    monkeypatch.setattr("fedgmr.cli.sweeps._compare", given.append)
    assert main(["demo", "seconds=300", "output=elsewhere"]) == 0
    assert given[0].recipe == ["quickstart", "output=runs/demo", "seconds=300", "output=elsewhere"]  # the last counts
    assert vars(given[0]).keys() == vars(make_parser().parse_args(["compare"])).keys(), "whatever a comparison asks for"
    assert given[0].methods == "fedgmr,fedgmr_without_restoration,fedavg,fedasync"
    assert main(["demo", "paper/cifar10"]) == 2
    assert "demo runs the quickstart" in capsys.readouterr().err
