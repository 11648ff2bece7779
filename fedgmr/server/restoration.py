"""Restoration: when a client moves up (paper, GMR; A2-A5, section 3.5).

The saturation rule watches a validation metric of each client and, if wanted, one of the server's own; the fixed-time
rule raises a floor density with the time that has passed. Both only ever move a client up its ladder. Read next:
`validation.py`, which measures what a rule asks for; `retreat.py`, which takes levels back.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from fedgmr.server.retreat import LastTask, Retreat
from fedgmr.submodels.levels import Ladder

_RETREAT = {"help": "takes levels back from clients whose links have become too slow; none: never"}


@dataclass(kw_only=True, eq=False)
class Watcher:
    """Counts the observations since a metric was last better than ever before."""

    best: float = -math.inf
    waited: int = 0
    hold: int = 0  # checks for which the client may not move

    def observe(self, metric: float) -> int:
        """The number of observations in a row that have not exceeded the best."""
        self.best, self.waited = (metric, 0) if metric > self.best else (self.best, self.waited + 1)
        return self.waited

    def clear(self) -> None:
        """Forget best and count; the next observation is a first one."""
        self.best, self.waited = -math.inf, 0


@dataclass(kw_only=True, eq=False)
class Memory:
    """What a rule remembers from check to check; the server keeps it, and a checkpoint stores it."""

    clients: dict[int, Watcher] = field(default_factory=dict)
    server: Watcher = field(default_factory=Watcher)
    seen: float | None = None  # the server's watcher: its last metric
    armed: bool = False  # the same: whether it has fired once
    floor: int = -1  # the level below which it leaves nobody
    pause: int = 0  # checks at which nobody is watched
    last: dict[int, LastTask] = field(default_factory=dict)  # by client, where there is a retreat

    def clear(self) -> None:
        """Let all watchers begin again."""
        for watcher in (self.server, *self.clients.values()):
            watcher.clear()


class Metrics(Protocol):
    """Validation metrics at a check, each measured when it is asked for; None where there is none."""

    def of_level(self, level: int) -> float | None:
        """That of the global model's sub-model at a level."""

    def of_update(self, client: int) -> float | None:
        """That of a client's own update; only for rules with `own_updates`."""

    def of_padded(self) -> float | None:
        """That of the zero-padded mean of the latest updates."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The inputs of a restoration rule at a check."""

    ladder: Ladder
    levels: Mapping[int, int]  # by client
    memory: Memory
    metrics: Metrics
    now: float  # seconds
    seconds: float  # the time budget
    sizes: Sequence[int] = ()  # coordinates by level, for a retreat
    period: float | None = None  # the same

    def reached(self, client: int, goal: int, retreat: Retreat | None) -> int:
        """The highest level up to `goal` that a client may move to; its own where there is none."""
        if retreat is None:
            return goal
        assert self.period is not None, "a method without a period is refused"
        own, last = self.levels[client], self.memory.last.get(client)
        levels = range(goal, own, -1)
        return next((n for n in levels if retreat.admits(last, n, sizes=self.sizes, period=self.period)), own)

    def lifted(self, floor: int, retreat: Retreat | None) -> dict[int, int]:
        """New levels of the clients below a floor: up to it, or as far as they may."""
        goals = {client: self.reached(client, floor, retreat) for client, level in self.levels.items() if level < floor}
        return {client: level for client, level in goals.items() if level > self.levels[client]}

    @property
    def below(self) -> dict[int, int]:
        """The levels of the clients that can still move up."""
        return {client: level for client, level in self.levels.items() if level < len(self.ladder) - 1}


class Restoration(Protocol):
    """A restoration rule."""

    kind: ClassVar[str]

    @property
    def own_updates(self) -> bool:
        """Whether it asks for the metrics of clients' own updates."""
        return False

    @property
    def server_only(self) -> str:
        """The setting, in words, for which the server needs samples of its own; empty: there is none."""
        return ""

    @property
    def by_budget(self) -> bool:
        """Whether its moves depend on the time budget, so that no run can be prolonged; true unless a rule says no."""
        return True

    @property
    def retreat(self) -> Retreat | None:
        """When the server takes levels back; None: never."""
        return None

    def restore(self, check: Check) -> dict[int, int]:
        """New level by client, for the clients that move."""

    def checks_left(self, client: int, memory: Memory) -> int | None:
        """After how many checks without improvement a client would move up; None where the rule counts no checks."""
        return None


@dataclass(frozen=True, kw_only=True)
class Saturation(Restoration):
    """A client moves up when its validation metric has saturated (ESM)."""

    kind: ClassVar[str] = "saturation"
    patience: int = field(
        default=5, metadata={"at_least": 1, "help": "checks without improvement before a client moves up"}
    )
    scope: Literal["client", "global"] = field(
        default="client",
        metadata={
            "help": "the metric of each client's sub-model, or `global`: that of the whole model, for all clients"
        },
    )
    metric: Literal["sub_model", "own_update"] = field(
        default="sub_model",
        metadata={
            "help": (
                "what is measured for a client: its sub-model of the global model, or `own_update`: the model "
                "that it has sent, measured at its first update and at every `method.interval`-th of its own; in "
                "between its last value counts as no improvement"
            )
        },
    )
    hold_off: int = field(
        default=0,
        metadata={
            "at_least": 0,
            "help": (
                "after a move a client stays for this many patiences; its count runs on, so it may move as soon "
                "as they are over"
            ),
        },
    )
    server: bool = field(
        default=False,
        metadata={
            "help": (
                "also watch the zero-padded mean of the latest updates: when it has stopped improving, nobody "
                "stays below the next level of the ladder, starting with the lowest, and all watching pauses for "
                "one patience; the first time only arms it"
            )
        },
    )
    retreat: Retreat | None = field(default=None, metadata=_RETREAT)

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience is {self.patience}: give at least 1 check.")
        if self.own_updates and self.scope == "global":
            raise ValueError("metric is own_update and scope is global: an update is one client's, give scope: client.")

    @property
    def by_budget(self) -> bool:
        """Never: saturation is seen in the metrics."""
        return False

    @property
    def own_updates(self) -> bool:
        """Whether the metric is that of clients' own updates."""
        return self.metric == "own_update"

    @property
    def server_only(self) -> str:
        """The metrics that clients cannot report."""
        return "metric is own_update" if self.own_updates else "server is true" if self.server else ""

    def restore(self, check: Check) -> dict[int, int]:
        """One level up for each client whose watcher has waited long enough; to the floor where the server's has."""
        memory, below = check.memory, check.below
        if not below:
            return {}
        for watcher in memory.clients.values():
            watcher.hold = max(0, watcher.hold - 1)
        if memory.pause:
            memory.pause -= 1
            return {}
        if self.server and self._raised(check):
            return check.lifted(memory.floor, self.retreat)
        moved = {}
        for client, level in below.items():
            metric = self._metric(client, check)
            if metric is None:
                continue
            watcher = memory.clients.setdefault(client, Watcher())
            saturated = watcher.observe(metric) >= self.patience and not watcher.hold
            if saturated and check.reached(client, level + 1, self.retreat) > level:
                moved[client] = level + 1
                watcher.clear()
                watcher.hold = self.hold_off * self.patience
        if moved:
            memory.server.clear()
        return moved

    def checks_left(self, client: int, memory: Memory) -> int:
        """What is left of the patience or hold-off, and of a pause; a first check only begins to compare."""
        watcher = memory.clients.get(client, Watcher())
        first = 1 if watcher.best == -math.inf else 0
        return max(1, first + self.patience - watcher.waited + memory.pause, watcher.hold)

    def _metric(self, client: int, check: Check) -> float | None:
        if self.own_updates:
            return check.metrics.of_update(client)
        return check.metrics.of_level(check.levels[client] if self.scope == "client" else len(check.ladder) - 1)

    def _raised(self, check: Check) -> bool:
        """Whether the server's watcher raises the floor now; the first time that it fires it only arms."""
        memory = check.memory
        if memory.floor == len(check.ladder) - 1:
            return False
        metric = check.metrics.of_padded()
        if metric is None or metric == memory.seen:
            return False  # a model that has collapsed to one answer says nothing
        memory.seen = metric
        if memory.server.observe(metric) < self.patience:
            return False
        if not memory.armed:
            memory.armed, memory.server.waited = True, 0
            return False
        memory.floor += 1
        memory.pause = self.patience
        memory.clear()
        return True


@dataclass(frozen=True, kw_only=True)
class FixedTime(Restoration):
    """A floor density that rises at equal shares of the time: ladder[j] from progress j / len(ladder) on."""

    kind: ClassVar[str] = "fixed_time"
    seconds: float | None = field(
        default=None, metadata={"above": 0, "help": "the time of which they are shares; `null`: the run's time budget"}
    )
    retreat: Retreat | None = field(default=None, metadata=_RETREAT)

    @property
    def by_budget(self) -> bool:
        """Whether they are shares of the run's own time."""
        return self.seconds is None

    def restore(self, check: Check) -> dict[int, int]:
        """Raise every client below the floor to it."""
        progress = check.now / (check.seconds if self.seconds is None else self.seconds)
        floor = min(len(check.ladder) - 1, int(progress * len(check.ladder) + 1e-9))
        return check.lifted(floor, self.retreat)
