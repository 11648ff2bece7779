"""The command that goes on after an interruption can be pasted, however this one was called."""

import shutil
import sys
from pathlib import Path

import pytest

from fedgmr.cli.main import main
from fedgmr.cli.onward import goes_on, repeating, resuming, spoken
from fedgmr.recipe import load_recipe


@pytest.mark.parametrize(
    ("called", "found", "expected"),
    [
        ("fedgmr", None, "fedgmr"),
        ("/home/me/env/bin/fedgmr", "/home/me/env/bin/fedgmr", "fedgmr"),
        (".venv/bin/fedgmr", "/usr/bin/fedgmr", ".venv/bin/fedgmr"),
        ("/src/fedgmr/__main__.py", sys.executable, "python -m fedgmr"),
        ("/src/fedgmr/__main__.py", None, f"{sys.executable} -m fedgmr"),
        ("/usr/bin/pytest", None, "fedgmr"),
    ],
)
def test_as_it_was_called(monkeypatch: pytest.MonkeyPatch, called: str, found: str | None, expected: str) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(shutil, "which", lambda name: found)
    assert spoken(["run", "partition={kind: iid}", "output=my runs"]) == (
        f"{expected} run 'partition={{kind: iid}}' 'output=my runs'"
    )


def test_a_run_is_resumed_with_the_trust_that_it_needs_or_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedgmr"])
    recipe, words = load_recipe("quickstart", ["task=e2e.tiny:dense"]), ["run", "task=e2e.tiny:dense"]
    assert resuming(tmp_path, recipe, words) == (
        "nothing was recorded yet: `fedgmr run task=e2e.tiny:dense` starts again."
    )
    (tmp_path / "recipe.yaml").touch()
    assert resuming(tmp_path, recipe, words) == (
        f"`fedgmr resume {tmp_path} --trust e2e` goes on from the last checkpoint."
    )
    assert resuming(tmp_path, recipe, words, ("deploy", "--resume")) == (
        f"`fedgmr deploy --resume {tmp_path} --trust e2e` goes on from the last checkpoint."
    )


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "fedgmr: interrupted; `fedgmr sweep --seeds 2` goes on from the last checkpoints."),
        (MemoryError("9 GB"), 2, "fedgmr: out of memory (9 GB); `fedgmr sweep --seeds 2` goes on from"),
        (ValueError("wrong"), 2, "fedgmr: wrong\n"),
    ],
)
def test_interruptions_and_lost_memory_say_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    sentence: str,
) -> None:
    def call(given: object) -> None:
        with goes_on(lambda: repeating(["sweep", "--seeds", "2"])):
            raise error

    monkeypatch.setattr(sys, "argv", ["fedgmr"])
    monkeypatch.setattr("fedgmr.cli.start._list", call)
    assert main(["list"]) == code
    assert capsys.readouterr().err.startswith(sentence)
