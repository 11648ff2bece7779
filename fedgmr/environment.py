"""The environment of the process, set before torch is loaded, which reads it once: threads that wait sleep.

By default OpenMP's threads spin while they wait, and two runs on the same cores hold each other up. How a thread waits
changes no result; their number does, and stays as it is.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
