"""The benchmarks are scripts: they find each other because their folder is on the path, here as when they run."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "simulators")]
