"""Files that say when clients are there: a run with one, its content bound to the run, and bad ones refused."""

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.command import Command, write_recipe
from e2e.recipes import FLEET, recipe
from e2e.test_resume import left_by
from fedgmr.experiments.checkpoint import checkpoints_of, read_checkpoint

# Every kind of mistake: the file's content, and words of the sentence.
BAD: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b" \n\n", ["which is empty", "client on off"]),
    "comments": (b"# client on off\n", ["no line of a client"]),
    "header alone": (b"client,on,off\n", ["no line of a client"]),
    "binary": (b"0 1 \xff\xfe\x00", ["which is no text (byte 4)"]),
    "pickle": (pickle.dumps({"1": {"active": [0]}}, protocol=4), ["a pickle", "may run any code", "json.dump("]),
    "columns": (b"0 0 10\n0 20 30 40\n", ["line 2 has 4 columns"]),
    "two columns": (b"0 10\n", ["line 1 has 2 columns", "`client on off`"]),
    "mixed": (b"client,on,off\n0,0,10\n0 20 30\n", ["line 3 has 1 columns"]),
    "header": (b"client,on,until\n0,0,10\n", ["line 1 has no column 'off'"]),
    "word": (b"0 0 10\n0 noon 30\n", ["line 2: 'noon' is no moment", "0 or more"]),
    "nan": (b"0 nan 10\n", ["line 1: 'nan' is no moment"]),
    "infinite": (b"0 0 1e999\n", ["line 1: '1e999' is no moment"]),
    "negative": (b"0 -5 10\n", ["line 1: '-5' is no moment"]),
    "underscores": (b"0 1 1_000\n", ["line 1: '1_000' is no moment"]),
    "other digits": ("0 1 ٣\n".encode(), ["line 1: '٣' is no moment"]),
    "backwards": (b"0 10 5\n", ["line 1: off is 5 and on 10", "an end after its beginning"]),
    "disorder": (b"0 10 20\n1 0 5\n0 0 5\n", ["line 3: on is 0, before the end of the stretch before it"]),
    "long": (b"0 0 10\n0 " + b"2" * 10**6 + b" 30\n", ["line 2 has 1000005 characters"]),
    "broken JSON": (b'{"a": {"active": [0', ["which is not valid JSON"]),
    "deep JSON": (b"[" * 200_000, ["which is not valid JSON"]),
    "list": (b"[1, 2]", ["which holds no devices"]),
    "no lists": (b'{"a": {"active": 3}}', ["device 'a' has no lists active and inactive"]),
    "lengths": (b'{"a": {"active": [0, 5], "inactive": [2]}}', ["2 moments under active and 1 under inactive"]),
    "truth": (b'{"a": {"active": [true], "inactive": [2]}}', ["device 'a': true is no moment"]),
    "huge": (b'{"a": {"active": [0], "inactive": [1' + b"0" * 400 + b"]}}", ["device 'a'", "is no moment"]),
    "never": (b'{"a": {"active": [], "inactive": []}}', ["device 'a' is never there"]),
    "finish": (b'{"a": {"active": [0], "inactive": [20], "finish_time": 10}}', ["until 20", "come again after 10"]),
}


def _recipe(**availability: Any) -> dict[str, Any]:
    return recipe(seconds=200.0, fleet={**FLEET, "availability": {"kind": "file", **availability}})


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_in_one_sentence(kind: str, fedgmr: Command) -> None:
    content, words = BAD[kind]
    (fedgmr.folder / "hours").write_bytes(content)
    write_recipe(fedgmr.folder / "r.json", _recipe(path="hours"))
    sentence = fedgmr("run", "r.json", "output=run").refusal()
    assert sentence.startswith("fleet.availability.path is 'hours', ")
    for word in words:
        assert word in sentence
    assert not (fedgmr.folder / "run").exists()


@pytest.mark.parametrize(
    ("path", "words"),
    [("missing.txt", "there is no such file (FEDGMR_DATA is not set)"), (".", "which is no file"), ("a\0b", "no such")],
)
def test_a_file_that_is_not_there(path: str, words: str, fedgmr: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGMR_DATA", raising=False)
    write_recipe(fedgmr.folder / "r.json", _recipe(path=path))
    assert words in fedgmr("run", "r.json", "output=run").refusal()


def test_the_times_must_fit_their_period(fedgmr: Command) -> None:
    (fedgmr.folder / "hours").write_text("0 0 100\n")
    write_recipe(fedgmr.folder / "r.json", _recipe(path="hours", every=50.0))
    assert "client 0 is there until 100" in fedgmr("run", "r.json", "output=run").refusal()
    bad = {**FLEET, "availability": {"kind": "day_night", "night": 24}}
    write_recipe(fedgmr.folder / "r.json", recipe(fleet=bad))
    assert "night is 24.0: give less than day (24.0)" in fedgmr("run", "r.json", "output=run").refusal()


def test_a_run_is_bound_to_the_content_of_its_file(fedgmr: Command) -> None:
    # Clients 1 to 4 are never there within the run.
    lines = ["client,on,off", "0,0,1000", *(f"{client},900,1000" for client in range(1, 5))]
    hours = fedgmr.folder / "hours.csv"
    hours.write_text("\n".join(lines))
    write_recipe(fedgmr.folder / "r.json", _recipe(path="hours.csv"))
    assert fedgmr("run", "r.json", "output=run").code == 0
    run = fedgmr.folder / "run"
    updates = _rows(run)[-1]["updates"]
    assert updates[0] > 0
    assert updates[1:] == [0, 0, 0, 0]
    (run / "summary.json").unlink()
    hours.write_text("\n".join(lines) + "\n5,0,1\n")
    assert "whose content is not the one that the run began with" in fedgmr("resume", "run").refusal()
    hours.write_text("\n".join(lines))
    assert fedgmr("resume", "run").code == 0
    assert _rows(run)[-1]["updates"] == updates


def _rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("method", "on_leaving"), [("fedgmr", "lose"), ("fedavg", "lose"), ("fedasync", "resume")])
def test_a_run_that_is_cut_in_an_absence_ends_as_one_that_is_not(method: str, on_leaving: str, fedgmr: Command) -> None:
    absences = [{"clients": [0, 1, 3], "start": 30.0, "end": 55.0, "every": 90.0}]
    # Tasks are cut short in the middle of an absence, or before one that the server does not know of.
    _cut_and_compare(
        fedgmr,
        recipe("dense", method, fleet={**FLEET, "absences": absences, "on_leaving": on_leaving}),
        lambda state: bool(state.get("doomed")) if on_leaving == "lose" else 30 < state["now"] % 90 < 55,
    )
    summary = json.loads((fedgmr.folder / "run" / "summary.json").read_text())
    assert (summary["refused"].get("left", 0) > 0) == (on_leaving == "lose")
    assert (sum(summary["time"]["lost"]) > 0) == (on_leaving == "lose")
    assert summary["time"]["away"][2] == 0 < summary["time"]["away"][0]


def test_a_run_that_is_cut_in_a_silent_stretch_ends_as_one_that_is_not(fedgmr: Command) -> None:
    # Nothing is carried in the last 30 of 60 seconds; one link ends after 150 seconds, in the middle of its task.
    (fedgmr.folder / "silent").write_text("0 1\n30 0\n")
    (fedgmr.folder / "ends").write_text("0 1\n148 1\n149 1\n")
    traces = [{"kind": "file", "down": name, "unit": "MiB/s", "shift": 0} for name in ("silent", "ends")]
    links = [{**link, "trace": traces[0]} for link in FLEET["links"]]  # type: ignore[attr-defined]
    links[4]["trace"] = {**traces[1], "at_end": "stop"}
    _cut_and_compare(
        fedgmr, recipe(fleet={**FLEET, "links": links}), lambda state: 35 < state["now"] % 60 < 55 and state["queue"]
    )
    run = fedgmr.folder / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["refused"] == {"left": 1}
    assert summary["time"]["away"] == [0, 0, 0, 0, 150]
    trips = [trip for row in _rows(run) for trip in row["trips"]]
    assert [trip[5] for trip in trips if trip[7] is None] == [150]
    ends = [trip[5] % 60 for trip in trips if trip[0] != 4]
    assert len(ends) > 20
    assert all(end <= 30 for end in ends), "nothing arrives in silence"
    rows = _rows(run)
    assert "rates" not in rows[0]
    down = rows[1]["rates"][0][0]  # of client 0: 20e-4 MiB/s on average, so twice that while there is any
    assert len(down) == 10
    assert [rate for part, rate in enumerate(down) if (part + 1) * rows[1]["seconds"] / 10 < 30] == [0.004] * (
        math.ceil(300 / rows[1]["seconds"]) - 1
    )


def _cut_and_compare(fedgmr: Command, data: dict[str, Any], wanted: Callable[[dict[str, Any]], Any]) -> None:
    """Run 300 seconds; again from a checkpoint in the middle of those whose fleet is as wanted; compare all."""
    data |= {"seconds": 300.0, "checkpoint": {"every": 1, "keep": 10_000}}
    write_recipe(fedgmr.folder / "r.json", data)
    assert fedgmr("run", "r.json", "output=run").code == 0
    run = fedgmr.folder / "run"
    undisturbed = left_by(run)
    summary = json.loads((run / "summary.json").read_text())
    for client in range(5):
        assert sum(of[client] for of in summary["time"].values()) == pytest.approx(300.0, abs=0.01)
    files = checkpoints_of(run)
    moments = [path for path in files if wanted(read_checkpoint(path)[1]["fleet"])]
    cut = moments[len(moments) // 2]
    for path in files:
        if path.name > cut.name:
            path.unlink()
    (run / "summary.json").unlink()
    assert fedgmr("resume", "run").code == 0
    assert left_by(run) == undisturbed


def test_trips_are_recorded_where_they_are_wanted(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe(seconds=100.0))
    assert fedgmr("run", "r.json", "output=plain").code == 0
    plain = _rows(fedgmr.folder / "plain")
    assert not any("trips" in row or "away" in row for row in plain)
    assert "time" not in json.loads((fedgmr.folder / "plain" / "summary.json").read_text())
    assert fedgmr("run", "r.json", "evaluation.trips=true", "output=told").code == 0
    told = _rows(fedgmr.folder / "told")
    for before, row in zip(plain, told, strict=True):
        assert {name: value for name, value in row.items() if name not in ("trips", "away", "wall")} == {
            name: value for name, value in before.items() if name != "wall"
        }
    sums = [sum(trip[6] for row in told for trip in row["trips"] if trip[0] == client) for client in range(5)]
    assert sums == told[-1]["bytes_down"]


@pytest.mark.parametrize("on_leaving", ["resume", "lose"])
def test_clients_that_stay_make_the_same_run(on_leaving: str, fedgmr: Command) -> None:
    never = [{"clients": [0, 3], "start": 1e6, "end": 2e6}]
    write_recipe(fedgmr.folder / "r.json", recipe(seconds=200.0, evaluation={"trips": False}))
    write_recipe(
        fedgmr.folder / "s.json",
        recipe(
            seconds=200.0,
            evaluation={"trips": False},
            fleet={**FLEET, "absences": never, "on_leaving": on_leaving},
        ),
    )
    for name in ("r", "s"):
        assert fedgmr("run", f"{name}.json", f"output={name}").code == 0
    one, other = (_rows(fedgmr.folder / name) for name in ("r", "s"))
    assert [row | {"wall": 0} for row in one] == [row | {"wall": 0} for row in other]
