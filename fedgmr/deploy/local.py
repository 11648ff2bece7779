"""A whole fleet on this machine: SuperLink, SuperExec, SuperNodes and a run, watched to its end and taken down.

A program that dies is started again, and a ServerApp that was killed goes on from its last checkpoint. So this is also
the rehearsal of a deployment on several machines. Read next: `site.py` (the programs), `processes.py` (their lives).
"""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgmr.deploy.app import write_app
from fedgmr.deploy.processes import Program, Supervisor, end_marked, marked_processes
from fedgmr.deploy.site import CONNECTION, LOOPBACK, Site
from fedgmr.experiments.rundir import check_unused, open_run
from fedgmr.files import RECIPE, SUMMARY, UPDATES, last_row, read_json
from fedgmr.recipe import Recipe
from fedgmr.settings.refusals import SettingError

FOLDER = "flower"
_POLL = 0.5
_START_LIMIT = 60.0  # seconds for a program to answer, and for the ServerApp to appear
_CALL_LIMIT = 180.0  # for one call of Flower's command line
_SUBMISSIONS = 10  # in a row, without a tick between
_ASKING = 5.0  # seconds between questions to Flower, where processes cannot be looked at
_NODE_WORK = 3.0  # seconds of a core that a SuperNode needs to start
_JSON = ("--format", "json")
_GOING = ("pending", "starting", "running")
_KEPT = "logs"

Notify = Callable[[str], None]
Follow = Callable[[Path], None]
Nodes = Callable[[Site, int], Program]


def deploy_local(
    recipe: Recipe,
    run: Path,
    *,
    tls: bool,
    follow: Follow,
    notify: Notify,
    nodes: Nodes = Site.supernode,
) -> dict[str, Any]:
    """Run a paced recipe on a new fleet and return its summary.

    Args:
        recipe: with real seconds; as many SuperNodes are started as its fleet has clients.
        run: the run directory, new.
        tls: certificates, and nodes that authenticate themselves.
        follow: is called with the run directory while the run goes on, to show where it stands.
        notify: is told in one sentence when something died.
        nodes: how a client's SuperNode is started, where it is not simply on this machine.
    """
    check_unused(run)
    site = Site.create(run / FOLDER, clients=len(recipe.fleet.resolved_links()), tls=tls)
    write_app(site.app, recipe, run.absolute())
    return _finish(site, run, follow, notify, nodes)


def between_nodes() -> float:
    """Seconds between the starts of two SuperNodes, at the pace of this machine's cores."""
    return _NODE_WORK / (os.cpu_count() or 1)


def resume_local(run: Path, *, follow: Follow, notify: Notify) -> dict[str, Any]:
    """Start the fleet of an interrupted run again and let it go on from its last checkpoint."""
    open_run(run)
    ended = read_json(run / SUMMARY)
    if ended.get("clock") == "real":  # its fleet is gone, and would come to the same end
        raise SettingError(f"The run in {str(run)!r} has ended as {ended['status']}: start a new one.")
    site = Site.reopen(run / FOLDER)
    end_marked(site.folder)  # where its supervisor was killed, some of the old fleet may be left
    return _finish(site, run, follow, notify, Site.supernode)


def _finish(site: Site, run: Path, follow: Follow, notify: Notify, nodes: Nodes) -> dict[str, Any]:
    # Where the user is, so that what a recipe looks for from there is found.
    with Supervisor(site.folder, site.logs, site.environment(), cwd=Path.cwd()) as supervisor:
        fleet = LocalFleet(site, run, supervisor, notify)
        fleet.start(nodes)
        summary = fleet.run_to_its_end(follow)
    for path in site.folder.iterdir():
        if path.name != _KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return summary


class LocalFleet:
    """The programs of a site, and the run on them."""

    def __init__(self, site: Site, run: Path, supervisor: Supervisor, notify: Notify) -> None:
        self.site, self.directory, self.supervisor, self.notify = site, run, supervisor, notify
        self.submissions = 0
        self._run_id = ""

    def start(self, nodes: Nodes = Site.supernode) -> None:
        """Start the SuperLink, then everybody who talks to it."""
        self.supervisor.start(self.site.superlink())
        self._await_link()
        if self.site.tls:
            self._register()
        self.supervisor.start(self.site.superexec())
        for client in range(self.site.clients):
            self.supervisor.start(nodes(self.site, client))
            if client + 1 < self.site.clients:  # all at once they would keep the SuperLink's database locked
                time.sleep(between_nodes())

    def run_to_its_end(self, follow: Follow) -> dict[str, Any]:
        """Submit the run, again with `resume` when its ServerApp was killed, until it has a summary."""
        while True:
            self._submit()
            began = self._last_tick()
            while self._server_app_lives():
                self._look(follow)
                if read_json(self.directory / SUMMARY):
                    deadline = time.monotonic() + _START_LIMIT  # for its report
                    while self._server_app_lives() and time.monotonic() < deadline:
                        time.sleep(_POLL)
                    break
            if summary := read_json(self.directory / SUMMARY):
                return summary
            killed, onward = self._status() in _GOING, self._last_tick() != began
            if onward:
                self.submissions = 0  # a fleet that gets on may be killed any number of times
            if self.submissions == _SUBMISSIONS or not (killed or onward):
                raise ValueError(f"The run failed: {self._last_words()}")
            self.notify(f"the ServerApp {'was killed' if killed else 'failed'}; the run goes on from its checkpoint")
            self._flwr("stop", self._run_id, CONNECTION, patience=0.0)

    def _submit(self) -> None:
        # A ServerApp that died before it wrote its recipe has left nothing to resume.
        words = ["-c", "resume=true"] if (self.directory / RECIPE).exists() else []
        answer = json.loads(self._flwr("run", str(self.site.app), CONNECTION, *_JSON, *words))
        self.submissions += 1
        self._run_id = str(answer["run-id"])
        deadline = time.monotonic() + _START_LIMIT
        while not self._server_app_lives() and not read_json(self.directory / SUMMARY) and time.monotonic() < deadline:
            self._look(None)

    def _look(self, follow: Follow | None) -> None:
        for name in self.supervisor.check():
            self.notify(f"{name} died and is started again")
        if follow is not None:
            follow(self.directory)
        time.sleep(_POLL)

    def _last_tick(self) -> dict[str, Any] | None:
        return last_row(self.directory / UPDATES, event="tick")

    def _server_app_lives(self) -> bool:
        if sys.platform != "linux":
            time.sleep(_ASKING)
            return self._status() in _GOING
        commands = marked_processes(self.site.folder).values()
        return any(word.endswith("flwr-serverapp") for words in commands for word in words)

    def _status(self) -> str:
        answer = json.loads(self._flwr("list", CONNECTION, "--run-id", self._run_id, *_JSON))
        return str(answer["runs"][0]["status"]) if answer.get("runs") else "unknown"

    def _last_words(self) -> str:
        """The last output of the ServerApp; its own sentence if it left one."""
        lines = [line.strip() for line in self._flwr("log", self._run_id, CONNECTION, "--show").splitlines()]
        told = [line for line in lines if line.startswith("fedgmr: ")]
        return told[-1].removeprefix("fedgmr: ") if told else " ".join(filter(None, lines))[-600:]

    def _flwr(self, verb: str, *words: str, patience: float = _START_LIMIT) -> str:
        """Call Flower's command line; tried again while the SuperLink may be on its way back."""
        deadline = time.monotonic() + patience
        while True:
            try:
                said = self.supervisor.call(self.site.flwr(verb, *words), timeout=_CALL_LIMIT)
                if _JSON[0] in words and not (answer := json.loads(said)).get("success", True):  # and exits with 0
                    raise ValueError(f"flwr {verb} failed: {' '.join(answer['error-message'].split())[-600:]}")
                return said
            except ValueError:
                if time.monotonic() > deadline:
                    if patience:
                        raise
                    return ""
            self._look(None)

    def _await_link(self) -> None:
        deadline = time.monotonic() + _START_LIMIT
        while True:
            try:
                socket.create_connection((LOOPBACK, self.site.port), timeout=1.0).close()
                return
            except OSError as error:
                if time.monotonic() > deadline or self.supervisor.check():
                    log = (self.site.logs / "superlink.log").read_text(errors="replace")
                    raise ValueError(f"The SuperLink did not start: {' '.join(log.split())[-400:]}") from error
            time.sleep(0.1)

    def _register(self) -> None:
        """Make the nodes' public keys known; those the SuperLink's database has already are refused, which is fine."""
        for client in range(self.site.clients):
            if not self.site.database.with_name(f"registered-{client}").exists():
                self._flwr("supernode", "register", f"{self.site.key(client)}.pub", CONNECTION)
                self.site.database.with_name(f"registered-{client}").touch()
