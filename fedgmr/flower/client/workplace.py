"""A client's own side of a run: its data, by the node's own settings, and the training code of the simulation on it.

The recipe comes from the server; where the data lies comes from the node (`--node-config`). Knows nothing of Flower.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedgmr import wire
from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments.assembly import limit_samples, make_plan, make_task, usable_device
from fedgmr.experiments.dealing import deal, hold_out
from fedgmr.experiments.workshop import Workshop
from fedgmr.flower.answers import Hello
from fedgmr.flower.client.node_state import HeldMap
from fedgmr.flower.messages import Order
from fedgmr.flower.server.packing import Piece
from fedgmr.flower.terms import layout_checksum
from fedgmr.recipe import Recipe
from fedgmr.settings.refusals import SettingError
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import RankingInputs
from fedgmr.tasks.partition import Indices, SampleOrder
from fedgmr.tasks.task import Task

_OPTION = "task."
_KEYS = ("partition-id", "num-partitions", "state-dir", "data-root", "device")


class Workplace:
    """What a client needs to answer the server."""

    def __init__(self, recipe: Recipe, node: Mapping[str, Any]) -> None:
        """A workplace.

        Args:
            recipe: the run's, resolved.
            node: the node's configuration: `partition-id` (none: all training samples are this node's),
                `num-partitions` (default: the recipe's clients), `data-root` (as FEDGMR_DATA), `device`, and
                `task.OPTION` for options of the task.
        """
        unknown = [key for key in node if key not in _KEYS and not key.startswith(_OPTION)]
        if unknown:
            raise SettingError(
                f"node-config has {unknown[0]!r}: give {', '.join(_KEYS)} or an option of the task as {_OPTION}OPTION."
            )
        options = {key.removeprefix(_OPTION): value for key, value in node.items() if key.startswith(_OPTION)}
        task = replace(recipe.task, options=dict(recipe.task.options) | options)
        execution = replace(recipe.execution, executor="sequential")
        self.recipe = replace(recipe, task=task, execution=execution)
        self.node = node

    @cached_property
    def device(self) -> torch.device:
        """The node's, not the server's."""
        return usable_device(str(self.node.get("device", "auto")))

    @cached_property
    def task(self) -> Task:
        """The task with this node's data."""
        if root := self.node.get("data-root"):
            os.environ["FEDGMR_DATA"] = str(root)
        return limit_samples(make_task(self.recipe), self.recipe).to(self.device)

    @cached_property
    def layout(self) -> Layout:
        """Of the model."""
        return self.task.layout()

    @cached_property
    def plan(self) -> ChannelPlan | None:
        """The model's channels, where the method needs them."""
        return make_plan(self.recipe, self.task.initial_model(self.recipe.seed))

    @property
    def value_type(self) -> wire.ValueType:
        """How values travel."""
        return wire.ValueType(self.recipe.network.values)

    @property
    def partition(self) -> int:
        """Which part of the recipe's partition this node has; -1: its samples are its own."""
        return int(self.node.get("partition-id", -1))

    def samples(self, client: int) -> tuple[Indices, Indices | None]:
        """The training samples of the client that this node is, and its held-out ones where clients validate."""
        if self.partition >= 0:
            parts = int(self.node.get("num-partitions", len(self.recipe.fleet.resolved_links())))
            if self.partition >= parts:
                raise SettingError(f"partition-id is {self.partition}: give a number from 0 to {parts - 1}.")
            dealt, held_out = deal(self.recipe, self.task, parts)
            return dealt[self.partition], None if held_out is None else held_out[self.partition]
        everything = np.arange(len(self.task.train[0]))
        if self.recipe.evaluation.validation == "server":
            return everything, None
        return hold_out(self.recipe, client, everything)

    def introduce(self, client_id: str, *, classes: bool) -> Hello:
        """What this node says of itself."""
        part, _ = self.samples(max(0, self.partition))
        owned: tuple[int, ...] = ()
        if classes:
            owned = tuple(torch.unique(self.task.train[1][torch.from_numpy(part).to(self.device)]).tolist())
        return Hello(
            client_id=client_id,
            partition=self.partition,
            samples=len(part),
            classes=owned,
            layout=layout_checksum(self.layout),
        )

    def implied_map(self, order: Order) -> LevelMap:
        """The level map that follows from the recipe and the version."""
        rules = self.recipe.method
        # A map is implied only where the ranking looks at nothing but the tick.
        inputs = RankingInputs(
            layout=self.layout,
            ladder=rules.levels_in_ladder,
            model=torch.zeros(self.layout.size, dtype=self.layout.dtype),
            tick=order.version,
            seed=self.recipe.seed,
            plan=self.plan,
        )
        return rules.ranking.rank(inputs)

    def train(self, order: Order, values: Sequence[Piece], levels: LevelMap, *, run: int) -> Update:
        """The update for a task whose map is known; Refused where the values are not the ones announced."""
        task = ClientTask(
            client=order.client,
            version=order.version,
            level=order.level,
            levels=replace(levels, levels=levels.levels.to(self.device)),
            map_version=order.map_version,
            learning_rate=order.learning_rate,
            first_batch=order.first_batch,
            **self._model(order, values, levels, run),
        )
        part, held_out = self.samples(order.client)
        nothing: Indices = np.arange(0)
        parts = [nothing] * order.client + [part]
        workshop = Workshop(
            recipe=self.recipe,
            task=self.task,
            layout=self.layout,
            plan=self.plan,
            order=SampleOrder(parts, seed=self.recipe.seed, batch_size=self.recipe.training.batch_size),
            held_out=None if held_out is None else [nothing] * order.client + [held_out],
            device=self.device,
        )
        return workshop.sequential().train([task])[0]

    def _model(self, order: Order, pieces: Sequence[Piece], levels: LevelMap, run: int) -> dict[str, torch.Tensor]:
        """The sub-model's values in the flat vector, zero outside, and the model's buffers."""
        blocks = len(levels.ladder) if self.recipe.method.local.norm == "per_width" else 1
        limits = wire.Limits(values=self.layout.size, buffers=blocks * self.layout.buffer_size)
        decoded, next_level = [], 0
        for piece in pieces:
            (first, last), counts = piece.span, levels.increments
            if first != next_level or last > order.level:
                raise wire.Refused(wire.Reason.LEVEL, f"values of levels {first} to {last}, {next_level} is next")
            expected = wire.Expected(
                run=run,
                client=order.client,
                version=order.version,
                map_version=order.map_version,
                first=first,
                last=last,
                value_type=self.value_type,
                count=sum(counts[first : last + 1]),
                buffers=limits.buffers if first == 0 else 0,
            )
            decoded.append(wire.decode_values(piece.data, expected=expected, limits=limits))
            next_level = last + 1
        if next_level != order.level + 1:
            raise wire.Refused(wire.Reason.LEVEL, f"values end before level {next_level}, the task's is {order.level}")
        values = torch.from_numpy(np.concatenate([part.values for part in decoded]))
        flat = levels.unpack(values, order.level, torch.zeros(self.layout.size, dtype=self.layout.dtype))
        return {"model": flat.to(self.device), "buffers": torch.from_numpy(decoded[0].buffers).to(self.device)}


def complete_map(
    held: HeldMap | None, order: Order, pieces: Sequence[Piece], *, run: int, total: int
) -> HeldMap | None:
    """The map a task needs out of what the node holds and what came with the task; None where parts are missing.

    Raises:
        Refused: a part is not what it says.
    """
    if held is not None and held.version != order.map_version:
        held = None
    for piece in pieces:
        first, last = piece.span
        if first > (0 if held is None else held.last + 1):
            return None
        expected = wire.Expected(
            run=run, client=order.client, version=order.version, map_version=order.map_version, first=first, last=last
        )
        known = held.levels if held is not None and first > 0 else None
        levels = wire.decode_map(piece.data, total=total, expected=expected, known=known)
        held = HeldMap(version=order.map_version, last=last, levels=levels)
    return held if held is not None and held.last >= order.level else None


def level_map(held: HeldMap, ladder: Sequence[float]) -> LevelMap:
    """A held map as training code takes it; coordinates of unknown parts are in no sub-model."""
    levels = np.minimum(held.levels, np.uint8(len(ladder)))
    return LevelMap(torch.from_numpy(levels), tuple(ladder))
