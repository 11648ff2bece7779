"""FedGMR: federated learning for fleets whose clients have very different bandwidth.

The public names, nothing else. Importing this loads torch, numpy and safetensors only. Read next:
`fedgmr/federation.py`, the loop.
"""

import fedgmr.environment  # noqa: F401 - before anything loads torch
from fedgmr.experiments.inspection import Inspection, inspect
from fedgmr.experiments.progress import Result
from fedgmr.experiments.run import simulate
from fedgmr.fleets.network import Link
from fedgmr.fleets.presets import FleetSettings
from fedgmr.methods import Method, named_method
from fedgmr.tasks import Metric, Task
from fedgmr.training.schedules import TrainingSettings
from fedgmr.version import __version__

__all__ = [
    "FleetSettings",
    "Inspection",
    "Link",
    "Method",
    "Metric",
    "Result",
    "Task",
    "TrainingSettings",
    "__version__",
    "inspect",
    "named_method",
    "simulate",
]
