"""Files that say when clients are there: a run with one, its content bound to the run, and bad ones refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from e2e.command import Command, write_recipe
from e2e.recipes import FLEET, recipe

# Every kind of mistake: the file's content, and words of the sentence.
BAD: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b" \n\n", ["which is empty", "client on off"]),
    "comments": (b"# client on off\n", ["no lines but comments"]),
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
    "backwards": (b"0 10 5\n", ["line 1: off is 5 and on 10", "an end after its beginning"]),
    "disorder": (b"0 10 20\n1 0 5\n0 0 5\n", ["line 3: on is 0, before the end of the stretch before it"]),
    "long": (b"0 0 10\n0 " + b"2" * 10**6 + b" 30\n", ["line 2 has 1000005 characters"]),
    "broken JSON": (b'{"a": {"active": [0', ["which is not valid JSON"]),
    "deep JSON": (b"[" * 200_000, ["which is not valid JSON"]),
    "list": (b"[1, 2]", ["which holds no devices"]),
    "no lists": (b'{"a": {"active": 3}}', ["device 'a' has no lists active and inactive"]),
    "lengths": (b'{"a": {"active": [0, 5], "inactive": [2]}}', ["2 moments under active and 1 under inactive"]),
    "truth": (b'{"a": {"active": [true], "inactive": [2]}}', ["device 'a': true is no moment"]),
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
