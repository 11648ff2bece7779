"""The overview of the verbs: it is quick, because it loads nothing, and says what the verbs themselves say."""

import argparse
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import write_words

from fedgmr.cli.completion import read_words
from fedgmr.cli.main import main
from fedgmr.cli.verbs import GROUPS
from fedgmr.version import __version__

ROOT = Path(__file__).parents[1]


QUICK = [["--help"], ["--version"], ["nonsense"], ["list"], ["completion"], ["completion", "--line", "fedgmr run tr"]]


@pytest.mark.parametrize("words", QUICK)
def test_the_overview_loads_no_torch(words: list[str]) -> None:
    code = (
        "import sys\nfrom fedgmr.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'yaml', 'rich') if name in sys.modules])"
    )
    before = os.times()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = os.times()
    assert run.stdout.splitlines()[-1] == "[]"
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 0.5, "seconds of a core"


def test_the_written_words_are_those_of_the_code() -> None:
    assert read_words() == write_words.words(), "run python tools/write_words.py"


@pytest.mark.parametrize("group", GROUPS)
def test_each_file_has_the_verbs_of_its_group(group: str) -> None:
    verbs = argparse.ArgumentParser().add_subparsers()
    import_module(f"fedgmr.cli.{group}").add_verbs(verbs)
    assert list(verbs.choices) == list(GROUPS[group])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"fedgmr {__version__}\n"
