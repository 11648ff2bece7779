"""The environment of a measurement, as lines for the head of every output; and the number of threads.

Every benchmark prints `header()` first, so that a pasted table never loses its versions and its command.
"""

import os
import platform
import sys
from pathlib import Path

import numpy as np
import torch

from fedgmr.version import __version__


def one_thread() -> None:
    """Use one thread for arithmetic, so that a ratio does not depend on the load of the other cores."""
    torch.set_num_threads(1)


def header() -> str:
    """Versions, processor, threads and the command, in two lines."""
    parts = [
        f"fedgmr {__version__}",
        f"Python {platform.python_version()}",
        f"torch {torch.__version__}",
        f"numpy {np.__version__}",
        f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)",
    ]
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    return f"{', '.join(parts)}\n{command}"


def processor() -> str:
    """The processor's name, or its architecture if the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
