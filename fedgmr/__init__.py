"""FedGMR: federated learning for fleets whose clients have very different bandwidth.

The public names, nothing else. Each is loaded when it is first used, so that `fedgmr --help` does not wait for torch.
Read next: `fedgmr/federation.py`, the loop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import fedgmr.environment  # noqa: F401 - before anything loads torch
from fedgmr.version import __version__

if TYPE_CHECKING:
    from fedgmr.exchange import Diverged as Diverged
    from fedgmr.experiments.inspection import Inspection as Inspection
    from fedgmr.experiments.inspection import inspect as inspect
    from fedgmr.experiments.result import Result as Result
    from fedgmr.experiments.result import load as load
    from fedgmr.experiments.run import resume as resume
    from fedgmr.experiments.run import simulate as simulate
    from fedgmr.fleets.links import Link as Link
    from fedgmr.fleets.presets import FleetSettings as FleetSettings
    from fedgmr.methods import Method as Method
    from fedgmr.methods import named_method as named_method
    from fedgmr.reporting.watcher import Stop as Stop
    from fedgmr.reporting.watcher import Watcher as Watcher
    from fedgmr.settings.refusals import SettingError as SettingError
    from fedgmr.tasks import Metric as Metric
    from fedgmr.tasks import Task as Task
    from fedgmr.tasks import metrics as metrics
    from fedgmr.training.schedules import TrainingSettings as TrainingSettings

_HOMES = {
    "Diverged": "fedgmr.exchange",
    "FleetSettings": "fedgmr.fleets.presets",
    "Inspection": "fedgmr.experiments.inspection",
    "Link": "fedgmr.fleets.links",
    "Method": "fedgmr.methods",
    "Metric": "fedgmr.tasks",
    "Result": "fedgmr.experiments.result",
    "SettingError": "fedgmr.settings.refusals",
    "Stop": "fedgmr.reporting.watcher",
    "Task": "fedgmr.tasks",
    "TrainingSettings": "fedgmr.training.schedules",
    "Watcher": "fedgmr.reporting.watcher",
    "inspect": "fedgmr.experiments.inspection",
    "load": "fedgmr.experiments.result",
    "metrics": "fedgmr.tasks",
    "named_method": "fedgmr.methods",
    "resume": "fedgmr.experiments.run",
    "simulate": "fedgmr.experiments.run",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
