"""Links: a client's connection, constant or with a trace. Read next: `network.py`, which turns bytes into seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedgmr.fleets.drive import Drive
from fedgmr.fleets.traces import Curves, FileTrace, Trace, deal_traces
from fedgmr.settings.build import settle

TRACES = (FileTrace, Drive)  # the kinds that settings know by name


@dataclass(frozen=True, kw_only=True)
class Link:
    """A client's connection, in MiB/s."""

    down: float | None = field(
        default=None,
        metadata={
            "above": 0,
            "help": (
                "download of client N, MiB/s; with a trace, its mean, and `null`: as the trace has it. Without a "
                "trace it must be given"
            ),
        },
    )
    up: float | None = field(default=None, metadata={"above": 0, "help": "upload, the same"})
    density: float | None = field(
        default=None,
        metadata={"above": 0, "at_most": 1, "help": "preset density; `null`: from `fleet.densities`, else 1"},
    )
    compute_seconds: float | None = field(
        default=None, metadata={"at_least": 0, "help": "seconds of local training; `null`: `network.compute_seconds`"}
    )
    trace: Trace | None = field(
        default=None,
        metadata={
            "kinds": TRACES,
            "help": "rates that vary in time, `file` or `drive`, see below; `none`: `fleet.trace`",
        },
    )

    def __post_init__(self) -> None:
        for name in ("down", "up"):
            rate = getattr(self, name)
            if rate is None and self.trace is None:
                raise ValueError(f"{name} is missing: give a rate above 0, in MiB/s, or a trace.")
            if rate is not None and not (isinstance(rate, int | float) and rate > 0):
                raise ValueError(f"{name} is {rate!r}: give a rate above 0, in MiB/s.")
        settle(self)

    def mean_rates(self, curves: Curves | None) -> tuple[float, float]:
        """Down and up on average; `curves` are those of the trace, where the link leaves a rate to it."""
        down = curves[0].mean if self.down is None and curves else self.down
        up = curves[1].mean if self.up is None and curves else self.up
        assert down is not None
        assert up is not None
        return down, up


def steady_links(links: Sequence[Link], seed: int) -> list[Link]:
    """The links without their traces, at their mean rates; reads a trace only where a rate is left to it."""
    dealt = deal_traces([link.trace if link.down is None or link.up is None else None for link in links], seed)
    rates = [link.mean_rates(curves) for link, curves in zip(links, dealt, strict=True)]
    return [replace(link, down=down, up=up, trace=None) for link, (down, up) in zip(links, rates, strict=True)]
