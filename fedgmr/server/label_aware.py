"""Label-aware averaging (HeteroFL): a class's output row is averaged over the clients that have the class.

Diao, Ding, Tarokh: HeteroFL, ICLR 2021. Everything else is the mask-aware mean. A row that no contributor owns
keeps its value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedgmr.server.aggregation import MaskAware, Merge, mask_aware_mean
from fedgmr.server.sums import Contribution
from fedgmr.submodels.layout import Layout


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """Which classes each client has, and which coordinates belong to a class."""

    owned: Tensor  # bool [clients, classes]
    coordinates: Tensor  # int64 [H]: the coordinates of the output layers
    classes: Tensor  # int64 [H]: the class of each


def output_rows(layout: Layout, heads: Sequence[str]) -> tuple[Tensor, Tensor]:
    """(coordinates, their classes) of the weights and biases of the output layers named `heads`."""
    coordinates, classes = [], []
    for place in layout.parameters:
        if place.name.rpartition(".")[0] in heads:
            rows = place.shape[0]
            coordinates.append(torch.arange(place.start, place.stop))
            classes.append(torch.arange(rows).repeat_interleave(place.size // rows))
    if not any(len(place.shape) > 1 and place.name.rpartition(".")[0] in heads for place in layout.parameters):
        raise ValueError(
            f"method.aggregation is label_aware and the output layer {', '.join(heads)} has no weight of its own "
            "(tied?): set method.aggregation.label_aware to false."
        )
    return torch.cat(coordinates), torch.cat(classes)


@dataclass(frozen=True, kw_only=True)
class LabelAware(MaskAware):
    """The mask-aware mean, with the output layer's rows averaged over the clients that own their class."""

    kind: ClassVar[str] = "label_aware"
    label_aware: bool = field(default=True, metadata={"help": "false: the plain mask-aware mean"})

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """The mask-aware mean, then the output rows again with their owners only."""
        model, buffers = super().merge(merge)
        if not self.label_aware or not merge.held:
            return model, buffers
        labels = merge.labels
        assert labels is not None, "the server is given the labels where the aggregation asks for them"
        values, masks = zip(*(_output_values(c, labels) for c in merge.held), strict=True)
        weights = model.new_tensor([merge.weights[c.client] for c in merge.held])
        previous = merge.model[labels.coordinates]
        model[labels.coordinates] = mask_aware_mean(torch.stack(values), torch.stack(masks), weights, previous)
        return model, buffers


def _output_values(c: Contribution, labels: Labels) -> tuple[Tensor, Tensor]:
    """(values, mask) of the output coordinates in one contribution; false where the client lacks the class."""
    owned = labels.owned[c.client][labels.classes]
    if c.levels is None or c.levels.order is None:
        return c.values[labels.coordinates], owned
    position = c.levels.position.index_select(0, labels.coordinates)
    held = position < len(c.values)
    return c.values.index_select(0, position.clamp(max=len(c.values) - 1)), owned & held
