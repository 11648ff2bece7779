"""MLflow: one run each, in the experiment that has the name of the exported directory.

The store is a database in `--output`, or else the one that MLFLOW_TRACKING_URI names, or one in its folder `mlflow`.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from fedgmr.reporting.run_files import RunFiles, flattened
from fedgmr.trackers.tracker import GOOD_ENDS, Values

_KEY = "fedgmr.run"
_MOST = 500  # metrics in one request; MLflow takes 1,000
_TEXTS = 100  # parameters or tags in one
_LONGEST = 6000  # characters of each


class MLflow:
    """Rows become steps, whose time is the run's seconds; MLflow takes nothing back but whole runs."""

    takes_back = False

    def __init__(self, exported: Path, output: Path | None) -> None:
        place = output or (None if "MLFLOW_TRACKING_URI" in os.environ else exported / "mlflow")
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
        self.store = os.environ["MLFLOW_TRACKING_URI"] if place is None else f"sqlite:///{place.resolve()}/mlflow.db"
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # not which tables it creates
        self.client = MlflowClient(tracking_uri=self.store)
        name = exported.resolve().name
        known = self.client.get_experiment_by_name(name)
        self.experiment = known.experiment_id if known else self.client.create_experiment(name)
        self.runs: dict[str, str] = {}

    def begin(self, run: RunFiles) -> None:
        """Open a run with the recipe as its parameters, in place of the one of an earlier export."""
        for earlier in self.client.search_runs([self.experiment], f"tags.`{_KEY}` = '{run.key}'"):
            self.client.delete_run(earlier.info.run_id)
        opened = self.client.create_run(self.experiment, run_name=run.name, start_time=0, tags={_KEY: run.key})
        self.runs[run.name] = opened.info.run_id
        params = [Param(key, str(value)[:_LONGEST]) for key, value in run.settings().items()]
        for first in range(0, len(params), _TEXTS):
            self.client.log_batch(opened.info.run_id, params=params[first : first + _TEXTS])

    def add(self, run: RunFiles, first: int, rows: Sequence[Values]) -> None:
        """Log rows."""
        metrics = [
            Metric(name, float(value), round(1000 * values["seconds"]), step)
            for step, values in enumerate(rows, start=first)
            for name, value in values.items()
        ]
        for begin in range(0, len(metrics), _MOST):
            self.client.log_batch(self.runs[run.name], metrics=metrics[begin : begin + _MOST])

    def take_back(self, run: RunFiles, first: int) -> None:
        """Never called."""
        raise NotImplementedError

    def flush(self) -> None:
        """Nothing: rows go out at once."""

    def end(self, run: RunFiles, summary: Mapping[str, Any]) -> None:
        """Finish the run, with the summary as tags."""
        opened = self.runs.pop(run.name)
        tags = [RunTag(f"summary.{name}", str(value)[:_LONGEST]) for name, value in flattened(summary).items()]
        for first in range(0, len(tags), _TEXTS):
            self.client.log_batch(opened, tags=tags[first : first + _TEXTS])
        self._finish(opened, summary)

    def close(self) -> str:
        """Finish what is open."""
        for opened in self.runs.values():
            self._finish(opened, {})
        return f"{self.store} (mlflow ui --backend-store-uri {self.store})"

    def _finish(self, opened: str, summary: Mapping[str, Any]) -> None:
        status = "FINISHED" if summary.get("status") in GOOD_ENDS else "FAILED" if summary else "KILLED"
        self.client.set_terminated(opened, status=status, end_time=round(1000 * summary.get("seconds", 0)))
