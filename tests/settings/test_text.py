"""Settings as text: files read and written, and overrides."""

import json
import re
import string
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmr.settings.refusals import SettingError
from fedgmr.settings.text import apply_overrides, dump, read_mapping

# --- files


def read(tmp_path: Path, text: str, name: str = "recipe.yaml") -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_mapping(path)


def test_read_yaml(tmp_path: Path) -> None:
    text = "\ufeffseed: 1\nrate: 1e-3\nday: 2024-01-01\nfleet:\n  links: [{up: 3}]\n"
    fleet = {"links": [{"up": 3}]}
    assert read(tmp_path, text) == {"seed": 1, "rate": 0.001, "day": "2024-01-01", "fleet": fleet}


def test_read_json(tmp_path: Path) -> None:
    assert read(tmp_path, '{"seed": 1}', "recipe.json") == {"seed": 1}
    assert read(tmp_path, '{"seed": 1}') == {"seed": 1}
    assert read(tmp_path, '{\n\t"name": "\\ud83d\\ude00"\n}') == {"name": "\N{GRINNING FACE}"}


BOMB = "a: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"b{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)  # 9^9 entries in 339 bytes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "with its aliases written out it has more than 100,000 entries"),
        ("a: &a [*a]", "with its aliases written out"),
        ("a: " + "[" * 20_000, "is nested too deep"),
        ("[" * 100_000, "is nested too deep"),
        ("a: " + "b" * (1 << 20), "has 1,048,579 characters: settings have at most 1,048,576"),
        ("a: " + "b" * (1 << 22), "has 4,194,307 bytes: settings have at most 1,048,576"),
        ('{"a": ' + "9" * 5000 + "}", "Exceeds the limit"),
    ],
)
def test_texts_that_would_take_long_are_refused_early(tmp_path: Path, text: str, said: str) -> None:
    began = time.process_time()
    with pytest.raises(SettingError, match=said):
        read(tmp_path, text)
    assert time.process_time() - began < 5  # the first took 24 s and 1.6 GB


def test_merge_keys_may_repeat_a_key(tmp_path: Path) -> None:
    data = read(tmp_path, "a: &a {x: 1, y: 1}\nb: &b\n  <<: *a\n  x: 2\nc:\n  <<: *b\n  y: 3\n")
    assert data["b"] == {"x": 2, "y": 1}
    assert data["c"] == {"x": 2, "y": 3}


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "r.yaml", ", line 3, column 1 is not valid YAML: the key 'a' appears twice"),
        (
            "x:\n  a: 1\n  'a': 2\n",
            "r.yaml",
            ", line 3, column 3 is not valid YAML: the key 'a' appears twice",
        ),
        ('{"a": 1, "a": 2}', "r.json", " has the key 'a' twice: keep one of them."),
        ("a: 1\nb: [1, 2\n", "r.yaml", ", line 3, column 1 is not valid YAML: "),
        ("a: b: c\n", "r.yaml", ", line 1, column 5 is not valid YAML: mapping values are not allowed here."),
        ("a: !!python/name:os.system x", "r.yaml", ", line 1, column 4 is not valid YAML: "),
        ("a: !!int x", "r.yaml", " is not valid YAML: "),
        ("a: \x01", "r.yaml", " is not valid YAML: "),
        ('{"a": 1,\n "b" 2}', "r.json", ", line 2, column 6 is not valid YAML: "),
        ("[1, 2]", "r.yaml", " holds [1, 2] at its top level: write a mapping of keys to values."),
        ("", "r.yaml", " holds null at its top level: write a mapping of keys to values."),
    ],
)
def test_unreadable_files(tmp_path: Path, text: str, name: str, sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        read(tmp_path, text, name)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / name}{sentence}")
    assert "\n" not in message
    assert message.endswith(".")


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"absent\.yaml cannot be read \(No such file or directory\): give a"):
        read_mapping(tmp_path / "absent.yaml")
    with pytest.raises(SettingError, match=r"cannot be read \(Is a directory\)"):
        read_mapping(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match=r"cannot be read \(it is not UTF-8 text\)"):
        read_mapping(tmp_path / "binary.yaml")


def test_dump_by_hand(tmp_path: Path) -> None:
    data = {
        "z": 1,
        "a": {
            "ladder": [0.5, 1.0],
            "links": [{"up": 1}],
            "pairs": [[1, 2], [3, 4]],
            "none": None,
            "empty": [],
        },
        "text": "1e-3",
        "rate": 1e-05,
        "day": "2024-01-01",
        "yes": True,
    }
    text = dump(data)
    assert text == (
        "z: 1\na:\n  ladder: [0.5, 1.0]\n  links:\n  - up: 1\n  pairs:\n  - [1, 2]\n  - [3, 4]\n"
        "  none: null\n  empty: []\ntext: '1e-3'\nrate: 1.0e-05\nday: 2024-01-01\n'yes': true\n"
    )
    assert read(tmp_path, text) == data


def test_dump_writes_long_lists_in_block_style_and_no_aliases() -> None:
    shared = [1, 2]
    assert dump({"long": list(range(100))}).startswith("long:\n- 0\n- 1\n")
    assert dump({"a": shared, "b": shared}) == "a: [1, 2]\nb: [1, 2]\n"
    assert dump({"a": (1, 2)}) == "a: [1, 2]\n"
    assert dump({"a": "x\ny", "b": "\x85"}) == 'a: "x\\ny"\nb: "\\N"\n'


# --- overrides


@pytest.mark.parametrize(
    ("data", "item", "result"),
    [
        ({}, "seed=3", {"seed": 3}),
        ({"a": {"b": 1, "c": 2}}, "a.b=x", {"a": {"b": "x", "c": 2}}),
        ({}, "a.b.c=[1, x, {y: 2}]", {"a": {"b": {"c": [1, "x", {"y": 2}]}}}),
        ({}, "a=1e-3", {"a": 0.001}),
        ({}, "a=true", {"a": True}),
        ({}, "a=null", {"a": None}),
        ({}, "a=", {"a": None}),
        ({}, "a='3'", {"a": "3"}),
        ({}, 'a={"b": 1}', {"a": {"b": 1}}),
        ({}, "a=x=y", {"a": "x=y"}),
        ({}, "a=package.module:Name", {"a": "package.module:Name"}),
        ({}, " a . b = 2", {"a": {"b": 2}}),
        ({"a": {"l": [{"up": 1}, {"up": 2}]}}, "a.l.0.up=3", {"a": {"l": [{"up": 3}, {"up": 2}]}}),
        ({"a": [1, 2]}, "a.1=5", {"a": [1, 5]}),
        ({"a": None}, "a.b=1", {"a": {"b": 1}}),
        ({"method": {"restoration": "saturation"}}, "method.restoration.patience=3",
         {"method": {"restoration": {"kind": "saturation", "patience": 3}}}),
        ({"method": "fedgmr"}, "method.restoration.patience=3",
         {"method": {"name": "fedgmr", "restoration": {"patience": 3}}}),
        ({"method": "fedgmr"}, "method.name=other", {"method": {"name": "other"}}),
        ({"fleet": "paper"}, "fleet.links.0.up=3", {"fleet": {"name": "paper", "links": {"0": {"up": 3}}}}),
    ],
)  # fmt: skip
def test_overrides(data: dict[str, Any], item: str, result: dict[str, Any]) -> None:
    before = json.dumps(data)
    assert apply_overrides(data, [item], named=("method", "fleet")) == result
    assert json.dumps(data) == before


def test_overrides_apply_in_order_and_named_is_a_parameter() -> None:
    assert apply_overrides({}, ["a.b=1", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}
    assert apply_overrides({"a": {"b": "w"}}, ["a.b.c=1"], named=("a.b",)) == {"a": {"b": {"name": "w", "c": 1}}}
    assert apply_overrides({"method": "w"}, ["method.c=1"]) == {"method": {"kind": "w", "c": 1}}


@pytest.mark.parametrize("item", ["a", "=1", "a..b=1", ".a=1", "a.=1", "", "  =1"])
def test_malformed_overrides(item: str) -> None:
    with pytest.raises(SettingError, match=re.escape(f"Override '{item}' is malformed: write key=value")):
        apply_overrides({}, [item])


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ("n.x=1", "n.x cannot be set because n is 3: set n itself."),
        ("l.2=1", "l.2 is not an entry of the list l: use an index from 0 to 1."),
        ("l.-1=1", "l.-1 is not an entry of the list l: use an index from 0 to 1."),
        ("l.x.y=1", "l.x is not an entry of the list l: use an index from 0 to 1."),
        ("e.0=1", "e.0 is not an entry of the list e: the list is empty, give it whole."),
        (".".join("k" * 3000) + "=1", f"'{'k.' * 28}... is nested too deep: settings have a few levels."),
        ("a=[1", "Override 'a=[1', line 1, column 3 is not valid YAML: "),
        ("a={b: 1, b: 2}", "Override 'a={b: 1, b: 2}', line 1, column 8 is not valid YAML: the key 'b'"),
    ],
)
def test_overrides_that_lead_nowhere(item: str, sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        apply_overrides({"n": 3, "l": [1, 2], "e": []}, [item])
    assert str(caught.value).startswith(sentence)


keys = st.text(alphabet=string.ascii_lowercase, min_size=1, max_size=3)
json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.lists(keys, min_size=1, max_size=4), json_data)
def test_an_override_sets_what_it_says(parts: list[str], value: Any) -> None:
    node: Any = apply_overrides({}, [f"{'.'.join(parts)}={json.dumps(value)}"])
    for part in parts:
        node = node[part]
    assert node == value
