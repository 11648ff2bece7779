"""The command line at hand in every test."""

from pathlib import Path

import pytest

from e2e.command import Command


@pytest.fixture
def fedgmr(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command, in an empty folder."""
    return Command(tmp_path, tmp_path_factory.mktemp("streams"))
