"""FIARSE's ranking: the magnitudes of the current model, anew at every tick (section 2.6).

One threshold for the whole model deletes whole layers at initialisation; a floor per tensor, or a threshold per tensor,
keeps them. Read next: `fedgmr/training/rules.py`, the local rule that looks at the same threshold.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from fedgmr.submodels.layout import Ranks
from fedgmr.submodels.levels import Ladder, LevelMap
from fedgmr.submodels.rankings import RankingInputs, across_tensors, within_tensors


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """FIARSE: the magnitude of the current model; normalisation parameters are always kept."""

    kind: ClassVar[str] = "threshold"
    scope: Literal["global", "layerwise"] = field(
        default="global",
        metadata={"help": "one threshold for the model, or `layerwise`: the same share of every tensor"},
    )
    floor: float = field(
        default=0.0,
        metadata={
            "at_least": 0,
            "at_most": 1,
            "help": "share of every ranked tensor that level 0 keeps, whatever the threshold is",
        },
    )
    ranks: Ranks = field(
        default="everything",
        metadata={
            "help": (
                "rank everything but normalisation parameters, or `prunable`: prunable weights alone; biases and "
                "kept tensors are then in every sub-model"
            )
        },
    )

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """The level map of the current magnitudes."""
        layout = inputs.layout
        ranked = [tensor for tensor in layout.parameters if tensor.ranked(self.ranks)]
        if self.scope == "layerwise":
            return within_tensors(inputs, ranked, self.floor)
        if self.floor:
            return across_tensors(inputs.model.abs(), inputs, ranked, self.floor)
        always = torch.ones(layout.size, dtype=torch.bool, device=inputs.model.device)
        for tensor in ranked:
            always[tensor.start : tensor.stop] = False
        return LevelMap.from_scores(inputs.model.abs(), inputs.ladder, always)

    def due(self, tick: int, interval: int) -> bool:
        """Every tick: a client's threshold comes from the model that it receives."""
        return True

    def ladder(self, ladder: Ladder) -> Ladder:
        """The given one."""
        return ladder
