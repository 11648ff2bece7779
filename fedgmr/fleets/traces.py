"""Traces of links: which curve each client has, down and up.

A trace gives pairs of curves that all its clients share. A client has one of them, shifted, at the mean rates of its
link if these are given, and as fast as `fleet.pace` says. Read next: `curves.py`, and `network.py`, which asks here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol, Self

from fedgmr.fleets.curves import Curve
from fedgmr.fleets.given_files import digest_content, read_given
from fedgmr.fleets.trace_files import Unit, read_trace
from fedgmr.seeding import generator
from fedgmr.settings.build import settle

Curves = tuple[Curve, Curve]  # down and up


class Trace(Protocol):
    """A source of curves."""

    kind: ClassVar[str]

    @property
    def shift(self) -> float | Literal["random"]:
        """Seconds of the trace that are over when a run starts."""

    def load(self, seed: int) -> Sequence[Curves]:
        """The curves, at their own rates, one pair or a pool of which each client has one; none is silent for ever."""

    def sealed(self) -> Self:
        """The trace, bound to the content of the files that it needs."""
        return self


@dataclass(frozen=True, kw_only=True)
class FileTrace(Trace):
    """A trace from files."""

    kind: ClassVar[str] = "file"

    down: str = field(
        metadata={"help": "file of the download: Mahimahi, two columns, or a table; its first line tells which"}
    )
    up: str | None = field(
        default=None,
        metadata={"help": "file of the upload; `null`: the same file, by its column `up` where it has one"},
    )
    unit: Unit | None = field(
        default=None,
        metadata={
            "help": (
                "of rates whose unit the file does not name: `MiB/s`, `KiB/s`, `B/s`, `MB/s`, `kB/s`, `bit/s`, "
                "`kbit/s`, `Mbit/s`, `Gbit/s`"
            )
        },
    )
    shift: float | Literal["random"] = field(
        default="random",
        metadata={
            "at_least": 0,
            "help": (
                "seconds of the trace that are over at the start; `random`: drawn by seed and client, over the "
                "whole trace"
            ),
        },
    )
    at_end: Literal["repeat", "stop"] = field(
        default="repeat", metadata={"help": "the trace begins again; `stop`: from then on the link carries nothing"}
    )
    digests: tuple[str, ...] = field(
        default=(),
        metadata={"help": "checksums of the files; a run fills them in, and a resume with another content is refused"},
    )

    def __post_init__(self) -> None:
        settle(self)

    def load(self, seed: int) -> Sequence[Curves]:
        """Read the files; ValueError where one cannot be read or has another content than the run began with."""
        digests = self.digests or (None, None)
        down, up = self._read("down", self.down, digests[0])
        if self.up is not None:
            alone, beside = self._read("up", self.up, digests[-1])
            up = beside or alone
        return [(down, up or down)]

    def sealed(self) -> Self:
        """Fill in the checksums, unless they are known; a file that cannot be read is refused now."""
        if self.digests:
            return self
        self.load(0)
        files = [("down", self.down)] + ([] if self.up is None else [("up", self.up)])
        digests = tuple(digest_content(read_given(given, f"trace.{key}")) for key, given in files)
        return replace(self, digests=digests)

    def _read(self, key: str, given: str, digest: str | None) -> tuple[Curve, Curve | None]:
        content = read_given(given, f"trace.{key}", digest)
        return read_trace(content, given, unit=self.unit, repeats=self.at_end == "repeat")


def deal_traces(traces: Sequence[Trace | None], seed: int) -> list[Curves | None]:
    """The curves of each client at their own rates, shifted; None for a client without a trace.

    Clients with equal traces share what is loaded.
    """
    loaded = {trace: trace.load(seed) for trace in dict.fromkeys(traces) if trace is not None}
    return [
        None if trace is None else _dealt(trace, loaded[trace], client, seed) for client, trace in enumerate(traces)
    ]


def fit_curves(
    pair: Curves | None, rates: Sequence[float], *, scale: float, pace: float
) -> tuple[Curve | None, Curve | None]:
    """The curves at these mean rates times `scale`, `pace` times faster; None for a rate that is always the same."""
    if pair is None:
        return None, None
    down, up = (
        None if curve.constant and curve.repeats else curve.scaled(rate / curve.mean * scale).faster(pace)
        for curve, rate in zip(pair, rates, strict=True)
    )
    return down, up


def _dealt(trace: Trace, pool: Sequence[Curves], client: int, seed: int) -> Curves:
    draws = generator(seed, "trace", client)
    down, up = pool[int(draws.integers(len(pool)))]
    seconds = draws.random() * down.end if trace.shift == "random" else trace.shift
    return down.shifted(seconds), up.shifted(seconds)
