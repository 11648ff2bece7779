"""For all tests: no deadlines, a busy machine is no failure; where CI is set, the same examples every time.

One thread, also in the processes that tests start: how many there are may change the last bit of a sum. Tasks of the
tests are trusted in run directories and messages, too.
"""

import os

from hypothesis import settings

settings.register_profile("calm", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("calm")
os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch
os.environ["FEDGMR_TRUST"] = "e2e,experiments"
