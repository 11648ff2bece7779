"""The kernels' compilation without a GPU; needs Triton: `make test-kernels`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgmr.training.execution import TRITON

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compiled.py"


@pytest.mark.skipif(not TRITON, reason="needs Triton")
@pytest.mark.parametrize("method", ["fedgmr", "fiarse"])
def test_the_quickstarts_kernels_are_within_the_limit(method: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "quickstart", f"method={method}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert "| conv_forward" in done.stdout
    assert done.stdout.endswith(", 0 past the limit\n")


@pytest.mark.skipif(TRITON, reason="says what is missing")
def test_triton_is_asked_for() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "quickstart"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Triton is missing" in done.stderr
