"""Answers of strangers: whatever a client sends becomes a value or is refused, and never anything else."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error

from fedgmr import wire
from fedgmr.exchange import ClientTask, Report
from fedgmr.flower.answers import Failed, Hello, Result, answer_size, printable, read_answer, reply
from fedgmr.flower.messages import make_content
from fedgmr.flower.terms import Terms
from fedgmr.submodels.levels import LevelMap

LEVELS = LevelMap.from_scores(torch.arange(100.0), (0.2, 1.0))
TASK = ClientTask(
    client=3,
    version=8,
    level=0,
    levels=LEVELS,
    map_version=2,
    model=torch.zeros(100),
    buffers=torch.zeros(2),
    learning_rate=0.1,
    first_batch=0,
)
SETTING = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.booleans(),
    st.lists(st.integers(-5, 300), max_size=4),
)


def question() -> Message:
    message = Message(RecordDict(), dst_node_id=5, message_type="train")
    message.metadata.__dict__["_message_id"] = "ab" * 32
    return message


def answer(settings: dict[str, Any] | None, objects: dict[str, bytes] | None = None) -> Message:
    content = RecordDict()
    if settings is not None:
        content["settings"] = ConfigRecord(settings)
    if objects is not None:
        content["objects"] = make_content({}, {"": b"", **objects})["objects"]
        del content["objects"][""]
    return Message(content, reply_to=question())


def result(message: Message) -> Result:
    return Result.read(message, TASK, Terms(run=1, recipe="", layout="", ims=True))


def update(**changes: Any) -> bytes:
    stamp = wire.Stamp(**{"run": 1, "client": 3, "version": 8, "map_version": 2, **changes})
    values, buffers = np.arange(20, dtype=np.float32), np.array([1, 2], np.float32)
    return wire.encode_update(values, stamp=stamp, last=0, buffers=buffers, report=wire.Report(metric_sum=3, samples=4))


def test_an_update_comes_through() -> None:
    data = update()
    sent = reply(question(), {"loss": 0.25, "seconds.load": 1.0, "seconds.train": 2.5}, data)
    read = result(sent)
    assert read.update is not None
    assert read.update.values.tolist() == list(range(20))
    assert (read.update.client, read.update.version, read.update.loss) == (3, 8, 0.25)
    assert read.update.report == Report(metric=0.75, samples=4)
    assert read.seconds == {"load": 1.0, "train": 2.5}
    assert len(data) == answer_size(sent)


@pytest.mark.parametrize(
    ("settings", "objects", "reason"),
    [
        (None, {"update": b""}, "kind"),
        ({}, None, "length"),
        ({"loss": 0.5}, {"other": b"x"}, "length"),
        ({"loss": 1}, {"update": update()}, "kind"),
        ({}, {"update": update()}, "kind"),
        ({"loss": math.inf}, {"update": update()}, "non-finite"),
        ({"loss": 0.5}, {"update": update(version=9)}, "version"),
        ({"loss": 0.5}, {"update": update(version=7)}, "stale"),
        ({"loss": 0.5}, {"update": update(client=2)}, "client"),
        ({"loss": 0.5}, {"update": update(run=2)}, "run"),
        ({"loss": 0.5}, {"update": update(map_version=3)}, "map-version"),
        ({"lacks": 5}, None, "kind"),
    ],
)
def test_what_is_refused(settings: Any, objects: Any, reason: str) -> None:
    with pytest.raises(wire.Refused) as refused:
        result(answer(settings, objects))
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [(2, "raised"), (3, "expired"), (5, "unavailable"), (8, "crashed"), (7, "error"), (12345, "error")],
)
def test_errors_of_flower_have_words(code: int, reason: str) -> None:
    """And only so many, whatever codes a node makes up: they are counted for as long as the run lasts."""
    message = Message(Error(code=code, reason="so"), reply_to=question())
    for read in (result, Hello.read, read_answer):
        with pytest.raises(Failed) as failed:
            read(message)
        assert failed.value.reason == reason
    assert answer_size(message) == 0


def test_a_client_says_what_it_lacks_or_why_not() -> None:
    assert result(reply(question(), {"lacks": "map"})).lacks == "map"
    diverged = result(reply(question(), {"refused": "diverged"})).update
    assert diverged is not None
    assert math.isnan(diverged.loss)
    with pytest.raises(Failed) as failed:
        result(reply(question(), {"refused": "a word of its own", "text": "x" * 1000}))
    assert failed.value.reason == "client-other"
    assert str(failed.value) == f"client-other: {'x' * 300}"


def test_an_answer_that_is_too_large_is_not_looked_at() -> None:
    """The largest one has an update of 52 + 4 x (20 + 2) bytes and a report, and 2^20 bytes of settings."""
    room = 2**20 - 8  # beside the loss
    data = update()
    assert result(reply(question(), {"loss": 0.5, "more": "x" * room}, data)).update is not None
    with pytest.raises(wire.Refused, match=f"{2**20 + len(data) + 1} bytes of at most {2**20 + len(data)}") as refused:
        result(reply(question(), {"loss": 0.5, "more": "x" * (room + 1)}, data))
    assert refused.value.reason == "limit"
    for settings, objects in (({"classes": [0] * 2**18}, None), ({}, {"update": bytes(2**20 + 1)})):
        with pytest.raises(wire.Refused) as refused:
            Hello.read(answer(settings, objects))
        assert refused.value.reason == "limit"


def test_words_of_strangers_do_nothing_to_a_terminal() -> None:
    assert printable(Failed("raised", "\x1b[2Jgone\nfedgmr: done \u202e é")) == (
        "raised: \\x1b[2Jgone\\nfedgmr: done \\u202e é"
    )
    assert len(printable("x" * 10**6)) == 400


def test_a_hello_comes_through() -> None:
    hello = Hello(client_id="x" * 32, partition=4, samples=17, classes=(0, 9), layout="l")
    assert Hello.read(hello.reply(question())) == hello


@pytest.mark.parametrize(
    "change",
    [{"samples": 0}, {"samples": 2**60}, {"samples": 1.0}, {"classes": [-1]}, {"classes": ["a"]}, {"partition": "0"}],
)
def test_a_strange_hello_is_refused(change: dict[str, Any]) -> None:
    settings = {"client-id": "", "partition": 0, "samples": 5, "classes": [1], "layout": ""}
    with pytest.raises(wire.Refused):
        Hello.read(answer(settings | change))


@given(
    st.dictionaries(st.sampled_from(["loss", "lacks", "refused", "text", "seconds.train", "partition"]), SETTING),
    st.dictionaries(st.sampled_from(["update", "x"]), st.binary(max_size=200)),
)
def test_any_settings_and_bytes(settings: dict[str, Any], objects: dict[str, bytes]) -> None:
    message = answer(settings, objects)
    for read in (result, Hello.read):
        try:
            read(message)
        except (wire.Refused, Failed):
            continue
        assert isinstance(settings.get("lacks"), str)


def test_other_records_do_no_harm() -> None:
    message = answer({"loss": 0.5}, {"update": update()})
    message.content["metrics"] = MetricRecord({"accuracy": 1.0})
    assert result(message).update is not None


@pytest.mark.parametrize(("hits", "samples"), [(1, 3), (5, 7), (17, 49), (999, 1000), (0, 5), (93, 96)])
def test_a_reported_share_survives_the_wire(hits: int, samples: int) -> None:
    report = Report(metric=hits / samples, samples=samples)
    assert report.metric_sum == hits
    assert report.metric_sum / samples == report.metric
