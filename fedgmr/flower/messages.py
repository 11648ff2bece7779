"""What the server's app sends, as Flower records, and how the client's app reads it: hello, probe and task.

Small settings travel in a ConfigRecord, objects of the wire format as one Array each, built once and shared between
the messages of a tick. Read next: `answers.py`, the way back.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedgmr.flower.server.packing import Parcel, Piece

TRAIN, HELLO, PROBE = "train", "query.hello", "query.probe"  # message types
SETTINGS, OBJECTS = "settings", "objects"  # names of the two records


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
    recipe: str  # checksum of the recipe the client must have


def hello_content(recipe: str, checksum: str, *, classes: bool) -> RecordDict:
    """The first message to a node; `classes`: it is asked which classes it has."""
    return make_content({"recipe": recipe, "checksum": checksum, "classes": classes})


def probe_content(size: int, draw: Callable[[int], bytes]) -> RecordDict:
    """So many bytes that do not compress."""
    return make_content({}, {"probe": make_array(draw(size))})


def task_contents(parcels: Sequence[Parcel], recipe: str, *, whole: bool = False, text: str = "") -> list[RecordDict]:
    """One content per parcel; an object that parcels share is one Array in all of them.

    Args:
        parcels: packed together.
        recipe: the checksum of the run's recipe.
        whole: the recipe itself travels too, for a client that has lost it.
        text: the recipe.
    """
    arrays: dict[int, Array] = {}

    def array(piece: Piece) -> Array:
        return arrays.setdefault(id(piece.data), make_array(piece.data))

    contents = []
    for parcel in parcels:
        task = parcel.task
        settings: dict[str, Any] = {
            "client": task.client,
            "version": task.version,
            "level": task.level,
            "map-version": task.map_version,
            "implied": task.levels.implied,
            "learning-rate": float(task.learning_rate),
            "first-batch": task.first_batch,
            "checksum": recipe,
        }
        if whole:
            settings["recipe"] = text
        objects = {_name("values", piece): array(piece) for piece in parcel.values}
        objects |= {_name("map", piece): array(piece) for piece in parcel.maps}
        contents.append(make_content(settings, objects))
    return contents


def settings_of(message: Message) -> dict[str, Any]:
    """The settings of a message from the server."""
    return dict(message.content.config_records[SETTINGS])


def read_order(message: Message) -> tuple[Order, list[Piece], list[Piece]]:
    """A task's settings, values and map parts, each in order of level."""
    settings = settings_of(message)
    order = Order(
        client=settings["client"],
        version=settings["version"],
        level=settings["level"],
        map_version=settings["map-version"],
        implied=settings["implied"],
        learning_rate=settings["learning-rate"],
        first_batch=settings["first-batch"],
        recipe=settings["checksum"],
    )
    values: list[Piece] = []
    maps: list[Piece] = []
    for name, array in message.content.array_records[OBJECTS].items():
        kind, first, last = name.split(".")
        (values if kind == "values" else maps).append(Piece(span=(int(first), int(last)), data=array.data))
    return order, sorted(values, key=_span), sorted(maps, key=_span)


def make_content(settings: Mapping[str, Any], objects: Mapping[str, Array] | None = None) -> RecordDict:
    """The two records of a message."""
    content = RecordDict({SETTINGS: ConfigRecord(dict(settings))})
    if objects:
        record = ArrayRecord()
        for name, array in objects.items():
            record[name] = array  # one by one: the constructor would copy the Arrays, to be hashed each anew
        content[OBJECTS] = record
    return content


def make_array(data: bytes) -> Array:
    """Bytes of the wire format as Flower carries them."""
    return Array(dtype="uint8", shape=(len(data),), stype="fedgmr", data=data)


def _name(kind: str, piece: Piece) -> str:
    return f"{kind}.{piece.span[0]}.{piece.span[1]}"


def _span(piece: Piece) -> tuple[int, int]:
    return piece.span
