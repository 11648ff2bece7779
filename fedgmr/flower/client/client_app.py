"""The client's app: it says who it is, and trains.

SuperNodes start a new process for every message, so only the node's files last; Flower's simulation engine lets a
process serve many, and then data and model are kept. A node's settings are in its `--node-config`, see
`client_node.py`; `state-dir` names a directory of its own, in which it also keeps its identity.
"""

import json
import logging
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from fedgmr import wire
from fedgmr.exchange import Update
from fedgmr.flower.answers import reply
from fedgmr.flower.client.client_node import ClientNode
from fedgmr.flower.client.node_state import HeldMap, NodeState
from fedgmr.flower.messages import Order, Piece, read_settings
from fedgmr.recipe import foreign_recipe
from fedgmr.settings.trust import split_names
from fedgmr.submodels.levels import LevelMap

_log = logging.getLogger(__name__)
_LIFE = "fedgmr.life"


def hello(message: Message, context: Context) -> Message:
    """Keep the recipe, look at the data, say who this is."""
    state, settings = NodeState.of(context.node_config, context.node_id), read_settings(message)
    state.keep_recipe(settings["recipe"])
    node = _node(settings["recipe"], context)
    client_id = state.client_id() if "state-dir" in context.node_config else ""
    return replace(node.introduce(client_id, classes=settings["classes"]), life=_life(context)).reply(message)


def probe(message: Message, context: Context) -> Message:
    """Answer at once."""
    return reply(message, {})


def train(message: Message, context: Context) -> Message:
    """Do a task."""
    began = time.perf_counter()
    state, settings = NodeState.of(context.node_config, context.node_id), read_settings(message)
    if "recipe" in settings:
        state.keep_recipe(settings["recipe"])
    order, values, maps = Order.read(message)
    recipe = state.recipe(order.checksum)
    if recipe is None:
        return reply(message, {"lacks": "recipe"})
    node = _node(recipe, context)
    try:
        levels = _level_map(node, state, order, maps, context.run_id)
        if levels is None:
            return reply(message, {"lacks": "map"})
        _ = node.task  # loading the data is no training
        loaded = time.perf_counter()
        memory = _memory(node, state, order, context.run_id)
        update = node.train(order, values, levels, run=context.run_id, memory=memory)
    except wire.Refused as refused:
        _log.warning("A task was refused: %s", refused)
        return reply(message, {"refused": refused.reason, "text": str(refused)})
    if not math.isfinite(update.loss):
        return _diverged(message, "loss or weights are not finite")
    if update.memory is not None:
        behind = order.first_batch + node.recipe.training.steps
        known = {order.first_batch: memory, behind: update.memory}
        state.keep_memory(known, run=context.run_id, client=order.client)
    try:
        data = _encoded(update, order, context.run_id, node.value_type)
    except wire.Refused as refused:  # its buffers are not finite, or its weights are too large for 16 bits
        return _diverged(message, str(refused))
    seconds = {"seconds.load": loaded - began, "seconds.train": time.perf_counter() - loaded}
    return reply(message, {"loss": float(update.loss), **seconds}, data)


def _diverged(message: Message, text: str) -> Message:
    _log.warning("The training diverged (%s): lower training.learning_rate.", text)
    return reply(message, {"refused": "diverged"})


def _encoded(update: Update, order: Order, run: int, value_type: wire.ValueType) -> bytes:
    report = update.report
    return wire.encode_update(
        update.values.cpu().numpy(),
        stamp=wire.Stamp(run=run, client=order.client, version=order.version, map_version=order.map_version),
        last=order.level,
        value_type=value_type,
        buffers=update.buffers.cpu().numpy(),
        report=None if report is None else wire.Report(metric_sum=report.metric_sum, samples=report.samples),
    )


def _life(context: Context) -> str:
    """The name of the SuperNode's process, which alone keeps `context.state` from message to message."""
    if _LIFE not in context.state:
        context.state[_LIFE] = ConfigRecord({"name": uuid.uuid4().hex})
    return str(context.state.config_records[_LIFE]["name"])


def _node(recipe: str, context: Context) -> ClientNode:
    """The node for a recipe that the server sent; only code that the node's own configuration trusts is imported."""
    trust = split_names(str(context.node_config.get("trust", "")))
    return _kept_node(recipe, json.dumps(dict(context.node_config), sort_keys=True), tuple(trust))


@lru_cache(maxsize=4)
def _kept_node(recipe: str, config: str, trust: tuple[str, ...]) -> ClientNode:
    """A node whose data and model serve all messages that this process gets; there are few nodes in one process."""
    return ClientNode(foreign_recipe(json.loads(recipe), trust), json.loads(config))


def _level_map(node: ClientNode, state: NodeState, order: Order, maps: Sequence[Piece], run: int) -> LevelMap | None:
    """The level map of a task; None where the node must be sent it."""
    if order.implied:
        return node.implied_map(order)
    total = node.layout.size
    held = HeldMap.completed(state.level_map(run=run, total=total), order, maps, run=run, total=total)
    if held is None:
        return None
    if maps:
        state.keep_level_map(held, run=run)
    return held.level_map(node.recipe.method.levels_in_ladder)


def _memory(node: ClientNode, state: NodeState, order: Order, run: int) -> Tensor | None:
    """The velocity that the node goes on with in this task; None: zero."""
    if not node.keeps_memory or order.first_batch == 0:
        return None
    like = torch.empty(node.layout.size, dtype=node.layout.dtype, device="meta")
    memory = state.memory(run=run, client=order.client, batch=order.first_batch, like=like)
    if memory is None:
        _log.warning(
            "Client %d has no velocity here for mini-batch %d: it begins at zero.", order.client, order.first_batch
        )
    return memory


app = ClientApp()
app.query("hello")(hello)
app.query("probe")(probe)
app.train()(train)
