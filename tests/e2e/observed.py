"""A local fleet under observation: something is done to it at a tick, and its run is held to the books afterwards.

The faults are real: SIGKILL to the real programs. Used by the slow tests; they need the extra `flower`.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedgmr.deploy.local import FOLDER, Nodes, deploy_local
from fedgmr.deploy.pace import pace_for_trial
from fedgmr.deploy.processes import marked_processes
from fedgmr.deploy.site import Site
from fedgmr.files import UPDATES, last_row
from fedgmr.recipe import load_recipe

PERIOD = 10.0
Act = Callable[["Observer"], None]


@dataclass
class Observer:
    """Watches the run, notes when ticks are seen, and acts once each is due."""

    run: Path
    acts: dict[int, Act]
    ticks: dict[int, float]  # by tick: the second at which it was first seen
    acted: float = 0.0

    def follow(self, run: Path) -> None:
        row = last_row(run / UPDATES, event="tick")
        if row is None:
            return
        tick = row["tick"]
        self.ticks.setdefault(tick, time.monotonic())
        for due in [due for due in self.acts if tick >= due]:
            act = self.acts.pop(due)
            act(self)
            self.acted = time.monotonic()

    def processes(self, program: str, *words: str) -> list[int]:
        """The fleet's processes of a program whose command line has these words."""
        found = marked_processes((self.run / FOLDER).absolute()).items()
        return [
            pid
            for pid, command in found
            if any(part.endswith(f"/{program}") for part in command[:2]) and all(w in " ".join(command) for w in words)
        ]

    def kill(self, program: str, *words: str) -> None:
        """SIGKILL, as soon as there is something to kill."""
        self._kill(lambda: self.processes(program, *words))

    def kill_at_work(self, client: int) -> None:
        """SIGKILL to a client's ClientApp after it has taken its task: it loads torch only then."""
        self._kill(
            lambda: [pid for pid in self.processes("flwr-clientapp", self.node_port(client)) if _has_loaded(pid)]
        )

    def _kill(self, find: Callable[[], list[int]]) -> None:
        deadline, old = time.monotonic() + 120, self._leaving
        while not (found := [pid for pid in find() if pid not in old]):
            assert time.monotonic() < deadline, "there is nothing to kill"
            time.sleep(0.02)
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    @property
    def _leaving(self) -> set[int]:
        """ClientApps that have loaded torch already: they may be done and about to end."""
        return {pid for pid in self.processes("flwr-clientapp") if _has_loaded(pid)}

    def node_port(self, client: int) -> str:
        """Where a node talks to its ClientApps."""
        return str(json.loads((self.run / FOLDER / "site.json").read_text())["node_ports"][client])


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that came to its end."""

    run: Path
    summary: Mapping[str, Any]
    observer: Observer
    notes: list[str]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of updates.jsonl."""
        return [json.loads(line) for line in (self.run / "updates.jsonl").read_text().splitlines()]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]

    def accepted(self, client: int) -> list[dict[str, Any]]:
        """A client's accepted updates."""
        return [e for e in self.events if e["event"] == "accepted" and e["client"] == client]

    def check_books(self) -> None:
        """The run finished, no accepted update was lost or applied twice, and every task has one end at most."""
        assert self.summary["status"] == "finished"
        ends = Counter(e["task"] for e in self.events if e["event"] in ("accepted", "unmerged", "lost"))
        assert [task for task, count in ends.items() if count > 1] == []
        started = {e["task"] for e in self.events if e["event"] == "dispatched"}
        assert set(ends) <= started
        for row in self.metrics:  # what the server merged is what was accepted, client by client, at every evaluation
            known = [e for e in self.events if e["event"] == "accepted" and e["tick"] <= row["tick"]]
            by_client = Counter(e["client"] for e in known)
            assert row["updates"] == [by_client[client] for client in range(len(row["updates"]))]
        assert marked_processes((self.run / FOLDER).absolute()) == {}

    def longest_tick(self) -> float:
        """In run seconds, over ticks that follow each other without a resume between."""
        times: list[float | None] = [
            e["seconds"] if e["event"] == "tick" else None for e in self.events if e["event"] in ("tick", "resumed")
        ]
        return max(b - a for a, b in pairwise(times) if a is not None and b is not None)

    def seconds_until_next_tick(self) -> float:
        """Wall seconds from the act to the first tick seen after it."""
        return min(at for at in self.observer.ticks.values() if at > self.observer.acted) - self.observer.acted


def deploy(
    folder: Path,
    *words: str,
    clients: int = 3,
    ticks: int = 12,
    acts: dict[int, Act] | None = None,
    nodes: Nodes = Site.supernode,
    tls: bool = False,
) -> Ended:
    """Run the quickstart on a local fleet for so many ticks, of ten seconds, however slow the machine is."""
    identity = "node" if tls else "claimed"
    settings = [f"method.coordination.period={PERIOD}", f"deployment.identity={identity}", *words]
    recipe = pace_for_trial(load_recipe("quickstart", settings), [], clients=clients, start=0.0)
    recipe = replace(recipe, seconds=ticks * PERIOD + 1.0)
    observer, notes = Observer(run=folder / "run", acts=dict(acts or {}), ticks={}), []
    summary = deploy_local(recipe, folder / "run", tls=tls, follow=observer.follow, notify=notes.append, nodes=nodes)
    assert observer.acts == {}, "the run ended before its fault"
    return Ended(run=folder / "run", summary=summary, observer=observer, notes=notes)


def _has_loaded(pid: int) -> bool:
    try:
        return "libtorch" in (Path("/proc") / str(pid) / "maps").read_text()
    except OSError:
        return False
