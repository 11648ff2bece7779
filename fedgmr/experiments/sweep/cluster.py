"""Runs of a sweep on a Ray cluster: one Ray task per run, with its share of a GPU.

Ray places the tasks and starts one again where its worker died; because a run begins with what its directory holds,
such a task goes on from the run's checkpoint. Every node must see the store under the same path and have this package.
"""

import os
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedgmr.experiments.sweep.plan import PlannedRun
from fedgmr.experiments.sweep.processes import RETRIES, threads_per_worker
from fedgmr.experiments.sweep.work import Outcome, Reporter, SweepWatcher, perform_run
from fedgmr.recipe import recipe_from
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.refusals import SettingError, say_in_one_line
from fedgmr.settings.schema import plain

_LOCAL = "local"
_ANSWER = 10.0  # wall seconds to wait for a cluster
_LOOK = 0.5  # wall seconds between two looks at the cluster, and two reports of a run


def run_on_ray(
    runs: Sequence[PlannedRun], watcher: SweepWatcher, address: str, jobs: int, gpu_share: float | None
) -> dict[str, Outcome]:
    """Do all runs on the cluster at `address` ("local": one on this machine, of `jobs` workers); outcomes by key."""
    if not runs:
        return {}
    ray, ours = _connected(address, jobs)
    try:
        share = _checked_share(ray, gpu_share)
        return _Tasks(ray, runs, watcher, share, threads_per_worker(jobs) if address == _LOCAL else 1).finish()
    finally:
        if ours:
            ray.shutdown()


class _Tasks:
    """The runs as Ray tasks, and the actor that they tell their state."""

    def __init__(
        self, ray: Any, runs: Sequence[PlannedRun], watcher: SweepWatcher, gpu_share: float, threads: int
    ) -> None:
        self.ray, self.watcher = ray, watcher
        self.actor = ray.remote(_States).options(num_cpus=0).remote()
        task = ray.remote(_perform_task).options(
            num_cpus=1,
            num_gpus=gpu_share,
            max_retries=RETRIES,
            retry_exceptions=[MemoryError, torch.cuda.OutOfMemoryError],
        )
        self.runs = {run.key: run for run in runs}
        self.pending = {
            task.remote(run.key, plain(run.recipe), str(run.directory.absolute()), self.actor, threads, sys.path): run
            for run in runs
        }
        self.watchers: dict[str, Watcher] = {}  # of the runs that have begun, by key

    def finish(self) -> dict[str, Outcome]:
        """Wait for all; what is unfinished when this is interrupted is cancelled, and can be resumed."""
        outcomes = {}
        try:
            while self.pending:
                done, _ = self.ray.wait(list(self.pending), timeout=_LOOK)
                self._look()
                for reference in done:
                    run = self.pending.pop(reference)
                    outcome = outcomes[run.key] = self._outcome(reference)
                    self._begin(run)
                    self.watcher.end(run.name, outcome.status, outcome.accuracy)
        finally:
            for reference in self.pending:
                self.ray.cancel(reference, force=True)
        return outcomes

    def _look(self) -> None:
        try:
            states, told = self.ray.get(self.actor.read.remote(), timeout=10 * _LOOK)
        except self.ray.exceptions.RayError:  # only the display is poorer without it
            return
        for line in told:
            warnings.warn(line, stacklevel=2)
        for key in states.keys() & {run.key for run in self.pending.values()}:  # some tell more after their end
            self._begin(self.runs[key])
            if "stage" in states[key]:
                self.watchers[key].preparing(states[key]["stage"])
            elif states[key]:
                self.watchers[key].after_tick(states[key])

    def _begin(self, run: PlannedRun) -> None:
        """Tell the watcher of a run's begin, once."""
        if run.key not in self.watchers:
            self.watchers[run.key] = self.watcher.begin(run.name, run.recipe.label, run.recipe.seconds)

    def _outcome(self, reference: Any) -> Outcome:
        try:
            outcome: Outcome = self.ray.get(reference)
            return outcome
        except self.ray.exceptions.RayTaskError as error:
            return Outcome(status="failed", problem=str(error))
        except self.ray.exceptions.RayError as error:
            return Outcome(status="died", problem=f"Its worker died {RETRIES + 1} times: {say_in_one_line(error)}")


class _States:
    """An actor that the tasks tell their state, and that the sweep reads now and then."""

    def __init__(self) -> None:
        self.states: dict[str, Mapping[str, Any]] = {}
        self.told: list[str] = []

    def write(self, key: str, state: Mapping[str, Any]) -> None:
        """Keep the newest state of a run, or the stage before its first tick; empty when it begins."""
        self.states[key] = state

    def tell(self, line: str) -> None:
        """Keep a warning."""
        self.told.append(line)

    def read(self) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """Return what was written since the last time."""
        states, told, self.states, self.told = self.states, self.told, {}, []
        return states, told


def _perform_task(
    key: str, data: Mapping[str, Any], directory: str, actor: Any, threads: int, path: Sequence[str]
) -> Outcome:
    """One run, in a Ray worker."""
    sys.path += [place for place in path if place not in sys.path]  # for a user's own tasks and methods
    torch.set_num_threads(threads)
    name = Path(directory).name

    def tell(message: Warning | str, *_: object, **__: object) -> None:
        actor.tell.remote(f"{name}: {message}")

    warnings.showwarning = tell
    actor.write.remote(key, {})
    reporter = Reporter(
        lambda kind, told: actor.write.remote(key, told if kind == "update" else {kind: told}),
        _LOOK,
    )
    return perform_run(recipe_from(data), Path(directory), reporter)


def _connected(address: str, jobs: int) -> tuple[Any, bool]:
    """Ray, and whether the connection is to be closed after the sweep."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise SettingError("--ray needs the package ray: run pip install ray.") from None
    if ray.is_initialized():
        return ray, False
    _check_address(address)
    of_our_own = {"num_cpus": jobs, "include_dashboard": False} if address == _LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, **of_our_own)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise SettingError(f"--ray is {address!r}, which cannot be used ({say_in_one_line(error)}).") from error
    return ray, True


def _check_address(address: str) -> None:
    """Refuse a host and port where nobody listens; Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, ValueError) as error:
        reason = say_in_one_line(error)
        fix = "give HOST:PORT of a cluster or local"
        raise SettingError(f"--ray is {address!r}, which does not answer ({reason}): {fix}.") from error


def _checked_share(ray: Any, wanted: float | None) -> float:
    gpus = ray.cluster_resources().get("GPU", 0)
    if wanted is None:
        return 1.0 if gpus else 0.0
    if wanted > 0 and not gpus:
        raise SettingError(f"--gpu-share is {wanted} and the cluster has no GPU: leave it out.")
    return wanted
