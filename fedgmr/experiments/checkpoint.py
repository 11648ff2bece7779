"""Checkpoints: the whole state of a run in one safetensors file, and back, bit for bit.

A checkpoint holds the server's state (its model, buffer, level maps and tasks in flight), the fleet's queue, and how
many rows have been recorded. It holds no generators: every draw is named by (seed, purpose, client, tick). A resume
takes the newest file and passes over a damaged one.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedgmr.exchange import ClientTask
from fedgmr.federation import RecordedFleet
from fedgmr.files import CHECKPOINTS, write_atomic
from fedgmr.server.restoration import SaturationDetector
from fedgmr.server.server import Server
from fedgmr.server.sums import Contribution
from fedgmr.submodels.levels import LevelMap

SCHEMA_VERSION = 1


def save_checkpoint(run: Path, server: Server, fleet: RecordedFleet, *, recorded: int, keep: int) -> None:
    """Write the checkpoint of this tick and drop all but the `keep` newest."""
    folder = run / CHECKPOINTS
    folder.mkdir(exist_ok=True)
    tensors, state = server_state(server)
    tensors = _copied(tensors)
    whole = {"schema_version": SCHEMA_VERSION, "server": state, "fleet": fleet.state(), "recorded": recorded}
    # One entry, because the library writes several in any order, and equal runs leave equal files.
    metadata = {"state": json.dumps({**whole, "digest": _digest(tensors, whole)})}
    path = folder / f"tick-{server.tick:09d}.safetensors"
    write_atomic(path, lambda draft: save_file(tensors, draft, metadata))
    drafts = folder.glob(".*.tmp")  # of processes that were killed while they wrote
    for old in (*_newest_first(run)[keep:], *drafts):
        old.unlink()


def load_checkpoint(run: Path, server: Server, fleet: RecordedFleet) -> int | None:
    """Take up the newest valid checkpoint; returns the number of records at its time, None if there is none.

    Raises:
        ValueError: there are checkpoints, and none of them is valid.
    """
    files = _newest_first(run)
    for path in files:
        try:
            tensors, state = _read(path)
        except (OSError, ValueError) as error:
            warnings.warn(f"{error} Falling back to the checkpoint before it.", stacklevel=2)
            continue
        restore_server(server, tensors, state["server"])
        fleet.restore(state["fleet"], server.dispatched)
        return int(state["recorded"])
    if files:
        raise ValueError(f"None of the {len(files)} checkpoints in {run / CHECKPOINTS} is valid: start the run again.")
    return None


def save_model(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the final model, one tensor per parameter and buffer."""
    copied = _copied(tensors)
    write_atomic(path, lambda draft: save_file(copied, draft, {"format": "pt"}))


def _newest_first(run: Path) -> list[Path]:
    return sorted((run / CHECKPOINTS).glob("tick-*.safetensors"), reverse=True)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in host memory: a safetensors file cannot have tensors that share their memory, and ours may."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of a checkpoint; ValueError naming the file where it is damaged."""
    try:
        with safe_open(path, "pt") as file:
            state = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a mapping
        if state.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {state['schema_version']}, not {SCHEMA_VERSION}")
        digest = state.pop("digest", None)
        if digest not in (None, _digest(tensors, state)):  # files of earlier releases have none
            raise ValueError("the digest does not match")
        return tensors, state
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"The file {path} is damaged ({error}): restore it or remove it.") from error


def _digest(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> str:
    """A checksum of all that a checkpoint says; the order of names in its file does not matter."""
    digest = hashlib.blake2b(json.dumps(state).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def server_state(server: Server) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The server's state as tensors and JSON-ready data; shared models and level maps are stored once."""
    tensors = {
        "model": server.model,
        "buffers": server.buffers,
    }
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
    state = {
        "tick": server.tick,
        "map_version": server.map_version,
        "maps": [[version, list(levels.ladder), levels.implied] for version, levels in sorted(maps.items())],
        "client_levels": server.client_levels,
        "detectors": [
            [i, d.best if d.best > -math.inf else None, d.waited] for i, d in sorted(server.detectors.items())
        ],
        "held": [[c.client, c.version, c.level, c.map_version] for c in server.buffer.values()],
        "natural": [c.client for c in server.buffer.values() if c.levels is None],
        "dispatched": [
            [t.client, t.version, t.level, t.map_version, t.learning_rate, t.first_batch]
            for t in server.dispatched.values()
        ],
        "batches": server.batches,
        "updates": server.updates,
        "staleness": server.staleness,
        "reports": [[level, total, n] for level, (total, n) in sorted(server.reports.items())],
        "restored": sorted(server.restored),
    }
    return tensors, state


def restore_server(server: Server, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Take up the state saved by `server_state` in a server made from the same recipe."""
    device = server.model.device
    on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
    maps = {
        version: LevelMap(on_device[f"levels.{version}"], tuple(ladder), implied=implied)
        for version, ladder, implied in state["maps"]
    }
    server.tick, server.map_version = state["tick"], state["map_version"]
    server.model, server.buffers = on_device["model"], on_device["buffers"]
    server.previous = on_device.get("previous")
    server.levels = maps[server.map_version]
    server.client_levels = list(state["client_levels"])
    server.batches, server.updates = list(state["batches"]), list(state["updates"])
    server.staleness = list(state["staleness"])
    server.reports = {level: (total, n) for level, total, n in state["reports"]}
    server.restored = set(state.get("restored", ()))
    server.detectors = {i: _detector(server, best, waited) for i, best, waited in state["detectors"]}
    natural = set(state.get("natural", ()))
    server.buffer = {
        client: Contribution(
            client=client,
            version=version,
            level=level,
            levels=None if client in natural else maps[map_version],
            map_version=map_version,
            values=on_device[f"held.{client}"],
            buffers=on_device[f"held_buffers.{client}"],
        )
        for client, version, level, map_version in state["held"]
    }
    server.dispatched = {
        client: ClientTask(
            client=client,
            version=version,
            level=level,
            levels=maps[map_version],
            map_version=map_version,
            model=on_device[f"models.{version}"],
            buffers=on_device[f"buffers.{version}"],
            learning_rate=rate,
            first_batch=first_batch,
        )
        for client, version, level, map_version, rate, first_batch in state["dispatched"]
    }


def _detector(server: Server, best: float | None, waited: int) -> SaturationDetector:
    detector = SaturationDetector(server.rules.restoration.patience)  # type: ignore[union-attr]
    detector.best, detector.waited = -math.inf if best is None else best, waited
    return detector
