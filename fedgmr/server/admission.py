"""Admission: which updates the server takes in, whatever fleet they come from.

An update is measured before it enters the buffer: its values are finite, it changes its sub-model by no more than the
other clients change theirs, and its report is one that a client could have made. What is refused has a reason, which
the fleet counts. Where most clients are out of bounds nobody is hostile: then the run has diverged. An update whose
loss a GPU of this process still computes is the simulation's own; it is not waited for, and one that diverged brings
back what it was given. Read next: `server.py`, which asks before every merge; `repeats.py`, answers sent again;
docs/security.md, what this holds against.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, median_low
from typing import Literal

import torch
from torch import Tensor

from fedgmr.exchange import DIVERGED, ClientProfile, ClientTask, Report, Update, Verdict
from fedgmr.server.repeats import Repeats
from fedgmr.submodels.blocks import blocks

_FEW = 3  # clients: below that nobody can tell who is out of bounds
_BLOCK = 2**16  # coordinates at a time: what a core's cache holds twice
_HEADROOM = 16  # what is left for the sum of all clients' values
_OUTSIDE = ("non-finite", "change", "clipped", DIVERGED)  # reasons that a diverging run has too


@dataclass(frozen=True, kw_only=True)
class AdmissionRule:
    """Bounds on what one client may do to the model; an honest run never meets them."""

    beyond: Literal["refuse", "clip", "accept"] = field(
        default="refuse",
        metadata={
            "help": (
                "an update whose change is out of bounds is refused; `clip`: its change is shortened to the "
                "median change of all clients, or to `least` until three are known; `accept`: it is merged as it "
                "is"
            )
        },
    )
    factor: float = field(
        default=30.0,
        metadata={"above": 1, "help": "the bound: so many times the median change of all clients; see below"},
    )
    least: float = field(default=1.0, metadata={"above": 0, "help": "the bound is at least this"})
    most: float = field(
        default=30.0,
        metadata={
            "above": 0,
            "help": (
                "the bound is at most this, times the learning rate where that is above 1; it is the bound until "
                "three clients are known"
            ),
        },
    )
    samples: float = field(
        default=10.0,
        metadata={
            "at_least": 1,
            "help": (
                "the samples that a node declares when it joins count up to so many times the median of the "
                "fleet, in `weighting: samples` and in the clients' reports"
            ),
        },
    )
    repeat: float = field(
        default=0.05,
        metadata={
            "at_least": 0,
            "help": (
                "an answer is a repeat if its distance from an earlier one of the same client is less than this, "
                "by the length of its change, although the model has moved on; `0`: repeats are merged"
            ),
        },
    )
    strikes: int = field(
        default=3,
        metadata={
            "at_least": 0,
            "help": "a client that is refused so many times in a row is put on hold: it gets no task; `0`: never",
        },
    )
    pause: int = field(
        default=10,
        metadata={"at_least": 1, "help": "ticks of a client's first hold; each further one is four times as long"},
    )

    def bound(self, scale: float | None, rate: float) -> float:
        """The largest change of an update; `scale` is the median change by learning rate, None: not known yet."""
        most = self.most * max(1.0, rate)
        return most if scale is None else min(most, max(self.least, self.factor * scale * rate))

    def counted(self, profiles: Sequence[ClientProfile]) -> list[float]:
        """The samples of each client that count, 0 where they are not known; the dealt ones all do."""
        known = [profile.samples for profile in profiles if profile.samples]
        limit = self.samples * median_low(known) if known else 0.0
        return [min(float(p.samples), limit) if p.declared else float(p.samples) for p in profiles]


@dataclass(frozen=True, kw_only=True)
class ReportRange:
    """The reports that a client can make by the definition of its metric."""

    lowest: float = -math.inf
    highest: float = math.inf
    targets: int = 1  # that a sample has
    share: float = math.inf  # samples that a client validates on, by those that it trains on

    def most(self, samples: float) -> float:
        """The most targets that a client validates on beside so many samples to train on; 0: not known."""
        held_out = self.share * (samples + 1)
        return self.targets * (math.ceil(held_out) + 1) if samples and math.isfinite(held_out) else math.inf

    def holds(self, report: Report, samples: float) -> bool:
        """Whether a client with so many samples can have made this report."""
        possible = math.isfinite(report.metric) and self.lowest <= report.metric <= self.highest
        return possible and 1 <= report.samples <= self.most(samples)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Measured:
    """An update beside the sub-model that it started from."""

    change: float  # ‖values - start‖ by ‖start‖, or by 1 where that is less
    rate: float
    sound: bool  # finite, and so is the sum of as many as there are clients


class Admission:
    """Judges updates by what the clients have sent before."""

    def __init__(self, rule: AdmissionRule, reports: ReportRange, *, clients: int, size: int) -> None:
        """Nobody has sent anything yet; the model has `size` coordinates."""
        self.rule, self.reports, self.repeats = rule, reports, Repeats(size)
        self.changes: dict[int, float] = {}  # by client: the change of its last admitted update by learning rate
        self.outside: set[int] = set()  # clients whose last update was out of bounds
        self._fleet = clients
        self._largest = torch.finfo(torch.float32).max / (_HEADROOM * clients)

    def judge(
        self, updates: Sequence[Update], tasks: Mapping[int, ClientTask], profiles: Sequence[ClientProfile]
    ) -> tuple[list[Update], list[Verdict]]:
        """The updates to merge, some of them shortened, and the verdicts on those that are not merged as they came."""
        measured = self._measure([u for u in updates if not _diverged_or_ours(u)], tasks)
        sizes = {client: m.change / m.rate for client, m in measured.items() if m.sound}
        seen = {**self.changes, **sizes}
        scale = median(seen.values()) if len(seen) >= _FEW else None
        admitted, verdicts = [], []
        for update in updates:
            client, found = update.client, measured.get(update.client)
            bound = math.inf if found is None else self.rule.bound(scale, found.rate)
            reason = self._objection(update, found, bound, profiles[client].samples)
            sample = None if found is None or reason == "non-finite" else self.repeats.sample(update, tasks[client])
            if sample is not None and not reason and self.repeats.nearness(sample) < self.rule.repeat:
                reason = "repeat"
            if reason == "change" and self.rule.beyond == "clip" and found is not None:
                # To what the others do, not to the bound, which is far beyond it.
                bound = self.rule.least if scale is None else scale * found.rate
                update, reason = _shortened(update, tasks[client], bound / found.change), "clipped"
            if reason:
                verdicts.append(Verdict(client=client, reason=reason, merged=reason == "clipped"))
            if reason in ("", "clipped"):
                admitted.append(update)
                if found is not None and sample is not None:
                    self.changes[client] = min(found.change, bound) / found.rate
                    self.repeats.remember(sample)
            (self.outside.add if reason in _OUTSIDE else self.outside.discard)(client)
        return admitted, verdicts

    def sign(self) -> str:
        """The sign, in words, that the run has diverged: most clients are out of bounds; empty: it has not."""
        outside, seen = len(self.outside), len(self.outside | self.changes.keys())
        return f"the updates of {outside} of {seen} clients are out of bounds" if self.most(outside, seen) else ""

    def most(self, clients: int, seen: int) -> bool:
        """Whether so many are most of the clients that have been seen, and not just a few."""
        return clients >= min(_FEW, self._fleet) and 2 * clients > seen

    def _objection(self, update: Update, found: _Measured | None, bound: float, samples: int) -> str:
        """Why the update must not be merged as it is; empty: it may."""
        if not isinstance(update.loss, Tensor) and not math.isfinite(update.loss):
            return DIVERGED
        if found is not None and not found.sound:
            return "non-finite"
        if update.report is not None and not self.reports.holds(update.report, samples):
            return "report"
        if found is not None and found.change > bound and self.rule.beyond != "accept":
            return "change"
        return ""

    def _measure(self, updates: Sequence[Update], tasks: Mapping[int, ClientTask]) -> dict[int, _Measured]:
        """Every update beside its start; updates of one start are measured together, because it is gathered once."""
        together: dict[tuple[int, int], list[Update]] = {}
        for update in updates:
            task = tasks[update.client]
            together.setdefault((id(task.model), id(_order(update, task))), []).append(update)
        return {client: found for group in together.values() for client, found in self._compare(group, tasks)}

    def _compare(self, group: Sequence[Update], tasks: Mapping[int, ClientTask]) -> Iterator[tuple[int, _Measured]]:
        first = tasks[group[0].client]
        order = _order(group[0], first)
        lengths = _norms(first.model, order, [update.values for update in group])
        largest = _largest_of([update.buffers for update in group])
        for update, (norm, difference), buffer in zip(group, lengths, largest, strict=True):
            if not math.isfinite(difference):  # of values that are, too, above about 1e19; this takes longer
                ((norm, difference),) = _norms(first.model, order, [update.values], torch.float64)
            # The values are no longer than both together.
            sound = norm + difference <= self._largest and buffer <= self._largest
            rate = tasks[update.client].learning_rate or 1.0
            yield update.client, _Measured(change=difference / max(norm, 1.0), rate=rate, sound=sound)


def _diverged_or_ours(update: Update) -> bool:
    """Whether a client says itself that it has diverged, or a device of this process still computes."""
    return isinstance(update.loss, Tensor) or not math.isfinite(update.loss)


def _shortened(update: Update, task: ClientTask, share: float) -> Update:
    """The update with so much of its change."""
    natural = update.natural or task.levels.order is None
    start = task.model if natural else task.levels.pack(task.model, task.level)
    return replace(update, values=torch.lerp(start, update.values, share))


def _order(update: Update, task: ClientTask) -> Tensor | None:
    """The order of the update's values; None: the natural one."""
    return None if update.natural else task.levels.order


def _norms(
    model: Tensor, order: Tensor | None, updates: Sequence[Tensor], dtype: torch.dtype | None = None
) -> list[tuple[float, float]]:
    """‖start‖ and ‖values - start‖ of each; the start is the model, in this order as far as the values reach.

    A device is waited for once.
    """
    pieces = blocks(max(map(len, updates)), model.device, step=_BLOCK)
    starts: list[list[Tensor]] = [[] for _ in updates]  # norms, piece by piece
    changes: list[list[Tensor]] = [[] for _ in updates]
    gathered, difference = model.new_empty(2, max((piece.stop - piece.start for piece in pieces), default=0))
    for piece in pieces:
        size = piece.stop - piece.start
        start = model[piece] if order is None else torch.index_select(model, 0, order[piece], out=gathered[:size])
        norms: dict[int, Tensor] = {}  # by length: several end in the same place
        for number, values in enumerate(updates):
            part = values[piece]
            if length := len(part):
                if length not in norms:
                    norms[length] = torch.linalg.vector_norm(start[:length], dtype=dtype)
                apart = torch.sub(part, start[:length], out=difference[:length])
                starts[number].append(norms[length])
                changes[number].append(torch.linalg.vector_norm(apart, dtype=dtype))
    found = [norm for many in (*starts, *changes) for norm in many]
    read = iter(torch.stack(found).tolist() if found else [])
    ends = [math.hypot(*(next(read) for _ in many)) for many in (*starts, *changes)]
    return list(zip(ends[: len(updates)], ends[len(updates) :], strict=True))


def _largest_of(many: Sequence[Tensor]) -> list[float]:
    """The largest absolute value of each vector, 0 of an empty one."""
    found = iter(torch.stack([values.abs().max() for values in many if len(values)] or [torch.zeros(())]).tolist())
    return [next(found) if len(values) else 0.0 for values in many]
