"""Inspections: sizes by hand, what is refused, and the command."""

from dataclasses import replace
from pathlib import Path

import pytest
from e2e import tiny
from torch import nn

import fedgmr
from fedgmr.cli.main import main
from fedgmr.experiments.rundir import read_recipe
from fedgmr.wire import ValueType, update_bytes


def test_sizes_by_hand() -> None:
    # Sixteen hidden units of 16 + 1 + 4 numbers each, and four biases: 340. A quarter is nearest to four units.
    ladder = {"ladder": [0.25, 0.5, 1.0]}
    methods = [fedgmr.named_method(name, ladder) for name in ("heterofl", "fiarse")]
    seen = fedgmr.inspect(tiny.dense(), methods=methods)
    assert (seen.parameters, seen.whole, seen.refused) == (340, (), {})
    assert seen.groups == ((16, 1, ("0.weight", "0.bias", "2.weight")),)
    assert [level.parameters for level in seen.methods["heterofl"]] == [21 * 4 + 4, 21 * 8 + 4, 340]
    assert [level.kept for level in seen.methods["heterofl"]] == [(4,), (8,), (16,)]
    assert [level.width for level in seen.methods["heterofl"]] == [0.25, 0.5, 1.0]
    assert [level.parameters for level in seen.methods["fiarse"]] == [85, 170, 340]
    assert [level.width for level in seen.methods["fiarse"]] == [None] * 3
    assert seen.methods["heterofl"][0].bytes_up == update_bytes(88, 0, ValueType.FP32)
    lines = str(seen).splitlines()
    assert lines[0] == "dense: 340 parameters, 1 groups of channels"
    assert lines[4].split() == ["0", "16", "1", "4", "8", "16", "0.weight,", "0.bias,", "2.weight"]
    assert next(line for line in lines if line.startswith("heterofl")).split()[1:5] == ["0.25", "0.250", "88", "25.9"]


def test_a_method_that_cannot_cut_the_model_is_named() -> None:
    seen = fedgmr.inspect(tiny.dense())
    assert list(seen.refused) == ["heterofl", "fjord", "fedrolex"]  # a twentieth and a tenth are one unit
    assert "0.05 and 0.1 come to the same width" in str(seen)
    assert [level.parameters for level in seen.methods["fedavg"]] == [340]


def normed() -> nn.Module:
    """Eight channels in four groups, and a softmax over three."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(8, 3), nn.Softmax(1), nn.Linear(3, 4)),
    )


def test_a_resolved_recipe_says_what_the_widths_keep(tmp_path: Path) -> None:
    task = replace(tiny.normed(), model=normed)
    ladder = fedgmr.named_method("heterofl", {"ladder": [0.5, 1.0]})
    with pytest.warns(UserWarning, match="6: softmax runs over its channels"):
        fedgmr.simulate(
            task, method=ladder, fleet=[{"down": 1, "up": 1, "density": 0.5}], seconds=1.0, output=tmp_path / "run"
        )
    # Per channel 9 + 1 + 2 + 3 numbers, and 3 + 16 besides; half of eight is a multiple of four: 79 of 139.
    assert (tmp_path / "run" / "recipe.yaml").read_text().splitlines()[-3:] == [
        "# Widths, and their shares of all coordinates: 0.875 (56.8 %), 1.000 (100.0 %).",
        "# A group norm: channels are kept in whole multiples of 4.",
        "# Full width at every density: 6: softmax runs over its channels.",
    ]
    assert read_recipe(tmp_path / "run").method == ladder  # comments are no settings


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "quickstart", "task=e2e.tiny:normed", "seed=1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("normed: ")
    for method in ("fedgmr", "fedavg", "fedasync", "fiarse"):
        assert f"\n{method} " in printed
