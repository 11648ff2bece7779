"""The client's app: says who it is, and trains.

A new process for every message; what lasts is in the node's files. Settings of a node are in its `--node-config`, see
`workplace.py`; `state-dir` names a directory of its own, in which it also keeps who it is.
"""

import json
import logging
import math
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedgmr import wire
from fedgmr.flower.answers import hello_reply, lacks_reply, probe_reply, refusal_reply, update_reply, wire_report
from fedgmr.flower.client.node_state import NodeState, default_directory
from fedgmr.flower.client.workplace import Workplace, complete_map, level_map
from fedgmr.flower.messages import Order, read_order, settings_of
from fedgmr.flower.server.packing import Piece
from fedgmr.recipe import recipe_from
from fedgmr.submodels.levels import LevelMap

_log = logging.getLogger(__name__)


def hello(message: Message, context: Context) -> Message:
    """Keep the recipe, look at the data, say who this is."""
    state, settings = _state(context), settings_of(message)
    state.keep_recipe(settings["recipe"])
    workplace = Workplace(recipe_from(json.loads(settings["recipe"])), context.node_config)
    client_id = state.client_id() if "state-dir" in context.node_config else ""
    return hello_reply(workplace.introduce(client_id, classes=settings["classes"]), message)


def probe(message: Message, context: Context) -> Message:
    """Answer at once."""
    return probe_reply(message)


def train(message: Message, context: Context) -> Message:
    """Do a task."""
    began = time.perf_counter()
    state, settings = _state(context), settings_of(message)
    if "recipe" in settings:
        state.keep_recipe(settings["recipe"])
    order, values, maps = read_order(message)
    recipe = state.recipe(order.recipe)
    if recipe is None:
        return lacks_reply("recipe", message)
    workplace = Workplace(recipe_from(json.loads(recipe)), context.node_config)
    try:
        levels = _levels(workplace, state, order, maps, context.run_id)
        if levels is None:
            return lacks_reply("map", message)
        return _trained(workplace, order, values, levels, message, context.run_id, began)
    except wire.Refused as refused:
        _log.warning("A task was refused: %s", refused)
        return refusal_reply(refused.reason, str(refused), message)


def _trained(
    workplace: Workplace,
    order: Order,
    values: list[Piece],
    levels: LevelMap,
    message: Message,
    run: int,
    began: float,
) -> Message:
    _ = workplace.task  # loading the data is no training
    loaded = time.perf_counter()
    update = workplace.train(order, values, levels, run=run)
    if not math.isfinite(update.loss):
        return refusal_reply("diverged", "loss or weights are not finite: lower training.learning_rate", message)
    data = wire.encode_update(
        update.values.cpu().numpy(),
        stamp=wire.Stamp(run=run, client=order.client, version=order.version, map_version=order.map_version),
        last=order.level,
        value_type=workplace.value_type,
        buffers=update.buffers.cpu().numpy(),
        report=wire_report(update.report),
    )
    seconds = {"load": loaded - began, "train": time.perf_counter() - loaded}
    return update_reply(data, loss=float(update.loss), seconds=seconds, message=message)


def _levels(workplace: Workplace, state: NodeState, order: Order, maps: list[Piece], run: int) -> LevelMap | None:
    """The level map of a task; None where the node must be sent it."""
    if order.implied:
        return workplace.implied_map(order)
    total = workplace.layout.size
    held = complete_map(state.level_map(run=run, total=total), order, maps, run=run, total=total)
    if held is None:
        return None
    if maps:
        state.keep_level_map(held, run=run)
    return level_map(held, workplace.recipe.method.levels_in_ladder)


def _state(context: Context) -> NodeState:
    given = context.node_config.get("state-dir")
    return NodeState(Path(str(given)) if given else default_directory(context.node_id))


app = ClientApp()
app.query("hello")(hello)
app.query("probe")(probe)
app.train()(train)
