"""Your own method: a ranking written here, composed with built-in parts. Needs the extra `demo`; takes seconds.

Run it with `python examples/own_method.py`. In a recipe it goes by its import path, as in
`method: own_method:last_layer_first`, and so it does on the command line, started in this directory:
`fedgmr run quickstart method=own_method:last_layer_first seconds=300`. The fields of the ranking are
keys of the recipe: `method.ranking.favour=2` may follow.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

import fedgmr
from fedgmr.server.aggregation import MaskAware
from fedgmr.server.coordination import SemiAsynchronous
from fedgmr.server.restoration import Saturation
from fedgmr.submodels.levels import Ladder, LevelMap
from fedgmr.submodels.rankings import RankingInputs


@dataclass(frozen=True, kw_only=True)
class LastLayerFirst:
    """The largest weights of every layer, and most of the last layer even in the smallest sub-model."""

    kind: ClassVar[str] = "last_layer_first"
    favour: float = field(default=10.0, metadata={"above": 0, "help": "what a weight of the last layer counts"})

    def rank(self, inputs: RankingInputs) -> LevelMap:
        """By magnitude relative to the tensor's mean, so that no layer is lost for having small weights."""
        scores, prunable = inputs.model.abs(), inputs.layout.prunable
        for place in prunable:
            part = scores[place.start : place.stop]
            part *= (self.favour if place is prunable[-1] else 1.0) / (part.mean() + torch.finfo(part.dtype).tiny)
        return LevelMap.from_scores(scores, inputs.ladder, inputs.layout.always)

    def due(self, tick: int, interval: int) -> bool:
        """Rank again at every restoration check."""
        return tick % interval == 0

    def ladder(self, ladder: Ladder) -> Ladder:
        """Any ladder will do."""
        return ladder


def last_layer_first() -> fedgmr.Method:
    """FedGMR's workflow around the ranking above."""
    return fedgmr.Method(
        name="last_layer_first",
        title="Last layer first",
        ranking=LastLayerFirst(),
        aggregation=MaskAware(),
        coordination=SemiAsynchronous(),
        restoration=Saturation(patience=1),
        interval=10,
        ims=True,
    )


if __name__ == "__main__":
    fleet = fedgmr.FleetSettings(name="high", scale="model")  # ten clients, six of them on the slowest link
    training = fedgmr.TrainingSettings(learning_rate=0.2)
    result = fedgmr.simulate("mnist5k", method=last_layer_first(), fleet=fleet, training=training, seconds=400)
    print(" seconds  accuracy  mean density")
    for row in result.history:
        print(f"{row['seconds']:8.0f}  {row['accuracy']:8.3f}  {sum(row['density']) / 10:12.2f}")
