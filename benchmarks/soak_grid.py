"""A long run on many nodes in one process: `make soak-grid`, or `PYTHONPATH=tests python benchmarks/soak_grid.py`.

The server's app is the real one; Flower's grid and the time are the stand-ins of the tests, so hours take minutes. Of
the nodes a tenth trains with the real client's app, the others send their sub-model back a little smaller. Nodes have
random speeds, a fifth of them leave and come back, nodes are killed and cut off, messages get lost, the SuperLink goes
away for a while, and the server's app is killed at any look at the clock and resumed. The status is 1 unless every task
has its end, no accepted update is missing in the model, no tick is stuck, and memory and files stay bounded.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from books import balance
from environment import header, one_thread
from flower.grid import FakeGrid, Node, Sent, identify
from flower.virtual import VirtualClock
from flwr.app import Context, Message
from tables import Row, markdown, write_csv

from fedgmr import wire
from fedgmr.experiments.result import Result
from fedgmr.files import METRICS, UPDATES
from fedgmr.flower.answers import reply
from fedgmr.flower.client.client_app import app
from fedgmr.flower.messages import TRAIN, Order
from fedgmr.flower.server.server_app import run

PERIOD = 60.0  # virtual seconds of a tick
FIRST_RUN = 2**62
GUESTS = 0.2  # share of the nodes that leave and come back
KILLED, CUT_OFF = 0.005, 0.002  # share of the nodes per period
REAL = 10  # every tenth node trains
UNANSWERED = 0.001  # share of the tasks
OUTAGES = 0.05  # per period: the SuperLink is away
GROWTH = 1.2  # memory at the end over that after a tenth of the run
LONGEST_GAP = 5 * PERIOD  # between two dispatches, with the server's app down for a period or two


def answer_at_once(message: Message, context: Context) -> Message:
    """As the client's app, but a task is done without training: its values come back, a thousandth smaller."""
    if message.metadata.message_type != TRAIN:
        return app(message, context)
    order, pieces, _ = Order.read(message)
    limits = wire.Limits(values=10**6, buffers=10**6)
    parts = [
        wire.decode_values(piece.data, expected=order.expected(piece.span, run=context.run_id), limits=limits)
        for piece in pieces
    ]
    stamp = wire.Stamp(run=context.run_id, client=order.client, version=order.version, map_version=order.map_version)
    values = 0.999 * np.concatenate([part.values for part in parts])
    data = wire.encode_update(values, stamp=stamp, last=order.level, buffers=parts[0].buffers)
    return reply(message, {"loss": 1.0, "seconds.train": 0.1}, data)


class Killed(BaseException):
    """The end of the server's app, as by SIGKILL."""


class MortalClock(VirtualClock):
    """A clock that kills whoever runs the loop, up to so many looks after each of the given moments."""

    def __init__(self, kills: Iterable[float], most: int, draw: random.Random) -> None:
        super().__init__()
        self.kills, self.most, self.draw = sorted(kills, reverse=True), most, draw
        self.loop, self.looks = threading.current_thread(), draw.randint(1, most)

    def now(self) -> float:
        """Tell the time, or kill."""
        if threading.current_thread() is self.loop and self.kills and self._now >= self.kills[-1]:
            self.looks -= 1
            if not self.looks:
                self.kills.pop()
                self.looks = self.draw.randint(1, self.most)
                raise Killed
        return super().now()


@dataclass
class SoakGrid(FakeGrid):
    """Forgets what is over, as a SuperLink does, and counts; while it is away every call waits."""

    away_until: float = 0.0
    handed_out: Counter[str] = field(default_factory=Counter)  # messages, by their type
    answered: int = 0  # tasks
    last: float = 0.0  # the moment of the last dispatch
    longest_gap: float = 0.0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Hand out messages, and note when tasks were among them."""
        messages = list(messages)
        self.handed_out.update(message.metadata.message_type for message in messages)
        ids = super().push_messages(messages)
        self.pushes.clear()
        if any(message.metadata.message_type == TRAIN for message in messages):
            now = self.clock.now()
            self.longest_gap, self.last = max(self.longest_gap, now - self.last if self.last else 0.0), now
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answer to a message, once."""
        (message_id,) = message_ids
        answers = super().pull_messages([message_id])
        if answers:
            sent: Sent = self.sent.pop(message_id)
            self.answered += sent.message.metadata.message_type == TRAIN and not answers[0].has_error()
        return answers

    def forget(self) -> None:
        """Drop what nobody will ask for: messages of a server's app that was killed."""
        now = self.clock.now()
        self.sent = {key: sent for key, sent in self.sent.items() if now < sent.at + sent.message.metadata.ttl}

    def _call(self) -> None:
        if (wait := self.away_until - self.clock.now()) > 0:
            self.clock.sleep(wait)
        super()._call()


@dataclass(kw_only=True)
class Soak:
    """One soak: so many nodes for so many periods."""

    nodes: int
    ticks: int
    kills: int  # of the server's app
    seed: int
    folder: Path
    # Sets what Flower tells the apps; a test takes it back.
    identify: Any = field(default_factory=lambda: SimpleNamespace(setattr=setattr))

    def __post_init__(self) -> None:
        identify(self.identify)
        self.draw = random.Random(self.seed)
        moments = [self.draw.uniform(0.0, 0.9 * self.ticks) * PERIOD for _ in range(self.kills)]
        self.clock = MortalClock(moments, 3 * self.nodes, self.draw)
        self.speed = {1 + n: PERIOD * 10 ** self.draw.uniform(-0.6, 0.6) for n in range(self.nodes)}
        nodes = {node: Node(node_id=node, config={"device": "cpu"}) for node in self.speed}
        for node in nodes.values():
            node.answer = app if node.node_id % REAL == 0 else answer_at_once
        self.grid = SoakGrid(self.clock, nodes, self.arrival, run_id=FIRST_RUN, blocking=True)
        self.memory: list[tuple[float, float]] = []  # virtual seconds, MiB
        self.resumes = self.unanswered = 0
        self.over = False

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.folder / "run"

    def arrival(self, node: Node, message: Message) -> float | None:
        """When an answer is there: soon for a hello, by the node's speed and some chance for a task."""
        if message.metadata.message_type != TRAIN:
            return self.clock.now() + self.draw.uniform(1.0, 20.0)
        if self.draw.random() < UNANSWERED:
            self.unanswered += 1
            return None
        return self.clock.now() + self.speed[node.node_id] * self.draw.lognormvariate(0.0, 0.2)

    def perform(self) -> Result:
        """Run to the end, however often the server's app is killed."""
        words = {
            "task": "e2e.tiny:dense",
            "seconds": self.ticks * PERIOD,
            "method.coordination.period": PERIOD,
            "fleet.clients": self.nodes,
            "fleet.densities": json.dumps([(1.0, 0.5, 0.2, 0.1, 0.05)[n % 5] for n in range(self.nodes)]),
            "training.batch_size": 10,
            "training.steps": 1,
            "deployment.min_clients": max(1, self.nodes // 2),
            "evaluation.every_seconds": 10 * PERIOD,
            "checkpoint.every": 1,
            "device": "cpu",
        }
        overrides = " ".join(f"{key}={str(value).replace(' ', '')}" for key, value in words.items())
        self.clock.spawn(self._fate)
        self.clock.spawn(self._weigh)
        while True:
            config = {"overrides": overrides, "output": str(self.run), "resume": (self.run / "recipe.yaml").exists()}
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    _, result = run(self.grid, self.grid.run_id, {**config, "trust": "e2e"}, self.clock)
                break
            except Killed:
                self.resumes += 1
                self.grid.run_id += 1  # a new run to Flower
                self.clock.sleep(self.draw.uniform(0.2, 2.0) * PERIOD)
                self.grid.forget()
        self.over = True
        assert self.clock.problems == [], self.clock.problems
        return result

    def _fate(self) -> None:
        """What happens to nodes and SuperLink, period by period."""
        nodes = list(self.grid.nodes.values())
        guests = nodes[: round(GUESTS * len(nodes))]
        turn = {node.node_id: self.draw.uniform(1.0, 20.0) for node in guests}
        while not self.over:
            self.clock.sleep(PERIOD)
            for node in guests:
                turn[node.node_id] -= 1.0
                if turn[node.node_id] <= 0:
                    node.online = not node.online
                    turn[node.node_id] = self.draw.uniform(5.0, 20.0) if node.online else self.draw.uniform(2.0, 10.0)
                    if node.online:
                        node.restart()
            for node in nodes:
                luck = self.draw.random()
                if luck < KILLED:
                    node.restart()
                elif luck < KILLED + CUT_OFF:
                    node.flicker()
            if self.draw.random() < OUTAGES:
                self.grid.away_until = self.clock.now() + self.draw.uniform(1.0, 30.0)

    def _weigh(self) -> None:
        while not self.over:
            self.memory.append((self.clock.now(), resident()))
            self.clock.sleep(self.ticks * PERIOD / 100)

    def books(self, result: Result) -> dict[str, Any]:
        """The accounts of the run, from its files and the grid's counts."""
        tenth = next(mib for at, mib in self.memory if at >= 0.1 * self.ticks * PERIOD)
        return {
            "nodes": self.nodes,
            "ticks": result.summary["ticks"],
            "server's app killed": self.resumes,
            "messages with tasks": self.grid.handed_out[TRAIN],
            "updates sent": self.grid.answered,
            **balance(self.run),
            "longest gap, s": round(self.grid.longest_gap, 1),
            "MiB after a tenth": round(tenth),
            "MiB at the end": round(self.memory[-1][1]),
            "journal, MB": round(sum(f.stat().st_size for f in self.run.glob(f"{Path(UPDATES).stem}*")) / 1e6, 1),
            "metrics, MB": round((self.run / METRICS).stat().st_size / 1e6, 1),
            "run directory, MB": round(sum(f.stat().st_size for f in self.run.rglob("*") if f.is_file()) / 1e6, 1),
        }


def resident() -> float:
    """This process's memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def verdict(books: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    found = [name for name in ("tasks without an end", "accepted and lost") if books[name] != 0]
    if books["longest gap, s"] > LONGEST_GAP:
        found.append("longest gap, s")
    if books["MiB at the end"] > GROWTH * books["MiB after a tenth"]:
        found.append("MiB at the end")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--ticks", type=int, default=200)
    parser.add_argument("--kills", type=int, default=8, help="of the server's app")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="where the figures go")
    given = parser.parse_args()
    one_thread()
    print(header(), flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        books = perform(given.nodes, given.ticks, given.kills, given.seed, Path(folder))
    rows: list[Row] = [{"figure": name, "value": value} for name, value in books.items()]
    rows.append({"figure": "minutes", "value": round((time.perf_counter() - began) / 60, 1)})
    print(markdown(rows))
    if given.csv:
        write_csv(given.csv, rows)
    if wrong := verdict(books):
        print(f"not met: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def perform(nodes: int, ticks: int, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """One soak and its books."""
    os.environ["FEDGMR_TRUST"], os.environ["XDG_CACHE_HOME"] = "e2e", str(folder / "cache")
    logging.getLogger("fedgmr").setLevel(logging.ERROR)
    soak = Soak(nodes=nodes, ticks=ticks, kills=kills, seed=seed, folder=folder)
    return soak.books(soak.perform())


if __name__ == "__main__":
    sys.exit(main())
