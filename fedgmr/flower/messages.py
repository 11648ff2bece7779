"""Messages of the server's app as Flower records: how they are made, and how the client's app reads a task.

Small settings travel in a ConfigRecord, objects of the wire format as one Array each, built once and shared between
the messages of a tick. Read next: `answers.py`, the way back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedgmr import wire
from fedgmr.exchange import ClientTask

TRAIN, HELLO, PROBE = "train", "query.hello", "query.probe"  # message types
SETTINGS, OBJECTS = "settings", "objects"  # names of the two records


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """One object of the wire format, and the levels it covers."""

    span: tuple[int, int]
    data: bytes

    @cached_property
    def array(self) -> Array:
        """The object as Flower carries it; the same Array in all messages that share the piece."""
        return _array(self.data)


@dataclass(frozen=True, kw_only=True)
class Order:
    """The settings of a task, beside its objects."""

    client: int
    version: int
    level: int
    map_version: int
    implied: bool  # the client works the map out itself
    learning_rate: float
    first_batch: int
    checksum: str  # of the recipe that the client must have

    @classmethod
    def of(cls, task: ClientTask, checksum: str) -> "Order":
        """The order for a task."""
        return cls(
            client=task.client,
            version=task.version,
            level=task.level,
            map_version=task.map_version,
            implied=task.levels.implied,
            learning_rate=float(task.learning_rate),
            first_batch=task.first_batch,
            checksum=checksum,
        )

    def content(self, values: Sequence[Piece], maps: Sequence[Piece], *, recipe: str | None = None) -> RecordDict:
        """The message; the whole recipe travels too for a client that has lost it."""
        settings = {name.replace("_", "-"): value for name, value in vars(self).items()}
        if recipe is not None:
            settings["recipe"] = recipe
        pieces = [("values", piece) for piece in values] + [("map", piece) for piece in maps]
        return make_content(settings, {f"{kind}.{p.span[0]}.{p.span[1]}": p.array for kind, p in pieces})

    def expected(self, span: tuple[int, int], *, run: int) -> wire.Expected:
        """The object that comes with this order for the levels of `span`."""
        return wire.Expected(
            run=run,
            client=self.client,
            version=self.version,
            map_version=self.map_version,
            first=span[0],
            last=span[1],
        )

    @classmethod
    def read(cls, message: Message) -> tuple["Order", list[Piece], list[Piece]]:
        """The order of a message, its values and its parts of the level map, each in order of level."""
        settings = read_settings(message)
        pieces: dict[str, list[Piece]] = {"values": [], "map": []}
        for name, array in message.content.array_records[OBJECTS].items():
            kind, first, last = name.split(".")
            pieces[kind].append(Piece(span=(int(first), int(last)), data=array.data))
        for found in pieces.values():
            found.sort(key=lambda piece: piece.span)
        order = cls(**{field.name: settings[field.name.replace("_", "-")] for field in fields(cls)})
        return order, pieces["values"], pieces["map"]


def make_content(settings: Mapping[str, Any], objects: Mapping[str, Array | bytes] | None = None) -> RecordDict:
    """The two records of a message."""
    content = RecordDict({SETTINGS: ConfigRecord(dict(settings))})
    if objects:
        record = ArrayRecord()
        for name, value in objects.items():
            # One by one: the constructor would copy the Arrays, and each copy would be hashed again.
            record[name] = _array(value) if isinstance(value, bytes) else value
        content[OBJECTS] = record
    return content


def read_settings(message: Message) -> dict[str, Any]:
    """The settings of a message from the server."""
    return dict(message.content.config_records[SETTINGS])


def _array(data: bytes) -> Array:
    return Array(dtype="uint8", shape=(len(data),), stype="fedgmr", data=data)
