"""The overview of the verbs: it is quick, because it loads nothing, and says what the verbs themselves say."""

import argparse
import subprocess
import sys
from importlib import import_module

import pytest

from fedgmr.cli.main import main
from fedgmr.cli.verbs import GROUPS
from fedgmr.version import __version__


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nonsense"]])
def test_the_overview_loads_no_torch(words: list[str]) -> None:
    code = (
        "import sys\nfrom fedgmr.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'yaml', 'rich') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("group", GROUPS)
def test_each_file_has_the_verbs_of_its_group(group: str) -> None:
    verbs = argparse.ArgumentParser().add_subparsers()
    import_module(f"fedgmr.cli.{group}").add_verbs(verbs)
    assert list(verbs.choices) == list(GROUPS[group])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"fedgmr {__version__}\n"
