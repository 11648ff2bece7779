"""Answers of the client's app as Flower records, written and read.

Nobody vouches for the content of an answer. It becomes a value of ours, or it is `Refused` (it must not be used) or
`Failed` (the client's app has not answered).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Message

from fedgmr import wire
from fedgmr.exchange import ClientTask, News, Report, Update
from fedgmr.flower.messages import OBJECTS, SETTINGS, make_content
from fedgmr.flower.terms import Terms

_UPDATE = "update"
_ERRORS = {2: "raised", 3: "expired", 5: "unavailable", 8: "crashed"}
_MOST_SAMPLES = 10**9
_LONGEST_TEXT, _LONGEST_LINE = 300, 400
_SETTINGS = 2**20  # bytes that the settings of an answer may have, with the classes of a hello
_CLIENT_REASONS = tuple(map(str, wire.Reason))  # a client cannot make up words to count


class Failed(Exception):  # noqa: N818 - the outcome of a message
    """A message that was not answered by the client's app; `reason` is a word to count."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(f"{reason}: {text}" if text else reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Hello:
    """A client's description of itself."""

    client_id: str = ""  # kept in a directory that is the node's own; empty: it has none
    partition: int = -1  # -1: its samples are its own
    samples: int = 1
    classes: tuple[int, ...] = ()
    layout: str = ""  # checksum of the model's layout
    life: str = ""  # of the SuperNode's process; another one after every start

    def reply(self, message: Message) -> Message:
        """The answer to the server's hello."""
        settings = {name.replace("_", "-"): value for name, value in vars(self).items()}
        return reply(message, {**settings, "classes": list(self.classes)})

    @classmethod
    def read(cls, message: Message) -> "Hello":
        """The hello in an answer; Failed or Refused where there is no sensible one."""
        settings, _ = read_answer(message)
        hello = cls(
            client_id=_typed(settings, "client-id", str)[:64],
            partition=_typed(settings, "partition", int),
            samples=_typed(settings, "samples", int),
            classes=tuple(_typed(settings, "classes", list)),
            layout=_typed(settings, "layout", str),
            life=_typed(settings, "life", str)[:64],
        )
        if not 1 <= hello.samples <= _MOST_SAMPLES or not all(type(c) is int and c >= 0 for c in hello.classes):
            raise wire.Refused(wire.Reason.REPORT, f"{hello.samples} samples and classes {hello.classes[:5]}")
        return hello

    def news(self, client: int) -> News:
        """The same for the server, once it is known which client this is."""
        return News(client=client, samples=self.samples, classes=self.classes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """A client's answer to a task: an update, or the name of what it lacks to make one ("recipe", "map")."""

    update: Update | None = None
    lacks: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)  # measured by the client: load, train

    @classmethod
    def read(cls, message: Message, task: ClientTask, terms: Terms) -> "Result":
        """The answer to `task`; Failed or Refused where it must not be used."""
        largest = wire.update_bytes(task.levels.sizes[task.level], terms.update_buffers(task), terms.value_type)
        settings, objects = read_answer(message, largest=largest)
        if settings.get("refused") == "diverged":  # the server judges it, as in a simulation
            none = torch.empty(0)
            return cls(
                update=Update(client=task.client, version=task.version, values=none, buffers=none, loss=math.nan)
            )
        if "refused" in settings:
            reason = settings["refused"] if settings["refused"] in _CLIENT_REASONS else "other"
            raise Failed(f"client-{reason}", str(settings.get("text", ""))[:_LONGEST_TEXT])
        if "lacks" in settings:
            return cls(lacks=_typed(settings, "lacks", str)[:_LONGEST_TEXT])
        expected = wire.Expected(
            run=terms.run,
            client=task.client,
            version=task.version,
            map_version=task.map_version,
            last=task.level,
            value_type=terms.value_type,
            count=task.levels.sizes[task.level],
            buffers=terms.update_buffers(task),
        )
        decoded = wire.decode_update(objects.get(_UPDATE, b""), expected=expected)
        loss = _typed(settings, "loss", float)
        if not math.isfinite(loss):
            raise wire.Refused(wire.Reason.NON_FINITE, f"the loss is {loss}")
        report = None
        if decoded.report is not None:
            samples = decoded.report.samples
            report = Report(metric=decoded.report.metric_sum / samples, samples=samples)
        device, whole = task.model.device, task.levels.whole(task.level)
        values = torch.from_numpy(decoded.values).to(device)
        update = Update(
            client=task.client,
            version=task.version,
            # As a simulation hands it over: the length of a change is a sum, which is rounded by its order.
            values=task.levels.spread(values, values) if whole else values,
            natural=whole,
            buffers=torch.from_numpy(decoded.buffers).to(device),
            loss=loss,
            report=report,
        )
        seconds = {name: settings.get(f"seconds.{name}") for name in ("load", "train")}
        sensible = {name: s for name, s in seconds.items() if isinstance(s, float) and 0 <= s < math.inf}
        return cls(update=update, seconds=sensible)


def reply(message: Message, settings: Mapping[str, Any], update: bytes | None = None) -> Message:
    """An answer of the client's app: `lacks`, `refused` with a `text`, or an update with its `loss`."""
    if "text" in settings:
        settings = {**settings, "text": settings["text"][:_LONGEST_TEXT]}
    return Message(make_content(settings, None if update is None else {_UPDATE: update}), reply_to=message)


def read_answer(message: Message, *, largest: int = 0) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    """The settings and objects of an answer; Failed or Refused where there are none.

    `largest`: bytes of the largest object that there can be; an answer that has more is not looked at.
    """
    if message.has_error():
        code = message.error.code  # which the node may have made up
        raise Failed(_ERRORS.get(code, "error"), message.error.reason or f"code {code}")
    content = message.content
    size = answer_size(message) + sum(_extent(v) for record in content.config_records.values() for v in record.values())
    size += sum(_extent(v) for record in content.metric_records.values() for v in record.values())
    if size > _SETTINGS + largest:
        raise wire.Refused(wire.Reason.LIMIT, f"the answer has {size} bytes of at most {_SETTINGS + largest}")
    settings = content.config_records.get(SETTINGS)
    if settings is None:
        raise wire.Refused(wire.Reason.KIND, "the answer has no settings")
    arrays = content.array_records.get(OBJECTS)
    return settings, {} if arrays is None else {name: array.data for name, array in arrays.items()}


def answer_size(message: Message) -> int:
    """Bytes of the objects in an answer, whatever they are."""
    if not message.has_content():
        return 0
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())


def printable(outcome: object) -> str:
    """The words of an outcome for the log, which may be a stranger's: cut, and with nothing that a terminal obeys."""
    text = str(outcome)[:_LONGEST_LINE]
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _extent(value: Any) -> int:
    """About how many bytes a setting has."""
    if isinstance(value, list):
        return sum(map(_extent, value))
    return len(value) if isinstance(value, str | bytes) else 8


def _typed(settings: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
    """The value of a key; Refused where it is of another type."""
    value = settings.get(key)
    if type(value) is not kind:
        raise wire.Refused(wire.Reason.KIND, f"{key} is {type(value).__name__} where {kind.__name__} is due")
    return value
