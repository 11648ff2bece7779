"""The memory of a node between tasks, in files: a client's app is a new process for every message.

A node remembers who it is, the run's recipe, its level map as an object of the wire format, whose stamp and checksum
say whether it is still the right one and whole, and the velocity of its optimiser where clients keep it. A file that is
missing, old or damaged counts as forgotten: the server sends it again, or the velocity begins at zero.
"""

import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedgmr import wire
from fedgmr.files import write_atomic
from fedgmr.flower.messages import Order, Piece
from fedgmr.flower.terms import checksum
from fedgmr.submodels.levels import LevelMap


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldMap:
    """The parts of a level map up to a level; `wire.ABOVE` beyond."""

    version: int
    last: int
    levels: npt.NDArray[np.uint8]

    @classmethod
    def completed(
        cls, held: "HeldMap | None", order: Order, pieces: Sequence[Piece], *, run: int, total: int
    ) -> "HeldMap | None":
        """The map that a task needs, from the held one and the parts that came with it; None where parts are missing.

        Refused where a part is not what it says.
        """
        if held is not None and held.version != order.map_version:
            held = None
        for piece in pieces:
            first, last = piece.span
            if first > (0 if held is None else held.last + 1):
                return None
            known = held.levels if held is not None and first > 0 else None
            levels = wire.decode_map(piece.data, total=total, expected=order.expected(piece.span, run=run), known=known)
            held = cls(version=order.map_version, last=last, levels=levels)
        return held if held is not None and held.last >= order.level else None

    def level_map(self, ladder: Sequence[float]) -> LevelMap:
        """The map as training code takes it; coordinates of unknown parts are in no sub-model."""
        levels = np.minimum(self.levels, np.uint8(len(ladder)))
        return LevelMap(torch.from_numpy(levels), tuple(ladder))


class NodeState:
    """The files of one node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)  # its map and velocity are nobody else's business

    @classmethod
    def of(cls, config: Mapping[str, Any], node: int) -> "NodeState":
        """The files in the `state-dir` of a node's configuration, or in a folder of the user's cache."""
        given = config.get("state-dir")
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return cls(Path(str(given)) if given else Path(cache) / "fedgmr" / "nodes" / str(node))

    def client_id(self) -> str:
        """The node's own name, made at the first call and the same ever after."""
        path = self.directory / "client-id"
        known = path.read_text(errors="replace").strip() if path.exists() else ""
        if not re.fullmatch("[0-9a-f]{32}", known):
            # Not a draw of the run: it tells this node from all others, whatever the seed.
            known = uuid.uuid4().hex
            write_atomic(path, known)
        return known

    def recipe(self, wanted: str) -> str | None:
        """The recipe with this checksum, if it is the one remembered."""
        path = self.directory / "recipe.json"
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return text if checksum(text) == wanted else None

    def keep_recipe(self, text: str) -> None:
        """Remember a recipe."""
        write_atomic(self.directory / "recipe.json", text)

    def level_map(self, *, run: int, total: int) -> HeldMap | None:
        """The map of this run, if there is a sound one."""
        path = self.directory / "level-map.bin"
        if not path.exists():
            return None
        data = path.read_bytes()
        try:
            header = wire.Header.read(data)
            expected = wire.Expected(run=run, client=wire.EVERYONE, first=0)
            levels = wire.decode_map(data, total=total, expected=expected)
        except wire.Refused:
            return None
        return HeldMap(version=header.stamp.map_version, last=header.last, levels=levels)

    def keep_level_map(self, held: HeldMap, *, run: int) -> None:
        """Remember a map."""
        stamp = wire.Stamp(run=run, version=0, map_version=held.version)
        write_atomic(self.directory / "level-map.bin", wire.encode_map(held.levels, stamp=stamp, last=held.last))

    def memory(self, *, run: int, client: int, batch: int, like: Tensor) -> Tensor | None:
        """The velocity with which a client of this run takes up mini-batch `batch`, if it is known."""
        path = self.directory / "memory.safetensors"
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                if json.loads((file.metadata() or {})["of"]) != [run, client] or str(batch) not in file.keys():  # noqa: SIM118 - not a mapping
                    return None
                found: Tensor = file.get_tensor(str(batch))
        except (SafetensorError, ValueError, KeyError, OSError):
            return None
        return found if (found.shape, found.dtype) == (like.shape, like.dtype) else None

    def keep_memory(self, found: Mapping[int, Tensor | None], *, run: int, client: int) -> None:
        """Remember velocities by the mini-batch that each goes on with: the one before a task and the one behind it.

        A task that the server gives up comes again with the same mini-batches, so both may be wanted.
        """
        tensors = {str(batch): memory.cpu() for batch, memory in found.items() if memory is not None}
        metadata = {"of": json.dumps([run, client])}
        write_atomic(self.directory / "memory.safetensors", lambda draft: save_file(tensors, draft, metadata))
