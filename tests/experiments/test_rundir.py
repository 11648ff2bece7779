"""The lock of a run directory."""

import fcntl
import threading
from pathlib import Path

import pytest

from fedgmr.experiments.rundir import locked
from fedgmr.reporting.run_files import RunFiles
from fedgmr.settings.refusals import SettingError


def test_who_only_looks_at_the_lock_does_not_keep_a_run_out(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        leaving = threading.Timer(0.08, fcntl.flock, (looking, fcntl.LOCK_UN))
        leaving.start()
        with locked(tmp_path):
            assert RunFiles(path=tmp_path, name="run").at_work()
        leaving.join()


def test_who_stays_keeps_it_out(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(SettingError, match="in use by another process"), locked(tmp_path):
        pass
