"""A method is a composition: server rules, a local rule, and incremental model splitting (IMS) or not.

The files beside this one each hold a Method. Read next: `fedgmr.py`, then `named.py`, which finds methods by name.
"""

from dataclasses import dataclass, field

from fedgmr.server.coordination import Asynchronous, SemiAsynchronous
from fedgmr.server.label_aware import LabelAware
from fedgmr.server.rules import ServerRules
from fedgmr.settings.build import settle
from fedgmr.settings.schema import brief
from fedgmr.submodels.levels import Ladder
from fedgmr.submodels.threshold import Threshold
from fedgmr.submodels.widths import RollingWindow, WidthPrefix, WidthRule
from fedgmr.training.rules import LocalRule, OrderedDropout, PlainSGD, ThresholdedSGD, WidthSGD


@dataclass(frozen=True, kw_only=True)
class Method(ServerRules):
    """A federated method, complete."""

    name: str = field(
        metadata={"help": "a built-in method (`fedgmr list`), or the import path of a function that returns a `Method`"}
    )
    title: str = field(default="", metadata={"help": "its name in tables and legends; empty: `method.name`"})
    local: LocalRule = field(
        default=PlainSGD(),
        metadata={
            "kinds": (PlainSGD, WidthSGD, OrderedDropout, ThresholdedSGD),
            "help": "the client's rule for a mini-batch: `sgd`, `width_sgd`, `ordered_dropout`, `thresholded_sgd`",
        },
    )
    ims: bool = field(
        default=False,
        metadata={
            "help": (
                "send the part that sub-models share once for all clients that are dispatched together "
                "(incremental model splitting)"
            )
        },
    )

    def __post_init__(self) -> None:
        settle(self)
        super().__post_init__()
        if isinstance(self.local, WidthSGD | OrderedDropout) and not self.by_width:
            raise ValueError(
                f"local is {self.local.kind} and ranking is {self.ranking.kind}: it needs a width; "
                "rank by width_prefix or rolling_window, or choose another local rule."
            )
        if self.rolling and self.local.per_width:
            raise ValueError(
                "ranking is rolling_window and local is ordered_dropout: it needs fixed channels, width_prefix."
            )
        if isinstance(self.local, ThresholdedSGD) and not isinstance(self.ranking, Threshold):
            raise ValueError(f"local is thresholded_sgd and ranking is {self.ranking.kind}: give ranking: threshold.")
        if isinstance(self.local, ThresholdedSGD) and self.local.scope != getattr(self.ranking, "scope", None):
            raise ValueError(f"local.scope is {self.local.scope}: give ranking.scope the same, {self.local.scope}.")
        if isinstance(self.local, ThresholdedSGD) and self.local.ranks != getattr(self.ranking, "ranks", None):
            raise ValueError(f"local.ranks is {self.local.ranks}: give ranking.ranks the same, {self.local.ranks}.")
        if isinstance(self.local, OrderedDropout) and self.local.distillation and len(self.levels_in_ladder) == 1:
            raise ValueError("local.distillation is true and the ladder has one width: there is none to distil to.")
        unknown = set(getattr(self.local, "widths", None) or ()).difference(self.ladder)
        if unknown:
            raise ValueError(
                f"local.widths has {min(unknown)}: give densities of the ladder, {list(self.ladder)}, or add it there."
            )
        if self.restoration is not None and len(self.levels_in_ladder) == 1:
            raise ValueError(
                f"restoration is {self.restoration.kind} and every client holds the whole model: give none."
            )
        retreat = None if self.restoration is None else self.restoration.retreat
        if retreat is not None and not isinstance(self.coordination, SemiAsynchronous | Asynchronous):
            raise ValueError(
                f"restoration.retreat is given and coordination is {self.coordination.kind}, which has no period to "
                "measure tasks by: give coordination: semi_asynchronous, or leave retreat out."
            )

    def __repr__(self) -> str:
        return brief(self)

    @property
    def by_width(self) -> bool:
        """Whether sub-models are narrower networks, which clients train physically small."""
        return isinstance(self.ranking, WidthPrefix | RollingWindow)

    @property
    def widths(self) -> WidthRule:
        """The way in which a density becomes a width, where sub-models are by width."""
        return self.ranking.widths if isinstance(self.ranking, WidthPrefix | RollingWindow) else "solved"

    @property
    def rolling(self) -> bool:
        """Whether the channels of a sub-model change from level map to level map."""
        return isinstance(self.ranking, RollingWindow)

    @property
    def label_aware(self) -> bool:
        """Whether the server must know which classes each client has."""
        return isinstance(self.aggregation, LabelAware) and self.aggregation.label_aware

    @property
    def levels_in_ladder(self) -> Ladder:
        """The densities that this method really uses."""
        return self.ranking.ladder(self.ladder)
