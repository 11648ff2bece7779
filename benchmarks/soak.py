"""An hour with real SuperNodes on this machine: `make soak`, or `python benchmarks/soak.py [--minutes N] [--nodes N]`.

Nodes have random speeds; a fifth of them leave and come back after minutes; SuperLink, SuperExec, ServerApp, ClientApps
and SuperNodes are killed at random. The status is 1 unless every task has its end, no accepted update is missing in the
model, no tick is stuck, and memory and files stay bounded. Minutes are those of the run's clock, which stands still
while its server is away; Ctrl-C or TERM ends it earlier, with the figures so far, in which a task that was given up
after the last row of the metrics counts twice. Needs the extra `flower` and a `/proc`.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from books import balance
from environment import header
from tables import Row, markdown, write_csv

from fedgmr.deploy.local import FOLDER, deploy_local
from fedgmr.deploy.pace import measure_start, pace_for_trial
from fedgmr.deploy.processes import Program, marked_processes
from fedgmr.deploy.site import Site
from fedgmr.files import UPDATES, last_row
from fedgmr.recipe import load_recipe
from fedgmr.settings.trust import trust_packages

GUESTS = 0.2  # share of the nodes that stay away for minutes when they are killed
AWAY = 60.0, 240.0  # seconds
# How often each happens in a period of a fleet, on average; the last two to a node by chance, or to a guest.
RATES = {"superlink": 0.1, "superexec": 0.05, "serverapp": 0.15, "clientapp": 0.2, "supernode": 0.4, "guest": 0.4}
PROGRAMS = {
    "superlink": "flower-superlink",
    "superexec": "flower-superexec",
    "serverapp": "flwr-serverapp",
    "clientapp": "flwr-clientapp",
    "supernode": "supernode.py",
}
GROWTH = 1.25  # memory of the oldest process of a program at the end of its life over that after two minutes
SETTLED = 120.0  # seconds
SAMPLE = 10.0


@dataclass
class Life:
    """One process: when it was first seen, and its memory in MiB over time."""

    program: str
    memory: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it was watched."""
        return self.memory[-1][0] - self.memory[0][0]

    @property
    def settled(self) -> float:
        """Its memory after two minutes."""
        return next(mib for at, mib in self.memory if at >= self.memory[0][0] + min(SETTLED, self.seconds))


@dataclass(kw_only=True)
class Fate:
    """Kills programs of a fleet at random, and watches their memory and files."""

    run: Path
    period: float
    nodes: int
    draw: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    lives: dict[int, Life] = field(default_factory=dict)
    samples: list[Row] = field(default_factory=list)
    ticks: list[float] = field(default_factory=list)  # the moments at which a new tick was seen
    over: bool = False
    tick: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def node(self, site: Site, client: int) -> Program:
        """A SuperNode of random speed; a guest stays away for minutes when it ends."""
        program = site.supernode(client)
        config = site.node_config(client)
        slow = f"{config} task.pause={self.draw.uniform(0.0, 0.35 * self.period):.1f}"
        command = [slow if word == config else word for word in program.command]
        delay = self.draw.uniform(*AWAY) if self._guest(client) else program.restart_delay
        return replace(program, command=command, restart_delay=delay)

    def follow(self, run: Path) -> None:
        """Note the ticks."""
        row = last_row(run / UPDATES, event="tick")
        if row is not None and row["tick"] != self.tick:
            self.tick = row["tick"]
            self.ticks.append(time.monotonic())

    def work(self) -> None:
        """Kill and watch until the run is over; nobody is killed before the first ticks."""
        began = last = time.monotonic()
        while not self.over:
            time.sleep(1.0)
            with self._lock:
                if self.over:
                    return
                if self.tick >= 2:
                    self._strike()
                if time.monotonic() - last >= SAMPLE:
                    last = time.monotonic()
                    self._sample(last - began)

    def end(self) -> None:
        """The run is over."""
        with self._lock:
            self.over = True

    def _guest(self, client: int) -> bool:
        return client >= self.nodes - round(GUESTS * self.nodes)

    def _strike(self) -> None:
        for what, rate in RATES.items():
            if self.draw.random() >= rate / self.period:
                continue
            program = "supernode" if what == "guest" else what
            found = sorted(pid for pid, command in self._processes() if _runs(command, program))
            if what in ("supernode", "guest"):
                found = [pid for pid in found if self._guest(self._client(pid)) == (what == "guest")]
            if program == "superexec":  # the others belong to the SuperNodes
                found = [pid for pid in found if os.getpgid(pid) == pid]
            if found:
                kind = signal.SIGTERM if what == "guest" and self.draw.random() < 0.5 else signal.SIGKILL
                self._kill(self.draw.choice(found), what, kind)

    def _kill(self, pid: int, what: str, kind: signal.Signals) -> None:
        try:
            os.kill(pid, kind)
        except ProcessLookupError:
            return
        self.kills[what] += 1

    def _client(self, pid: int) -> int:
        try:
            words = (Path("/proc") / str(pid) / "cmdline").read_text()
        except OSError:
            return -1
        return int(words.partition("partition-id=")[2].split()[0])

    def _processes(self) -> list[tuple[int, list[str]]]:
        return list(marked_processes((self.run / FOLDER).absolute()).items())

    def _sample(self, at: float) -> None:
        total: Counter[str] = Counter()
        for pid, command in self._processes():
            program = next((name for name in PROGRAMS if _runs(command, name)), "other")
            try:
                mib = int((Path("/proc") / str(pid) / "statm").read_text().split()[1]) * 4096 / 2**20
            except OSError:
                continue
            total[program] += mib
            if program != "other":
                self.lives.setdefault(pid, Life(program)).memory.append((at, mib))
        place = self.run / FOLDER
        self.samples.append(
            {
                "minute": round(at / 60, 2),
                "tick": self.tick,
                **{f"{name} MiB": round(total[name]) for name in (*PROGRAMS, "other")},
                "database MB": megabytes(place.glob("superlink.db*")),
                "logs MB": megabytes((place / "logs").rglob("*")),
                "home MB": megabytes((place / "home").rglob("*")),
                "nodes MB": megabytes((place / "nodes").rglob("*")),
                "journal MB": megabytes(self.run.glob("updates*.jsonl")),
                "checkpoints MB": megabytes((self.run / "checkpoints").glob("*")),
            }
        )

    def figures(self) -> dict[str, Any]:
        """What was done, the longest gap, memory by the longest life of each program, and files."""
        gaps = [b - a for a, b in zip(self.ticks, self.ticks[1:], strict=False)]
        figures: dict[str, Any] = {f"{what} killed": self.kills[what] for what in RATES}
        figures["longest gap between ticks, s"] = round(max(gaps, default=0.0), 1)
        for program in PROGRAMS:
            lives = [life for life in self.lives.values() if life.program == program]
            if lives and program != "clientapp":
                life = max(lives, key=lambda life: life.seconds)
                text = f"{life.settled:.0f} -> {life.memory[-1][1]:.0f} in {life.seconds / 60:.0f} min"
                figures[f"{program}, MiB"] = text
        for name in ("database", "logs", "home", "nodes", "journal", "checkpoints"):
            half, last = (self.samples[i][f"{name} MB"] for i in (len(self.samples) // 2, -1))
            figures[f"{name}, MB half-way and at the end"] = f"{half} -> {last}"
        return figures

    def verdict(self, books: dict[str, Any]) -> list[str]:
        """What is not as it should be."""
        found = [name for name in ("tasks without an end", "accepted and lost") if books[name] != 0]
        gaps = [b - a for a, b in zip(self.ticks, self.ticks[1:], strict=False)]
        if max(gaps, default=0.0) > 2 * self.period + 120.0:  # a resume takes up to two minutes of a busy machine
            found.append("longest gap")
        for life in self.lives.values():
            if life.seconds > 5 * SETTLED and life.memory[-1][1] > GROWTH * life.settled + 20.0:
                found.append(f"memory of {life.program}")
        return found


def megabytes(files: Any) -> float:
    """The size of files, some of which may go while one looks."""
    total = 0
    for file in files:
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return round(total / 1e6, 2)


def _runs(command: list[str], program: str) -> bool:
    return any(part.endswith(f"/{PROGRAMS[program]}") for part in command[:2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--period", type=float, help="seconds of a tick (default: as `deploy local` finds it)")
    parser.add_argument("--seed", type=int, default=0, help="of the speeds and of what is killed when")
    parser.add_argument("--output", type=Path, help="a new run directory that stays")
    parser.add_argument("--csv", type=Path, help="where memory and files every ten seconds go")
    given = parser.parse_args()
    print(header(), flush=True)
    folder = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    trust_packages(["soak_task"])
    words = ["task=soak_task:paced", f"seconds={60 * given.minutes}", "deployment.identity=claimed"]
    words += ["training.steps=1", "training.batch_size=10", "partition=iid"]
    if given.period:
        words.append(f"method.coordination.period={given.period}")
    start = 0.0 if given.period else measure_start(given.nodes)
    recipe = pace_for_trial(load_recipe("quickstart", words), ["seconds"], clients=given.nodes, start=start)
    period = recipe.method.coordination.period
    assert period is not None
    with tempfile.TemporaryDirectory() as place:
        run = given.output or Path(place) / "run"
        fate = Fate(run=run, period=period, nodes=given.nodes, draw=random.Random(given.seed))
        threading.Thread(target=fate.work, daemon=True).start()
        for kind in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
            signal.signal(kind, signal.default_int_handler)
        try:
            deploy_local(recipe, run, tls=False, follow=fate.follow, notify=_notify, nodes=fate.node)
        except KeyboardInterrupt:
            _notify("ended by hand")
        finally:
            fate.end()
            if given.csv and fate.samples:
                write_csv(given.csv, fate.samples)
        books = balance(run)
    head = {"nodes": given.nodes, "minutes": given.minutes, "period, s": period, "ticks": fate.tick}
    print(markdown([{"figure": name, "value": value} for name, value in (head | books | fate.figures()).items()]))
    wrong = fate.verdict(books)
    if wrong:
        print(f"not met: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _notify(event: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {event}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
