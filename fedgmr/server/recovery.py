"""Recovery: the server keeps its last good models, and goes back to one when the model has collapsed.

A check every some ticks looks at the length of the weights and at the server's validation metric. Where a device of
this process trains, nobody waits for it: what a check has begun the next one judges. Where most of what was learned is
lost, where the weights leave their scale, where most clients diverge, or where a client that is put on hold has worked
on the model, the last good model comes back. The buffer is emptied, tasks cut from later models are undone, and the
client that is to blame waits. Read next: `holds.py`; docs/security.md, what this holds against.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedgmr.exchange import DIVERGED, Diverged, Update, Verdict
from fedgmr.server.aggregation import MaskAware
from fedgmr.transfer import Fetched

if TYPE_CHECKING:
    from fedgmr.server.server import Server, Validate

_UNDONE = "undone"  # the verdict on an update of a task that was cut from a model that is gone
_SPOILING = ("change", "non-finite")  # refusals of clients whose earlier updates may have been of that kind too
_GOOD = 0.9  # share of what was learned that a good model has
_KEPT = 2  # good models; the older one is gone back to, because the newer may be spoilt in part
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RecoveryRule:
    """When the server goes back to an earlier model; a run whose learning rate is not too large never does."""

    times: int = field(
        default=3,
        metadata={
            "at_least": 0,
            "help": (
                "recoveries in a row, without a good model in between, after which the run ends as diverged; `0`: "
                "the server never goes back"
            ),
        },
    )
    every: int | None = field(
        default=None,
        metadata={"at_least": 1, "help": "ticks between two looks at the model; `null`: `method.interval`"},
    )
    lost: float = field(
        default=0.75,
        metadata={
            "above": 0,
            "at_most": 1,
            "help": "the model has collapsed where so much of what was learned is lost",
        },
    )
    gain: float = field(
        default=0.25,
        metadata={
            "above": 0,
            "help": (
                "if at least so much had been learned, as a share of the metric's range; where it has only a best "
                "value, such as an error, of the way there from the first model"
            ),
        },
    )
    scale: float = field(
        default=100.0,
        metadata={
            "above": 1,
            "help": "the weights have left their scale where they are so many times as long as at the last look",
        },
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Good:
    """A model to go back to."""

    tick: int
    model: Tensor
    buffers: Tensor
    previous: Tensor | None = None  # the model one merge earlier, for the ranking


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """A model that is looked at; a device may still measure it, and whoever asks waits."""

    model: Good
    length: Callable[[], float]  # of the weights
    metric: Callable[[], float] | None  # None: nobody can tell


class Recovery:
    """Remembers good models, what had been learned, and what was undone."""

    def __init__(self, rule: RecoveryRule, interval: int, scores: tuple[float, float], good: Good) -> None:
        """`scores` are the lowest and the highest; where none is the highest, only the weights are looked at."""
        self.rule, self._every = rule, rule.every or interval
        self._lowest, self._highest = scores
        self.goods = [good]
        self.first: float | None = None  # the metric of the first model
        self.best = -math.inf
        self.length = float(_length(good.model))  # of the weights at the last check
        self.in_row = 0
        self.merged = 0  # updates since the last check
        self.on_device = False  # whether a device of this process still computes when updates are merged
        self.look: Look | None = None  # then: at the model of the last check
        self.entered: dict[int, int] = {}  # by client: the tick at which its last update was merged
        self.undone: set[int] = set()  # clients whose task in flight was cut from a model that is gone
        self.events: list[dict[str, Any]] = []  # for the summary

    @property
    def bound(self) -> float:
        """The metric under which the model has collapsed; minus infinity while too little was learned."""
        if self.first is None:
            return -math.inf
        # An error has no lowest score: what can be learned is its first value.
        lowest = self._lowest if math.isfinite(self._lowest) else self.first
        gain, span = self.best - self.first, self._highest - lowest
        return self.best - self.rule.lost * gain if gain >= self.rule.gain * span else -math.inf

    def due(self, tick: int) -> bool:
        """Whether it is time for a look."""
        return self.merged > 0 and tick % self._every == 0

    def check(self, now: Good, validate: "Validate | None") -> str:
        """Look at the present model, on a device judge that of the last check; returns what is wrong with it."""
        self.merged, metric = 0, None
        if validate is not None and math.isfinite(self._highest):
            if self.first is None:
                self.first = self.best = validate(self.goods[0].model, self.goods[0].buffers)()
            metric = validate(now.model, now.buffers)
        length = Fetched(_length(now.model)[None])
        look = Look(model=now, length=lambda: length.values[0], metric=metric)
        return self.judge_last(look) if self.on_device else self._judge(look)

    def judge_last(self, present: Look | None = None) -> str:
        """What is wrong with the model of the last look; the present one is the last from now on."""
        last, self.look = self.look, present
        return "" if last is None else self._judge(last)

    def _judge(self, look: Look) -> str:
        """What is wrong with a model; if it is good it is kept."""
        length = look.length()
        if not length <= self.rule.scale * max(self.length, 1.0):  # also where it is no number
            return "scale"
        self.length = length
        learned = True  # as far as anybody can tell
        if look.metric is not None:
            metric = look.metric()
            if not metric >= self.bound:
                return "collapse"
            self.best = max(self.best, metric)
            learned = math.isfinite(self.bound)
            assert self.first is not None
            if metric < self.first + _GOOD * (self.best - self.first):
                return ""
        self.goods = [*self.goods, look.model][-_KEPT:]
        self.in_row = 0 if learned else self.in_row
        return ""

    def note(self, update: Update, tick: int) -> None:
        """Note that an update is merged at this tick."""
        self.entered[update.client] = tick
        self.merged += 1
        self.on_device = isinstance(update.loss, Tensor)

    def suspects(self) -> list[int]:
        """Clients whose updates have entered since the model that would come back."""
        return sorted(client for client, tick in self.entered.items() if tick > self.goods[0].tick)

    def without_undone(self, updates: Sequence[Update]) -> tuple[list[Update], list[Verdict]]:
        """The updates of tasks that still count, and verdicts on the others."""
        gone = [update.client for update in updates if update.client in self.undone]
        self.undone.difference_update(gone)
        kept = [update for update in updates if update.client not in gone]
        return kept, [Verdict(client=client, reason=_UNDONE) for client in gone]


def watch(server: "Server", verdicts: Iterable[Verdict], *, last: bool = False) -> None:
    """After a merge: strike the clients that were refused, and go back if the model has collapsed.

    `last`: at the end of the run, when only the look before is judged.
    """
    recovery, wrong = server.recovery, ""
    for verdict in verdicts:
        if not verdict.merged and verdict.reason not in (_UNDONE, DIVERGED) and strike(server, verdict.client):
            spoilt = verdict.reason in _SPOILING and verdict.client in recovery.suspects()
            wrong = wrong or ("hold" if spoilt else "")
    if due := not last and recovery.due(server.tick):
        server.losses.look(wait=False)  # first: a model that nobody has changed because all diverge is not good
    if server.diverged or server.admission.sign():
        wrong = "divergence"
    elif due and recovery.rule.times:
        now = Good(tick=server.tick, model=server.model, buffers=server.buffers, previous=server.previous)
        wrong = recovery.check(now, server.validate) or wrong
    elif last:
        wrong = recovery.judge_last()
    if wrong:
        _go_back(server, wrong)


def strike(server: "Server", client: int) -> bool:
    """Count a refusal of a client; returns whether it is put on hold for it."""
    held = server.holds.strike(client, server.tick)
    if held:
        _note_hold(server, client)
    return held


def _go_back(server: "Server", wrong: str) -> None:
    """Let the last good model come back, or end the run as diverged where that has not helped."""
    recovery, suspects = server.recovery, server.recovery.suspects()
    spent = recovery.in_row >= recovery.rule.times
    if wrong == "hold" and (spent or not suspects):
        return  # that client waits anyway
    if spent or (wrong == "divergence" and not suspects):
        if server.diverged:
            raise Diverged(min(server.losses.lost), server.tick)
        sign = server.admission.sign() or f"the model has collapsed {recovery.in_row + 1} times in a row"
        raise Diverged(min(server.admission.outside, default=(suspects or [0])[0]), server.tick, sign)
    good = recovery.goods[0]
    blamed = [_to_blame(server, good, suspects)] if suspects and wrong != "hold" else []
    for client in blamed:
        if server.holds.until.get(client, 0) <= server.tick:  # else it waits already
            server.holds.hold(client, server.tick)
            _note_hold(server, client)
    recovery.goods, recovery.look = [replace(good, tick=server.tick)], None
    recovery.length = float(_length(good.model))
    recovery.in_row += 1
    recovery.undone |= {client for client, task in server.dispatched.items() if task.version > good.tick}
    server.model, server.buffers, server.previous = good.model, good.buffers, good.previous
    server.buffer.clear()
    server.reports.clear()
    server.own_metrics.clear()
    server.memory.clear()  # less than a model had that is gone is no sign of saturation
    if wrong != "hold":  # where many are held in turn, the run diverges
        server.admission.outside.clear()
        server.losses.forgive()
    recovery.events.append(
        {"event": "recovered", "tick": server.tick, "to": good.tick, "reason": wrong, "clients": suspects}
    )
    _log.warning(
        "Tick %d: the model of tick %d comes back (%s); since then updates of the clients %s had been merged.",
        server.tick,
        good.tick,
        wrong,
        suspects,
    )


def _note_hold(server: "Server", client: int) -> None:
    """Say that a client waits; the update that was kept of it counts no longer."""
    until = server.holds.until[client]
    server.buffer.pop(client, None)
    server.recovery.events.append({"event": "held", "tick": server.tick, "client": client, "until": until})
    _log.warning("Tick %d: client %d gets no task before tick %d.", server.tick, client, until)


def _to_blame(server: "Server", good: Good, suspects: Sequence[int]) -> int:
    """The client without whose update the good model merges best, if well enough; else that of the largest change."""
    recovery, validate = server.recovery, server.validate
    held = [server.buffer[client] for client in sorted(server.buffer)]
    if validate is not None and len(held) > 1 and math.isfinite(recovery.bound):
        metrics = {}
        for client in (c.client for c in held if c.client in suspects):
            merge = server.inputs(server.tick, [c for c in held if c.client != client], [], {})
            merge = replace(merge, model=good.model, buffers=good.buffers)
            metrics[client] = validate(*MaskAware().merge(merge))()
        best = max(metrics, key=lambda client: metrics[client], default=-1)
        if best >= 0 and metrics[best] >= recovery.bound:
            return best
    return max(suspects, key=lambda client: server.admission.changes.get(client, 0.0))


def _length(model: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(model)
    return length
