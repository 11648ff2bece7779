"""Label-aware averaging (HeteroFL): a class's output row is averaged over the clients that have the class.

Diao, Ding, Tarokh: HeteroFL, ICLR 2021. Everything else is the mask-aware mean. A row that no contributor owns
keeps its value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedgmr.server.aggregation import MaskAware, Merge
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.transfer import sent

_MAPS = 4  # whose positions are remembered


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """The classes of each client, and the coordinates that belong to a class."""

    owned: Tensor  # bool [clients, classes]
    coordinates: Tensor  # int64 [H]: the coordinates of the output layers
    classes: Tensor  # int64 [H]: the class of each
    _positions: dict[int, Tensor] = field(default_factory=dict)  # by map version: where they are in the level order

    @classmethod
    def of(
        cls, layout: Layout, heads: Mapping[str, tuple[int, Tensor]], *, clients: int, device: torch.device
    ) -> "Labels":
        """The parameters `heads` have a row per class: dimension and class of each; so far no client has any class."""
        places = [place for place in layout.parameters if place.name in heads]
        if not places:
            raise ValueError(
                "method.aggregation is label_aware and no parameter of the model has a row for each of its outputs: "
                "set method.aggregation.label_aware to false."
            )
        coordinates = torch.cat([torch.arange(place.start, place.stop) for place in places])
        rows = []
        for place in places:
            dim, classes = heads[place.name]
            along = [-1 if i == dim else 1 for i in range(len(place.shape))]
            rows.append(classes.view(along).expand(place.shape).reshape(-1))
        classes = torch.cat(rows)
        owned = torch.zeros(clients, int(classes.max()) + 1, dtype=torch.bool, device=device)
        return cls(owned=owned, coordinates=coordinates.to(device), classes=classes.to(device))

    def owned_by(self, clients: Sequence[int]) -> Tensor:
        """Bool [clients, H]: whether each has the coordinate's class."""
        rows = sent(torch.tensor(clients), self.owned.device)
        return self.owned.index_select(0, rows).index_select(1, self.classes)

    def position(self, levels: LevelMap, version: int) -> Tensor:
        """Int [H]: where the coordinates are in a map's level order."""
        if version not in self._positions:
            if len(self._positions) >= _MAPS:
                del self._positions[next(iter(self._positions))]
            self._positions[version] = levels.position.index_select(0, self.coordinates)
        return self._positions[version]


@dataclass(frozen=True, kw_only=True)
class LabelAware(MaskAware):
    """The mask-aware mean, with the output layer's rows averaged over the clients that own their class."""

    kind: ClassVar[str] = "label_aware"
    label_aware: bool = field(default=True, metadata={"help": "`false`: the plain mask-aware mean"})

    def merge(self, merge: Merge) -> tuple[Tensor, Tensor]:
        """The mask-aware mean, then the output rows again with their owners only."""
        model, buffers = super().merge(merge)
        held = merge.taken(self.over)
        if not self.label_aware or not held:
            return model, buffers
        labels = merge.labels
        assert labels is not None, "the server is given the labels where the aggregation asks for them"
        masks = labels.owned_by([c.client for c in held])
        values = []
        for row, c in zip(masks, held, strict=True):
            if c.levels is None or c.levels.order is None:
                values.append(c.values.index_select(0, labels.coordinates))
                continue
            position = labels.position(c.levels, c.map_version)
            if len(c.values) < len(c.levels):
                row &= position < len(c.values)
                position = position.clamp(max=len(c.values) - 1)
            values.append(c.values.index_select(0, position))
        weights = sent(torch.tensor([merge.weights[c.client] for c in held], dtype=model.dtype), model.device)
        weighted = masks * weights.view(-1, 1)
        total, weight = weighted.mul(torch.stack(values)).sum(0), weighted.sum(0)
        previous = merge.model.index_select(0, labels.coordinates)
        mean = torch.where(weight > 0, total / weight.clamp(min=torch.finfo(weight.dtype).tiny), previous)
        return model.index_copy_(0, labels.coordinates, self.mixed(previous, mean, merge)), buffers
