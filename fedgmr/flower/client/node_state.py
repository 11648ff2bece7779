"""What a node remembers between tasks, in files: a client's app is a new process for every message.

Who it is, the run's recipe, and its level map as an object of the wire format, whose stamp and checksum say whether it
is still the right one and whole. A file that is missing, old or damaged counts as forgotten; the server sends it again.
"""

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgmr import wire
from fedgmr.files import write_atomic
from fedgmr.flower.terms import checksum

Levels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldMap:
    """The parts of a level map up to a level; `wire.ABOVE` beyond."""

    version: int
    last: int
    levels: Levels


class NodeState:
    """The files of one node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def client_id(self) -> str:
        """Made at the first call, the same ever after."""
        path = self.directory / "client-id"
        if not path.exists():
            # Not a draw of the run: it tells this node from all others, whatever the seed.
            write_atomic(path, uuid.uuid4().hex.encode())
        return path.read_text().strip()

    def recipe(self, wanted: str) -> str | None:
        """The recipe with this checksum."""
        path = self.directory / "recipe.json"
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return text if checksum(text) == wanted else None

    def keep_recipe(self, text: str) -> None:
        """Remember a recipe."""
        write_atomic(self.directory / "recipe.json", text.encode())

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


def default_directory(node: int) -> Path:
    """Where a node that was given no directory keeps its state."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "fedgmr" / "nodes" / str(node)
