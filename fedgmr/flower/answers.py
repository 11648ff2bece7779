"""What the client's app answers, as Flower records, and how the server's app reads it.

Whatever a client sends is a stranger's: it becomes a value of ours, or is `Refused` (it must not be used) or `Failed`
(there is no answer of the client's app).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Message

from fedgmr import wire
from fedgmr.exchange import ClientTask, News, Report, Update
from fedgmr.flower.messages import OBJECTS, SETTINGS, make_array, make_content

_UPDATE = "update"
_ERRORS = {2: "raised", 3: "expired", 5: "unavailable", 8: "crashed"}
_MOST_SAMPLES = 2**53
_LONGEST_TEXT = 300
_CLIENT_REASONS = ("diverged", *(str(reason) for reason in wire.Reason))  # a client cannot make up words to count


class Failed(Exception):  # noqa: N818 - what became of a message
    """A message that was not answered by the client's app; `reason` is a word to count."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(f"{reason}: {text}" if text else reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a client says of itself."""

    client_id: str = ""  # kept in a directory that is the node's own; empty: it has none
    partition: int = -1  # -1: its samples are its own
    samples: int = 1
    classes: tuple[int, ...] = ()
    layout: str = ""  # checksum of the model's layout

    def news(self, client: int) -> News:
        """The same for the server, once it is known which client this is."""
        return News(client=client, samples=self.samples, classes=self.classes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """A client's answer to a task: an update, or what it lacks to make one ("recipe", "map")."""

    update: Update | None = None
    lacks: str = ""
    size: int = 0  # bytes of the update
    seconds: Mapping[str, float] = field(default_factory=dict)  # what the client measured: load, train


def hello_reply(hello: Hello, message: Message) -> Message:
    """A client's answer to `hello_content`."""
    settings = {
        "client-id": hello.client_id,
        "partition": hello.partition,
        "samples": hello.samples,
        "classes": list(hello.classes),
        "layout": hello.layout,
    }
    return Message(make_content(settings), reply_to=message)


def probe_reply(message: Message) -> Message:
    """A client's answer to a probe."""
    return Message(make_content({}), reply_to=message)


def lacks_reply(what: str, message: Message) -> Message:
    """A client's answer to a task that it cannot do without `what`."""
    return Message(make_content({"lacks": what}), reply_to=message)


def refusal_reply(reason: str, text: str, message: Message) -> Message:
    """A client's answer to a task that it refuses or that went wrong."""
    return Message(make_content({"refused": reason, "text": text[:_LONGEST_TEXT]}), reply_to=message)


def update_reply(data: bytes, *, loss: float, seconds: Mapping[str, float], message: Message) -> Message:
    """A client's answer to a task."""
    settings = {"loss": loss, **{f"seconds.{name}": value for name, value in seconds.items()}}
    return Message(make_content(settings, {_UPDATE: make_array(data)}), reply_to=message)


def read_hello(message: Message) -> Hello:
    """What a client says of itself; Failed or Refused where it says nothing sensible."""
    settings, _ = _answer(message)
    hello = Hello(
        client_id=_taken(settings, "client-id", str)[:64],
        partition=_taken(settings, "partition", int),
        samples=_taken(settings, "samples", int),
        classes=tuple(_taken(settings, "classes", list)),
        layout=_taken(settings, "layout", str),
    )
    if not 1 <= hello.samples <= _MOST_SAMPLES or not all(type(c) is int and c >= 0 for c in hello.classes):
        raise wire.Refused(wire.Reason.REPORT, f"{hello.samples} samples and classes {hello.classes[:5]}")
    return hello


def read_probe(message: Message) -> None:
    """Failed or Refused where a probe was not answered."""
    _answer(message)


def read_result(message: Message, task: ClientTask, *, run: int, value_type: wire.ValueType, buffers: int) -> Result:
    """A client's answer to `task`; Failed or Refused where it must not be used."""
    settings, objects = _answer(message)
    if "lacks" in settings:
        return Result(lacks=_taken(settings, "lacks", str)[:_LONGEST_TEXT])
    expected = wire.Expected(
        run=run,
        client=task.client,
        version=task.version,
        map_version=task.map_version,
        last=task.level,
        value_type=value_type,
        count=task.levels.sizes[task.level],
        buffers=buffers,
    )
    data = objects.get(_UPDATE, b"")
    decoded = wire.decode_update(data, expected=expected)
    loss = _taken(settings, "loss", float)
    if not math.isfinite(loss):
        raise wire.Refused(wire.Reason.NON_FINITE, f"the loss is {loss}")
    device = task.model.device
    update = Update(
        client=task.client,
        version=task.version,
        values=torch.from_numpy(decoded.values).to(device),
        buffers=torch.from_numpy(decoded.buffers).to(device),
        loss=loss,
        report=_report(decoded.report),
    )
    return Result(update=update, size=len(data), seconds=_seconds(settings))


def answer_size(message: Message) -> int:
    """Bytes of the objects in an answer, whatever they are."""
    if not message.has_content():
        return 0
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())


def wire_report(report: Report | None) -> wire.Report | None:
    """A client's report as it travels: a sum, which gives the very metric back where that is a share of samples."""
    if report is None:
        return None
    total = report.metric * report.samples
    if round(total) / report.samples == report.metric:
        total = float(round(total))
    return wire.Report(metric_sum=total, samples=report.samples)


def _report(report: wire.Report | None) -> Report | None:
    return None if report is None else Report(metric=report.metric_sum / report.samples, samples=report.samples)


def _seconds(settings: Mapping[str, Any]) -> dict[str, float]:
    seconds = {name: settings.get(f"seconds.{name}") for name in ("load", "train")}
    return {name: value for name, value in seconds.items() if isinstance(value, float) and 0 <= value < math.inf}


def _answer(message: Message) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    """The settings and objects of an answer."""
    if message.has_error():
        raise Failed(_ERRORS.get(message.error.code, f"error-{message.error.code}"), message.error.reason or "")
    content = message.content
    settings = content.config_records.get(SETTINGS)
    if settings is None:
        raise wire.Refused(wire.Reason.KIND, "the answer has no settings")
    if "refused" in settings:
        reason = settings["refused"] if settings["refused"] in _CLIENT_REASONS else "other"
        raise Failed(f"client-{reason}", str(settings.get("text", ""))[:_LONGEST_TEXT])
    arrays = content.array_records.get(OBJECTS)
    return settings, {} if arrays is None else {name: array.data for name, array in arrays.items()}


def _taken(settings: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
    value = settings.get(key)
    if type(value) is not kind:
        raise wire.Refused(wire.Reason.KIND, f"{key} is {type(value).__name__} where {kind.__name__} is due")
    return value
