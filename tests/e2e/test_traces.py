"""Links from files: files that cannot be used, a run that ends with its trace, and one whose file has changed."""

import json
from functools import partial
from typing import Any

import pytest

from e2e.command import Command, write_recipe
from e2e.crash import die_at
from e2e.recipes import FLEET, recipe

# content -> words of the sentence
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b"\n# nothing\n\n", "is empty"),
    "binary": (b"0 1\n1 2\n\x00\x01", "line 3: a null byte"),
    "encoding": (b"seconds,rate\n0,\xff\n", "line 2: this is no text in UTF-8"),
    "nan": (b"0 1\n1 nan\n", "line 2: rate 'nan': give a number from 0"),
    "infinite": (b"0 1\n1 inf\n", "line 2: rate 'inf'"),
    "negative": (b"0 1\n1 -2\n", "line 2: rate '-2'"),
    "overflow": (b"0 1\n1 1e999\n", "line 2: rate '1e999'"),
    "too fast": (b"0 1e300\n1 1e300\n", "line 1: rate '1e300'"),
    "not ascending": (b"0 1\n2 1\n1 1\n", "line 3: moment '1' is not after the one before it"),
    "twice the same": (b"0 1\n1 1\n1 1\n", "line 3: moment '1' is not after"),
    "words": (b"0 1\n1 fast\n", "line 2: rate 'fast'"),
    "underscores": (b"0 1\n1 1_0\n", "line 2: rate '1_0'"),
    "other digits": ("0 1\n1 ٣\n".encode(), "line 2: rate '٣'"),
    "long line": (b"0 1\n" + b"1" * 2**20 + b" 1\n", "line 2: a line of 1048578 characters"),
    "all zero": (b"0 0\n1 0\n", "line 2: every rate of the trace is 0"),
    "one row": (b"0 1\n", "line 1: the only row, which does not say how long it lasts"),
    "mixed columns": (b"0 1\n1 2\n2 3 4\n", "line 3: 3 columns, and the first line has 2"),
    "no header": (b"0 1 2\n1 2 3\n", "line 1: 3 columns without a header"),
    "no time": (b"rate\n1\n2\n", "line 1: no column seconds or time in 'rate'"),
    "no rate": (b"seconds,speed\n0,1\n1,2\n", "line 1: no column rate, down or up"),
    "two rates": (b"seconds,rate,throughput\n0,1,2\n", "line 1: two columns for rate"),
    "header alone": (b"seconds,rate\n", "line 1: a header without rows"),
    "an instant": (b"0 1\n1e-9 1\n", "line 2: the trace ends after 2e-09 seconds"),
    "Mahimahi, falling": (b"5\n3\n", "line 2: millisecond 3 after 5"),
    "Mahimahi, parts": (b"5\n6.5\n", "line 2: millisecond '6.5': give one whole number per line"),
    "Mahimahi, negative": (b"-5\n6\n", "line 1: millisecond '-5'"),
    "Mahimahi, for ever": (b"1\n99999999999\n", "line 2: millisecond 99999999999: give one up to"),
    "Mahimahi, at once": (b"0\n0\n", "line 2: the trace ends after 0 seconds"),
}


def traced(**keys: Any) -> dict[str, Any]:
    return recipe(fleet={**FLEET, "trace": {"kind": "file", **keys}})


@pytest.mark.parametrize("name", FILES)
def test_files_that_hold_no_trace(name: str, fedgmr: Command) -> None:
    content, sentence = FILES[name]
    (fedgmr.folder / "trace").write_bytes(content)
    unit = {} if name.startswith("Mahimahi") else {"unit": "Mbit/s"}
    write_recipe(fedgmr.folder / "r.json", traced(down="trace", **unit))
    told = fedgmr("run", "r.json", "output=run").refusal()
    assert told.startswith("trace")
    assert sentence in told
    assert len(told) < 220
    assert not (fedgmr.folder / "run" / "recipe.yaml").exists()


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"down": "nowhere"}, "trace.down is 'nowhere', and there is no such file"),
        ({"down": "."}, "trace.down is '.', which is no file"),
        ({"down": "trace", "up": "nowhere"}, "trace.up is 'nowhere'"),
        ({}, "fleet.trace.down is missing"),
        ({"down": "trace", "unit": "Mb/s"}, "fleet.trace.unit is 'Mb/s': give one of MiB/s"),
        ({"down": "trace", "shift": -1}, "fleet.trace.shift is -1"),
        ({"down": "trace", "at_end": "wait"}, "fleet.trace.at_end is 'wait'"),
    ],
)
def test_keys_that_cannot_be_used(keys: dict[str, Any], sentence: str, fedgmr: Command) -> None:
    (fedgmr.folder / "trace").write_text("0 1\n1 2\n")
    write_recipe(fedgmr.folder / "r.json", traced(**{"unit": "Mbit/s", **keys}))
    assert sentence in fedgmr("show", "r.json").refusal()


def test_a_link_without_rates_and_trace(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe(fleet={"name": "custom", "links": [{"up": 1}]}))
    assert (
        "fleet.links.0: down is missing: give a rate above 0, in MiB/s, or a trace"
        in fedgmr("show", "r.json").refusal()
    )


def test_a_file_that_has_changed_since_a_run_began(fedgmr: Command) -> None:
    trace = fedgmr.folder / "trace.csv"
    trace.write_text("seconds,down Mbit/s,up Mbit/s\n0,3,1\n30,0,0\n50,9,2\n")
    write_recipe(fedgmr.folder / "r.json", traced(down="trace.csv"))
    assert fedgmr("run", "r.json", "output=run", before=partial(die_at, "replaced", "checkpoints", 2)).code == -9
    before = trace.read_text()
    trace.write_text(before.replace("30", "31"))
    told = fedgmr("resume", "run").refusal()
    assert told.startswith("trace.down is 'trace.csv', whose content is not the one that the run began with")
    trace.write_text(before)
    assert fedgmr("resume", "run").code == 0


def test_a_run_on_a_trace_of_one_rate_is_one_on_constant_links(fedgmr: Command) -> None:
    (fedgmr.folder / "flat").write_text("0 3\n7 3\n9 3\n")
    rows = []
    for name, settings in (("constant", recipe()), ("traced", traced(down="flat", unit="Mbit/s"))):
        write_recipe(fedgmr.folder / f"{name}.json", settings)
        assert fedgmr("run", f"{name}.json", f"output={name}").code == 0
        lines = (fedgmr.folder / name / "metrics.jsonl").read_text().splitlines()
        rows.append([{key: value for key, value in json.loads(line).items() if key != "wall"} for line in lines])
    assert len(rows[0]) > 5
    assert rows[0] == rows[1]


@pytest.mark.parametrize("method", ["fedgmr", "fedavg", "fedasync"])
def test_a_run_whose_links_stop(method: str, fedgmr: Command) -> None:
    (fedgmr.folder / "trace").write_text("0 3\n60 5\n")
    keys = {"down": "trace", "unit": "Mbit/s", "shift": 0, "at_end": "stop"}
    write_recipe(fedgmr.folder / "r.json", {**traced(**keys), "method": method})
    assert fedgmr("run", "r.json", "output=run").code == 0
    rows = [json.loads(line) for line in (fedgmr.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["seconds"] == 600
    assert rows[-1]["bytes_up"] == next(row["bytes_up"] for row in rows if row["seconds"] > 120), "nothing came later"
    assert sum(rows[-1]["bytes_up"]) > 0
