"""A node's part in a run: its data, by the node's own settings, and the simulation's training code on it.

The recipe comes from the server; the place of the data comes from the node (`--node-config`). Read next:
`client_app.py`, which makes a client node for every message.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgmr import wire
from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments.assembly import as_evaluated, make_plan, make_task, make_training, usable_device
from fedgmr.experiments.dealing import deal, hold_out
from fedgmr.flower.answers import Hello
from fedgmr.flower.messages import Order, Piece
from fedgmr.flower.terms import layout_checksum
from fedgmr.recipe import Recipe
from fedgmr.settings.refusals import SettingError
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import RankingInputs
from fedgmr.tasks.partition import Indices
from fedgmr.tasks.task import Task

Train = Callable[[Sequence[ClientTask]], Sequence[Update]]
_OPTION = "task."
_KEYS = ("partition-id", "num-partitions", "state-dir", "data-root", "device", "trust")


class ClientNode:
    """Data, model and training of a client; each is made when it is first needed."""

    def __init__(self, recipe: Recipe, config: Mapping[str, Any]) -> None:
        """A node for a resolved recipe and the node's configuration.

        That has `partition-id` (none: all training samples are this node's), `num-partitions` (default: the recipe's
        clients), `data-root` (as FEDGMR_DATA), `device`, `trust` (as FEDGMR_TRUST), and `task.OPTION` for options
        of the task.
        """
        unknown = [key for key in config if key not in _KEYS and not key.startswith(_OPTION)]
        if unknown:
            raise SettingError(
                f"node-config has {unknown[0]!r}: give {', '.join(_KEYS)} or an option of the task as {_OPTION}OPTION."
            )
        options = {key.removeprefix(_OPTION): value for key, value in config.items() if key.startswith(_OPTION)}
        task = replace(recipe.task, options=dict(recipe.task.options) | options)
        execution = replace(recipe.execution, executor="sequential")
        self.recipe = replace(recipe, task=task, execution=execution)
        self.config = config
        self._dealt: dict[int, tuple[Indices, Indices | None]] = {}  # by client
        self._training: tuple[tuple[int, int], Train] | None = None  # of a run and client

    @cached_property
    def device(self) -> torch.device:
        """The node's device, which need not be the server's."""
        return usable_device(str(self.config.get("device", "auto")))

    @cached_property
    def task(self) -> Task:
        """The task with this node's data."""
        if root := self.config.get("data-root"):
            os.environ["FEDGMR_DATA"] = str(root)
        return as_evaluated(make_task(self.recipe), self.recipe).to(self.device)

    @cached_property
    def model(self) -> nn.Module:
        """A model of the task, for its shapes."""
        return self.task.initial_model(self.recipe.seed)

    @cached_property
    def layout(self) -> Layout:
        """The layout of the model."""
        return Layout.of(self.model, keep=self.task.keep, prune=self.task.prune)

    @cached_property
    def plan(self) -> ChannelPlan | None:
        """The model's channels, where the method needs them."""
        return make_plan(self.recipe, self.task, self.model)

    @property
    def value_type(self) -> wire.ValueType:
        """The format in which values travel."""
        return wire.ValueType(self.recipe.network.values)

    @property
    def partition(self) -> int:
        """The part of the recipe's partition that this node has; -1: its samples are its own."""
        return self._number("partition-id", -1, least=0)

    def samples(self, client: int) -> tuple[Indices, Indices | None]:
        """The training samples of the client that this node is, and its held-out ones where clients validate."""
        if client not in self._dealt:
            self._dealt[client] = self._deal(client)
        return self._dealt[client]

    def _deal(self, client: int) -> tuple[Indices, Indices | None]:
        if self.partition >= 0:
            parts = self._number("num-partitions", len(self.recipe.fleet.resolved_links()), least=1)
            if self.partition >= parts:
                raise SettingError(f"partition-id is {self.partition}: give a number from 0 to {parts - 1}.")
            dealt, held_out = deal(self.recipe, self.task, parts)
            return dealt[self.partition], None if held_out is None else held_out[self.partition]
        everything = np.arange(len(self.task.train))
        if self.recipe.evaluation.validation == "server":
            return everything, None
        return hold_out(self.recipe, client, everything)

    def _number(self, key: str, default: int, *, least: int) -> int:
        given = self.config.get(key)
        if given is None:
            return default
        if not str(given).isdecimal() or int(given) < least:
            raise SettingError(f"node-config has {key}={given}: give a whole number, at least {least}.")
        return int(given)

    def introduce(self, client_id: str, *, classes: int) -> Hello:
        """This node's description of itself; with those that it has of so many classes, if there are any."""
        part, _ = self.samples(max(0, self.partition))
        owned: tuple[int, ...] = ()
        if classes:
            owned = tuple(self.task.train.classes(torch.from_numpy(part).to(self.device), classes).tolist())
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

    @property
    def keeps_memory(self) -> bool:
        """Whether the node has something to remember from task to task."""
        return self.recipe.training.optimizer.memory == "kept"

    def train(
        self, order: Order, values: Sequence[Piece], levels: LevelMap, *, run: int, memory: torch.Tensor | None = None
    ) -> Update:
        """The update for a task whose map is known; Refused where the values are not the ones announced."""
        task = ClientTask(
            client=order.client,
            version=order.version,
            level=order.level,
            levels=replace(levels, levels=levels.levels.to(self.device)),
            map_version=order.map_version,
            learning_rate=order.learning_rate,
            first_batch=order.first_batch,
            memory=None if memory is None else memory.to(self.device),
            **self._model(order, values, levels, run),
        )
        return self._training_of(run, order.client)([task])[0]

    def _training_of(self, run: int, client: int) -> Train:
        """The client's training, kept from task to task; another run's would know other maps by the same versions."""
        if self._training is None or self._training[0] != (run, client):
            part, held_out = self.samples(client)
            nothing: Indices = np.arange(0)
            parts = [nothing] * client + [part]
            held = None if held_out is None else [nothing] * client + [held_out]
            training = make_training(self.recipe, self.task, self.layout, self.plan, parts, held)
            self._training = ((run, client), training.sequential().train)
        return self._training[1]

    def _model(self, order: Order, pieces: Sequence[Piece], levels: LevelMap, run: int) -> dict[str, torch.Tensor]:
        """The sub-model's values in the flat vector, zero outside, and the model's buffers."""
        blocks = len(levels.ladder) if self.recipe.method.local.per_width else 1
        limits = wire.Limits(values=self.layout.size, buffers=blocks * self.layout.buffer_size)
        decoded, next_level = [], 0
        for piece in pieces:
            (first, last), counts = piece.span, levels.increments
            if first != next_level or last > order.level:
                raise wire.Refused(wire.Reason.LEVEL, f"values of levels {first} to {last}, {next_level} is next")
            expected = replace(
                order.expected(piece.span, run=run),
                value_type=self.value_type,
                count=sum(counts[first : last + 1]),
                buffers=limits.buffers if first == 0 else 0,
            )
            decoded.append(wire.decode_values(piece.data, expected=expected, limits=limits))
            next_level = last + 1
        if next_level != order.level + 1:
            raise wire.Refused(wire.Reason.LEVEL, f"values end before level {next_level}, the task's is {order.level}")
        values = torch.from_numpy(np.concatenate([part.values for part in decoded]))
        flat = levels.spread(values, torch.zeros(self.layout.size, dtype=self.layout.dtype))
        return {"model": flat.to(self.device), "buffers": torch.from_numpy(decoded[0].buffers).to(self.device)}
