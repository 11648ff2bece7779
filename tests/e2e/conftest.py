"""The command line at hand in every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from e2e.command import Command


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Set before the first process is started, and for what runs in this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)


@pytest.fixture
def fedgmr(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command, in an empty folder."""
    return Command(tmp_path, tmp_path_factory.mktemp("streams"))
