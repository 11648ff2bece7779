"""Completion: verbs, options, recipes, keys and values; in a real bash, too."""

import shutil
import subprocess
import sys

import pytest

from fedgmr.cli.completion import BASH, complete


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedgmr co", ["compare", "completion"]),
        ("fedgmr --v", ["--version"]),
        ("fedgmr run quick", ["quickstart"]),
        ("fedgmr run train", ["training."]),
        ("fedgmr run training.st", ["training.steps="]),
        ("fedgmr run seed=1 training.optimizer.k", ["training.optimizer.keep=", "training.optimizer.kind="]),
        ("fedgmr run meth", ["method.", "method="]),
        ("fedgmr run method=fedr", ["fedrolex"]),
        ("fedgmr run training.optimizer=", ["sgd", "adam"]),
        ("fedgmr run short=", ["true", "false"]),
        ("fedgmr run task=m", ["mnist5k"]),
        ("fedgmr run out", ["output="]),
        ("fedgmr compare --me", ["--methods"]),
        ("fedgmr export RUN --to m", ["mlflow"]),
        ("fedgmr export RUN --output ", []),
        ("fedgmr report ", []),
        ("fedgmr deploy ", ["local", "init"]),
        ("fedgmr deploy local quick", ["quickstart"]),
        ("fedgmr deploy local --c", ["--clients"]),
        ("fedgmr table p", ["plugin", "patience", "participation.", "partition.", "partition="]),  # and no recipe
        ("fedgmr table training.st", ["training.steps="]),
        ("fedgmr demo q", []),
        ("fedgmr nonsense ex", ["export"]),
    ],
)
def test_what_may_follow(line: str, expected: list[str]) -> None:
    assert sorted(complete(line)) == sorted(expected)


def test_bash_completes() -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    script = f"""
    fedgmr() {{ {sys.executable} -m fedgmr "$@"; }}
    {BASH}
    complete -p fedgmr
    try() {{ COMP_LINE="$1"; COMP_POINT=${{#1}}; _fedgmr 2>/dev/null; echo "${{COMPREPLY[*]}}"; }}
    try "fedgmr run quick"
    try "fedgmr run training.optimizer="
    try "fedgmr export x --to t"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "complete -o default -F _fedgmr fedgmr",
        "quickstart",
        "sgd adam",
        "tensorboard",
    ]
