"""The server's memory in a checkpoint: tensors and JSON-ready data, and back, bit for bit.

A tensor that is known under several names, such as the current model, which is also the model of the tasks just
dispatched, is stored once. Rules, layout and profiles come from the recipe. Read next:
`fedgmr/experiments/checkpoint.py`, the file.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from fedgmr.exchange import ClientTask
from fedgmr.server.buffer import Contribution
from fedgmr.server.recovery import Good, Look, Recovery
from fedgmr.server.restoration import Memory, Watcher
from fedgmr.server.retreat import LastTask
from fedgmr.server.server import Server
from fedgmr.submodels.levels import LevelMap

# The fields of a buffered update and of a task in flight that are plain numbers, in the order in which they are stored.
_HELD = ("client", "version", "level", "map_version")
_WATCHED = ("seen", "armed", "floor", "pause")  # of the restoration rule's memory
_RECOVERED = ("first", "length", "in_row", "merged", "on_device", "events")  # of what recovery remembers
_DISPATCHED = ("client", "version", "level", "map_version", "learning_rate", "first_batch")


def save_state(server: Server) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name, each distinct one once, and all the rest."""
    tensors = {"model": server.model, "buffers": server.buffers}
    if server.previous is not None:
        tensors["previous"] = server.previous
    maps = {server.map_version: server.levels}
    for task in server.dispatched.values():
        tensors[f"models.{task.version}"], tensors[f"buffers.{task.version}"] = task.model, task.buffers
        maps[task.map_version] = task.levels
    for c in server.buffer.values():
        tensors[f"held.{c.client}"], tensors[f"held_buffers.{c.client}"] = c.values, c.buffers
        if c.levels is not None:
            maps[c.map_version] = c.levels
    tensors |= {f"levels.{version}": levels.levels for version, levels in maps.items()}
    look = server.recovery.look
    for number, good in enumerate([*server.recovery.goods, *([] if look is None else [look.model])]):
        tensors[f"good.{number}"], tensors[f"good_buffers.{number}"] = good.model, good.buffers
        if good.previous is not None:
            tensors[f"good_previous.{number}"] = good.previous
    remembered, repeats = server.admission.repeats.state()
    tensors |= remembered
    names: dict[int, str] = {}  # by tensor: the first name it has
    same = {name: names.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    data = {
        "tick": server.tick,
        "map_version": server.map_version,
        "maps": [[version, list(levels.ladder), levels.implied] for version, levels in sorted(maps.items())],
        "client_levels": server.client_levels,
        "detectors": [[i, *_row_of(watcher)] for i, watcher in sorted(server.memory.clients.items())],
        "memory": [_row_of(server.memory.server), *(getattr(server.memory, name) for name in _WATCHED)],
        "last_tasks": [[i, t.level, t.seconds, t.slow] for i, t in sorted(server.memory.last.items())],
        "presets": server.presets,
        "own_metrics": [[client, metric] for client, metric in sorted(server.own_metrics.items())],
        "held": [[getattr(c, name) for name in _HELD] for c in server.buffer.values()],
        "natural": [c.client for c in server.buffer.values() if c.levels is None],
        "dispatched": [[getattr(task, name) for name in _DISPATCHED] for task in server.dispatched.values()],
        "batches": server.batches,
        "updates": server.updates,
        "staleness": server.staleness,
        "on_arrival": server.weights.on_arrival,
        "reports": [[level, total, n] for level, (total, n) in sorted(server.reports.items())],
        "seconds_of": sorted(server.seconds_of.items()),
        **server.losses.state(),
        "asked": list(server.asked.items()),
        "restored": sorted(server.restored.items()),
        "changes": sorted(server.admission.changes.items()),
        "outside": sorted(server.admission.outside),
        "repeats": repeats,
        "holds": server.holds.state(),
        "recovery": _recovery_of(server.recovery),
        "same": {name: first for name, first in same.items() if name != first},
    }
    return {name: tensor for name, tensor in tensors.items() if same[name] == name}, data


def restore_state(server: Server, tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> None:
    """Continue from a saved state in a server made from the same recipe."""
    device = server.model.device
    on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
    on_device |= {name: on_device[first] for name, first in data.get("same", {}).items()}
    maps = {
        version: LevelMap(on_device[f"levels.{version}"], tuple(ladder), implied=implied)
        for version, ladder, implied in data["maps"]
    }
    server.tick, server.map_version = data["tick"], data["map_version"]
    server.model, server.buffers = on_device["model"], on_device["buffers"]
    server.previous = on_device.get("previous")
    server.levels = maps[server.map_version]
    server.client_levels = list(data["client_levels"])
    server.batches, server.updates = list(data["batches"]), list(data["updates"])
    server.staleness = list(data["staleness"])
    server.weights.on_arrival = list(data.get("on_arrival", server.weights.on_arrival))
    server.reports = {level: (total, n) for level, total, n in data["reports"]}
    server.seconds_of = dict(data.get("seconds_of", server.seconds_of))
    server.losses.restore(data)
    server.asked = dict(data.get("asked", ()))
    server.restored = dict(  # older files have the clients alone
        (row, server.client_levels[row]) if isinstance(row, int) else row for row in data.get("restored", ())
    )
    server.admission.changes = dict(data.get("changes", ()))
    server.admission.outside = set(data.get("outside", ()))
    if "recovery" in data:  # files of earlier releases have none
        server.admission.repeats.restore(tensors, data["repeats"])
        server.holds.restore(data["holds"])
        _restore_recovery(server.recovery, on_device, data["recovery"])
    else:
        server.recovery.goods = [Good(tick=server.tick, model=server.model, buffers=server.buffers)]
    server.memory = Memory(clients={client: _watcher_of(row) for client, *row in data["detectors"]})
    if "memory" in data:
        row, *watched = data["memory"]
        server.memory = replace(server.memory, server=_watcher_of(row), **dict(zip(_WATCHED, watched, strict=True)))
    server.memory.last = {
        client: LastTask(level=level, seconds=seconds, slow=slow)
        for client, level, seconds, slow in data.get("last_tasks", ())
    }
    server.presets = list(data.get("presets", server.presets))
    server.own_metrics = dict(data.get("own_metrics", ()))
    natural = set(data.get("natural", ()))
    server.buffer.clear()
    for row in data["held"]:
        held = dict(zip(_HELD, row, strict=True))
        client = held["client"]
        levels = None if client in natural else maps[held["map_version"]]
        values, buffers = on_device[f"held.{client}"], on_device[f"held_buffers.{client}"]
        server.buffer[client] = Contribution(**held, levels=levels, values=values, buffers=buffers)
    server.dispatched.clear()
    for row in data["dispatched"]:
        sent = dict(zip(_DISPATCHED, row, strict=True))
        model, buffers = on_device[f"models.{sent['version']}"], on_device[f"buffers.{sent['version']}"]
        levels = maps[sent["map_version"]]
        server.dispatched[sent["client"]] = ClientTask(**sent, levels=levels, model=model, buffers=buffers)


def _recovery_of(recovery: Recovery) -> dict[str, Any]:
    look = recovery.look
    return {
        "goods": [good.tick for good in recovery.goods],
        "look": None if look is None else [look.model.tick, *map(_measured, (look.length, look.metric))],
        "entered": sorted(recovery.entered.items()),
        "undone": sorted(recovery.undone),
        "best": None if recovery.first is None else recovery.best,
        **{name: getattr(recovery, name) for name in _RECOVERED},
    }


def _restore_recovery(recovery: Recovery, tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> None:
    looked_at, *found = data.get("look") or [None]  # older files have none
    goods = [
        Good(
            tick=tick,
            model=tensors[f"good.{number}"],
            buffers=tensors[f"good_buffers.{number}"],
            previous=tensors.get(f"good_previous.{number}"),
        )
        for number, tick in enumerate(data["goods"] if looked_at is None else [*data["goods"], looked_at])
    ]
    if looked_at is not None:
        length, metric = (None if text is None else partial(float, text) for text in found)
        assert length is not None
        recovery.look = Look(model=goods.pop(), length=length, metric=metric)
    recovery.goods = goods
    recovery.entered, recovery.undone = dict(data["entered"]), set(data["undone"])
    recovery.best = -math.inf if data["best"] is None else data["best"]
    for name in _RECOVERED:
        setattr(recovery, name, data.get(name, getattr(recovery, name)))  # older files have less


def _measured(ask: Callable[[], float] | None) -> str | None:
    """A number as text, which it may not be; None: nobody can tell it."""
    return None if ask is None else repr(ask())


def _row_of(watcher: Watcher) -> tuple[float | None, int, int]:
    return watcher.best if watcher.best > -math.inf else None, watcher.waited, watcher.hold


def _watcher_of(row: Sequence[Any]) -> Watcher:
    best, waited, *hold = row  # older files have no hold-off
    return Watcher(best=-math.inf if best is None else best, waited=waited, hold=hold[0] if hold else 0)
