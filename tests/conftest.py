"""For all tests: no deadlines, a busy machine is no failure; where CI is set, the same examples every time.

Tasks of the tests are trusted in run directories and messages, too.
"""

import os

from hypothesis import settings

settings.register_profile("calm", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("calm")
os.environ["FEDGMR_TRUST"] = "e2e,experiments"
