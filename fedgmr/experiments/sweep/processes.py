"""Runs of a sweep in worker processes on this machine.

A worker does one run after the other and tells this process how they go. One that dies (killed, out of memory) is
replaced, and its run goes on from its checkpoint; one whose parent is gone ends by itself. Interrupting this process
stops them all; whatever they had recorded can be resumed. The second half of the file is what the workers do.
"""

import os
import signal
import threading
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from fedgmr.experiments.allocation import memory_shortage
from fedgmr.experiments.sweep.plan import PlannedRun
from fedgmr.experiments.sweep.work import Outcome, Reporter, SweepWatcher, perform_run
from fedgmr.recipe import recipe_from
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.schema import plain

RETRIES = 2  # how often a run is taken up again after its process died
_PATIENCE = 5.0  # wall seconds a worker has to end
_UPDATE_INTERVAL = 0.2  # wall seconds between two reports of a run


def run_in_processes(runs: Sequence[PlannedRun], watcher: SweepWatcher, jobs: int) -> dict[str, Outcome]:
    """Do all runs, `jobs` at once; the outcomes by key."""
    pool = _Pool(runs, watcher, jobs)
    try:
        while pool.outcomes.keys() != {run.key for run in runs}:
            pool.step()
    finally:
        pool.stop()
    return pool.outcomes


def threads_per_worker(jobs: int) -> int:
    """The threads one run would take, shared out. By `jobs`, not by how many runs are left: a sum may depend on it."""
    return max(1, torch.get_num_threads() // jobs)


class _Worker:
    """A process, the pipe to it, and the run it is at."""

    def __init__(self, threads: int) -> None:
        self.connection, self.process = _start_process(_serve, threads)
        self.run: PlannedRun | None = None
        self.watcher: Watcher | None = None  # of the run

    def last_words(self) -> str:
        """Why a process that closed its pipe ended."""
        self.process.join(_PATIENCE)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"

    def stop(self) -> None:
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


class _Pool:
    """The workers of a sweep."""

    def __init__(self, runs: Sequence[PlannedRun], watcher: SweepWatcher, jobs: int) -> None:
        self.waiting, self.watcher = deque(runs), watcher
        self.size, self.threads = min(jobs, len(runs)), threads_per_worker(jobs)
        self.outcomes: dict[str, Outcome] = {}
        self.deaths: Counter[str] = Counter()
        self.workers: list[_Worker] = []

    def step(self) -> None:
        """Give out runs, then take in what the workers tell."""
        while self.waiting and len(self.workers) < self.size:
            self.workers.append(_Worker(self.threads))
        for worker in self.workers:
            if worker.run is None and self.waiting:
                self._start(worker)
        ready = wait([worker.connection for worker in self.workers])
        for worker in [worker for worker in self.workers if worker.connection in ready]:
            try:
                kind, content = worker.connection.recv()
            except (EOFError, OSError):
                self._bury(worker)
            else:
                self._take(worker, kind, content)

    def stop(self) -> None:
        """End all workers; those at a run leave it as it is, to be resumed."""
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.stop()

    def _start(self, worker: _Worker) -> None:
        run = self.waiting.popleft()
        try:
            worker.connection.send((plain(run.recipe), str(run.directory)))
        except OSError:  # it died while it was idle, and is buried next
            self.waiting.appendleft(run)
            return
        worker.run = run
        worker.watcher = self.watcher.begin(run.name, run.recipe.label, run.recipe.seconds)

    def _take(self, worker: _Worker, kind: str, content: Any) -> None:
        run, watcher = worker.run, worker.watcher
        if run is None or watcher is None:
            return  # a warning while it was idle
        if kind == "stage":
            watcher.preparing(content)
        elif kind == "update":
            watcher.after_tick(content)
        elif kind == "warning":
            warnings.warn(f"{run.name}: {content}", stacklevel=2)
        else:
            worker.run = None
            self._end(run, content)

    def _bury(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        words, run = worker.last_words(), worker.run
        worker.stop()
        if run is None:
            return
        self.deaths[run.key] += 1
        if self.deaths[run.key] > RETRIES:
            problem = f"Its process {words} {self.deaths[run.key]} times; the run can be resumed."
            self._end(run, Outcome(status="died", problem=problem))
        else:
            warnings.warn(f"{run.name}: its process {words}; the run goes on from its checkpoint.", stacklevel=2)
            self.waiting.append(run)  # last, when what it fell short of may be free again

    def _end(self, run: PlannedRun, outcome: Outcome) -> None:
        self.outcomes[run.key] = outcome
        self.watcher.end(run.name, outcome.status, outcome.accuracy)


def call_in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own; returns None where it raises, or its process dies."""
    connection, process = _start_process(_answer, threads_per_worker(1), function, arguments)
    try:
        return connection.recv()
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()
        connection.close()


def _start_process(work: Callable[..., None], threads: int, *arguments: Any) -> tuple[Connection, SpawnProcess]:
    """Start a process with a pipe to it; it takes so many threads and leaves Ctrl-C to this one."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, threads, *arguments), name="fedgmr sweep worker")
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        process.start()
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    theirs.close()  # else its death would not close the pipe
    return ours, process


def _serve(connection: Connection, threads: int) -> None:
    """A worker: do the runs that come through the pipe until it closes."""
    _settle(threads)

    def tell(message: Warning | str, *_: object, **__: object) -> None:
        connection.send(("warning", str(message)))

    warnings.showwarning = tell
    while True:
        try:
            data, directory = connection.recv()
        except EOFError:
            return
        reporter = Reporter(lambda *told: connection.send(told), _UPDATE_INTERVAL)
        connection.send(("ended", _outcome(data, Path(directory), reporter)))


def _answer(connection: Connection, threads: int, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """A process for one call: its result through the pipe, None where it raises."""
    _settle(threads)
    try:
        result = function(*arguments)
    except Exception:
        result = None
    connection.send(result)


def _settle(threads: int) -> None:
    """Prepare a process of a sweep: it leaves Ctrl-C to its parent and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _outcome(data: Mapping[str, Any], directory: Path, reporter: Reporter) -> Outcome:
    try:
        return perform_run(recipe_from(data), directory, reporter)
    except Exception as error:
        if memory_shortage(error) is not None:
            # Several runs may share a device: end, so that this one's memory is free when it is taken up again.
            raise SystemExit(f"{directory.name}: {error}") from error
        return Outcome(status="failed", problem=traceback.format_exc())


def _follow_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
