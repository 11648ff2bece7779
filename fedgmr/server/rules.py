"""The rules that a method sets on the server's side.

Every rule is a small value of its own file: ranking (`submodels`), aggregation, coordination, restoration, staleness,
buffer, admission, recovery. Read next: `server.py`, which composes them.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from fedgmr.server.admission import AdmissionRule
from fedgmr.server.aggregation import Aggregation, GradientAverage, MaskAware, Mixing, ZeroPadded
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Asynchronous, Coordination, Fastest, SemiAsynchronous, Synchronous
from fedgmr.server.label_aware import LabelAware
from fedgmr.server.recovery import RecoveryRule
from fedgmr.server.restoration import FixedTime, Restoration, Saturation
from fedgmr.server.robust import ClippedMean, CoordinateMedian, TrimmedMean
from fedgmr.staleness import Constant, Hinge, Polynomial, Staleness
from fedgmr.submodels.levels import Ladder, check_ladder
from fedgmr.submodels.rankings import FullModel, Magnitude, Random, Ranking, Taylor
from fedgmr.submodels.threshold import Threshold
from fedgmr.submodels.widths import RollingWindow, WidthPrefix


@dataclass(frozen=True, kw_only=True)
class ServerRules:
    """The rules of a method on the server's side."""

    ladder: Ladder = field(
        default=(0.05, 0.1, 0.2, 0.5, 1.0),
        metadata={"help": "the densities a sub-model can have, increasing; a client's preset density must be on it"},
    )
    ranking: Ranking = field(
        default=FullModel(),
        metadata={
            "kinds": (FullModel, Taylor, Magnitude, Random, Threshold, WidthPrefix, RollingWindow),
            "help": (
                "which coordinates small sub-models keep: `full`, `taylor`, `magnitude`, `random`, `threshold`, "
                "`width_prefix`, `rolling_window`"
            ),
        },
    )
    aggregation: Aggregation = field(
        default=MaskAware(),
        metadata={
            "kinds": (
                MaskAware,
                LabelAware,
                ZeroPadded,
                GradientAverage,
                Mixing,
                TrimmedMean,
                CoordinateMedian,
                ClippedMean,
            ),
            "help": (
                "how updates are merged: `mask_aware`, `label_aware`, `zero_padded`, `gradient_average`, "
                "`mixing`, `trimmed_mean`, `coordinate_median`, `clipped_mean`"
            ),
        },
    )
    coordination: Coordination = field(
        default=Synchronous(),
        metadata={
            "kinds": (Synchronous, SemiAsynchronous, Asynchronous, Fastest),
            "help": "when: `synchronous`, `semi_asynchronous`, `asynchronous`, `fastest`",
        },
    )
    restoration: Restoration | None = field(
        default=None,
        metadata={
            "kinds": (Saturation, FixedTime),
            "help": "when clients move up: `saturation`, `fixed_time`, or `none`",
        },
    )
    staleness: Staleness = field(
        default=Polynomial(),
        metadata={
            "kinds": (Polynomial, Constant, Hinge),
            "help": "weight of an update by staleness s: `polynomial`, `hinge`, `constant`",
        },
    )
    buffer: BufferRule = BufferRule()
    admission: AdmissionRule = AdmissionRule()
    recovery: RecoveryRule = RecoveryRule()
    weighting: Literal["uniform", "samples"] = field(
        default="uniform", metadata={"help": "weight of a client in a merge: the same for all, or by `samples`"}
    )
    interval: int = field(
        default=25,
        metadata={
            "at_least": 1,
            "help": "ticks between restoration checks, and between renewals of the level map (the paper's k_rest)",
        },
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "ladder", check_ladder(self.ladder))

    def level_of(self, density: float) -> int:
        """The level of a client's preset density on this method's ladder."""
        ladder = self.ranking.ladder(self.ladder)
        if ladder == (1.0,):
            return 0
        for level, step in enumerate(ladder):
            if math.isclose(step, density, rel_tol=1e-9):
                return level
        raise ValueError(f"The density {density} is not on the ladder {list(ladder)}: add it to method.ladder.")
