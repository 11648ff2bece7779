"""Settings: strict building, the way back to data, schema; with files and overrides where dataclasses meet them."""

import ast
import dataclasses
import json
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedgmr.settings as settings_package
from fedgmr.settings.build import build, imported
from fedgmr.settings.refusals import SettingError, suggestion
from fedgmr.settings.schema import plain, schema
from fedgmr.settings.text import apply_overrides, dump, read_mapping

HERE = __name__  # the module part of an import path to a class of this file


class Restoration(Protocol):
    """What the kinds below have in common, for type checkers only."""


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """Waits for saturation."""

    kind: ClassVar[str] = "saturation"
    patience: int = field(default=3, metadata={"at_least": 1, "help": "Ticks to wait."})
    threshold: float = field(default=0.01, metadata={"above": 0, "at_most": 1})


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    kind: ClassVar[str] = "scheduled"
    every: int = 10


@dataclass(frozen=True, kw_only=True)
class Fraction:
    """Needs its value."""

    kind: ClassVar[str] = "fraction"
    value: float = field(metadata={"above": 0, "at_most": 1})


@dataclass(frozen=True, kw_only=True)
class Mine:
    """A user's own class, listed nowhere."""

    kind: ClassVar[str] = "mine"
    depth: int = 1
    name: str = "x"


@dataclass(frozen=True, kw_only=True)
class Nameless:
    steps: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Clashing:
    kind: str = "a field"


@dataclass(frozen=True, kw_only=True)
class Link:
    up: float = field(default=1.0, metadata={"above": 0})
    down: float = field(default=2.0, metadata={"above": 0})


@dataclass(frozen=True, kw_only=True)
class Fleet:
    links: tuple[Link, ...] = (Link(), Link(up=5.0))
    noise: float | None = None


@dataclass(frozen=True, kw_only=True)
class Window:
    first: int
    last: int = 9

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise ValueError(f"first is {self.first}: give at most last,\nwhich is {self.last}.")
        if self.first == self.last == 7:
            raise SettingError("window.first is 7: give another number.")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run.

    With more to say.
    """

    seed: int = field(metadata={"at_least": 0, "help": "Names every draw."})
    rate: float = field(default=0.1, metadata={"above": 0, "below": 10})
    fast: bool = False
    note: str = ""
    scale: Literal["constant", "cosine", 2] = "constant"
    ladder: tuple[float, ...] = field(default=(0.5, 1.0), metadata={"above": 0, "at_most": 1})
    budget: int | Literal["auto"] = field(default="auto", metadata={"at_least": 1})
    tag: int | str = 0
    figure: int | float = 0
    limit: float | None = None
    fleet: Fleet = Fleet()
    window: Window | None = None
    options: dict[str, Any] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict, metadata={"at_least": 0})
    anything: Any = None
    restoration: Restoration | None = field(default=Saturation(), metadata={"kinds": (Saturation, Scheduled, Fraction)})
    second: Saturation | Scheduled = Scheduled()
    third: Saturation | Fraction | None = None
    many: tuple[Saturation | Scheduled, ...] = ()
    listed: tuple[Restoration, ...] = field(default=(), metadata={"kinds": (Saturation, Scheduled)})
    ramp: float | Saturation = field(default=1.0, metadata={"at_least": 0})
    _made: int = field(default=0, init=False)


def make(**data: Any) -> Recipe:
    return build(Recipe, {"seed": 1, **data})


def refusal(**data: Any) -> str:
    with pytest.raises(SettingError) as caught:
        make(**data)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


# --- build: scalars


def test_defaults_and_given_values() -> None:
    assert make() == Recipe(seed=1)
    assert make(rate=2, fast=True, note="n") == Recipe(seed=1, rate=2.0, fast=True, note="n")
    assert isinstance(make(rate=2).rate, float)


def test_error_is_a_value_error() -> None:
    assert issubclass(SettingError, ValueError)


@pytest.mark.parametrize(("given", "read"), [(3, 3), (3.0, 3), (1e3, 1000), ("1e3", 1000), (0, 0)])
def test_int_accepts(given: Any, read: int) -> None:
    seed = make(seed=given).seed
    assert seed == read
    assert type(seed) is int


@pytest.mark.parametrize("given", [True, 1.5, "3", "three", None, [1], math.inf, math.nan, "1e-3", "1e999"])
def test_int_refuses(given: Any) -> None:
    assert refusal(seed=given).endswith(": give a whole number of at least 0.")


@pytest.mark.parametrize(("given", "read"), [(1, 1.0), (0.5, 0.5), ("1e-3", 0.001), ("2", 2.0)])
def test_float_accepts(given: Any, read: float) -> None:
    rate = make(rate=given).rate
    assert rate == read
    assert type(rate) is float


@pytest.mark.parametrize("given", [True, "fast", math.nan, "nan", None, [1.0], 10**400])
def test_float_refuses(given: Any) -> None:
    assert refusal(rate=given).endswith(": give a number above 0 and below 10.")


def test_float_may_be_infinite() -> None:
    assert make(limit=math.inf).limit == math.inf
    assert make(limit="inf").limit == math.inf


def test_bool_and_str_are_strict() -> None:
    assert refusal(fast=1) == "fast is 1: give true or false."
    assert refusal(fast="yes") == "fast is 'yes': give true or false."
    assert refusal(note=3) == "note is 3: give a text."
    assert refusal(note=False) == "note is false: give a text."
    assert refusal(note=None) == "note is null: give a text."


@pytest.mark.parametrize(
    ("key", "given", "sentence"),
    [
        ("seed", -1, "seed is -1: give a whole number of at least 0."),
        ("rate", 0, "rate is 0: give a number above 0 and below 10."),
        ("rate", 10, "rate is 10: give a number above 0 and below 10."),
        ("ladder", [0.5, 1.5], "ladder.1 is 1.5: give a number above 0 and of at most 1."),
        ("ladder", [0.5, 0], "ladder.1 is 0: give a number above 0 and of at most 1."),
        ("shares", {"a": 1, "b": -2}, "shares.b is -2: give a number of at least 0."),
        ("fleet", {"links": [{}, {"up": -1}]}, "fleet.links.1.up is -1: give a number above 0."),
        ("budget", 0, "budget is 0: give a whole number of at least 1 or one of auto."),
    ],
)
def test_bounds(key: str, given: Any, sentence: str) -> None:
    assert refusal(**{key: given}) == sentence


def test_bounds_that_just_hold() -> None:
    assert make(seed=0, ladder=[1], budget=1).ladder == (1.0,)


# --- build: literals, unions, collections


def test_literal() -> None:
    assert make(scale="cosine").scale == "cosine"
    assert make(scale=2).scale == 2
    assert refusal(scale="Cosin") == "scale is 'Cosin': give one of constant, cosine, 2 (did you mean cosine?)."
    assert refusal(scale="zzz") == "scale is 'zzz': give one of constant, cosine, 2."


@dataclass(frozen=True, kw_only=True)
class Switch:
    level: Literal[1, True]


def test_literal_tells_true_from_one() -> None:
    assert build(Switch, {"level": 1}).level is not True
    assert build(Switch, {"level": True}).level is True


def test_simple_unions_keep_the_type_given() -> None:
    assert make(tag="7").tag == "7"
    assert make(tag=7).tag == 7
    assert type(make(figure=3).figure) is int
    assert type(make(figure=3.0).figure) is float
    assert make(budget="auto").budget == "auto"
    assert make(budget=4).budget == 4
    assert make(limit=None).limit is None
    assert refusal(tag=1.5) == "tag is 1.5: give a whole number or a text."
    assert refusal(budget="autp").endswith("or one of auto (did you mean auto?).")
    assert refusal(limit="x") == "limit is 'x': give a number or null."


def test_tuples() -> None:
    assert make(ladder=[0.1, 1]).ladder == (0.1, 1.0)
    assert make(ladder=()).ladder == ()
    assert refusal(ladder=0.5) == "ladder is 0.5: give a list."
    assert refusal(ladder="0.5") == "ladder is '0.5': give a list."
    assert refusal(ladder=[0.5, "x"]).startswith("ladder.1 is 'x'")


def test_free_mappings() -> None:
    given = {"a": [1, {"b": None}]}
    made = make(options=given, shares={"a": 1})
    assert made.options == given
    assert made.options is not given
    assert made.shares == {"a": 1.0}
    assert refusal(options=[1]) == "options is [1]: give a mapping."
    assert refusal(options={1: 2}) == "options has the key 1, which is no text: put it in quotes."


def test_a_free_value_is_refused_where_a_file_would_give_another_one() -> None:
    assert refusal(options={"a": [{None: 2}]}) == "options.a.0 has the key null, which is no text: put it in quotes."
    assert refusal(anything=[{True: 2}]) == "anything.0 has the key true, which is no text: put it in quotes."
    assert refusal(options={"a": math.inf}) == "options.a is inf: give a finite number, or a text."
    assert refusal(anything=[math.nan]) == "anything.0 is nan: give a finite number, or a text."
    assert make(anything="inf").anything == "inf"
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    assert refusal(anything=deep).endswith("... is nested too deep: settings have a few levels.")


def test_unsupported_annotations_are_for_the_programmer() -> None:
    for annotation in (list[int], tuple[int, int], Path, tuple, dict[int, str]):
        odd = dataclasses.make_dataclass("Odd", [("x", annotation)], frozen=True, kw_only=True)
        with pytest.raises(TypeError, match="not supported"):
            build(odd, {"x": [1]})


# --- build: keys


def test_unknown_key_with_and_without_a_near_match() -> None:
    assert refusal(sed=1) == "sed is not a known key: did you mean seed?"
    assert refusal(fleet={"nois": 1}) == "fleet.nois is not a known key: did you mean fleet.noise?"
    assert refusal(fleet={"zzz": 1}) == "fleet.zzz is not a known key: choose one of links, noise."
    assert refusal(fleet={True: 1}) == "fleet.True is not a known key: choose one of links, noise."
    assert refusal(_made=1).startswith("_made is not a known key")


def test_suggestion() -> None:
    assert suggestion("FedAvgg", ["fedgmr", "fedavg"]) == "did you mean fedavg?"
    assert suggestion("sed", ["Seed"], "run.") == "did you mean run.Seed?"
    assert suggestion("zzz", ["a", "b"], "run.") == "choose one of a, b."
    assert suggestion("zzz", []) == "remove it, nothing is known here."


def test_missing_key() -> None:
    with pytest.raises(SettingError, match=r"^seed is missing: give a whole number of at least 0\.$"):
        build(Recipe, {})
    assert refusal(window={}) == "window.first is missing: give a whole number."
    with pytest.raises(SettingError, match=r"^run\.seed is missing"):
        build(Recipe, {}, path="run")


def test_no_mapping() -> None:
    with pytest.raises(SettingError, match=r"^The top level is 3: give a mapping with keys among links, noise\.$"):
        build(Fleet, 3)
    assert refusal(fleet=3) == "fleet is 3: give a mapping with keys among links, noise."
    assert refusal(fleet="a:b") == "fleet is 'a:b': give a mapping with keys among links, noise."
    assert refusal(fleet=None) == "fleet is null: give a mapping with keys among links, noise."
    assert refusal(window="w") == "window is 'w': give a mapping with keys among first, last or none."


def test_none_switches_off_whatever_may_be_absent() -> None:
    base = Recipe(seed=1, window=Window(first=1))
    for off in ("none", None):
        assert make(window=off, third=off).window is None
        assert build(Recipe, {"window": off}, base=base).window is None
    assert refusal(window="non").endswith("or none (did you mean none?).")
    assert make(note="none").note == "none"


def test_long_values_are_cut() -> None:
    assert len(refusal(rate="x" * 500)) < 150


def test_post_init() -> None:
    assert refusal(window={"first": 10}) == "window: first is 10: give at most last, which is 9."
    assert refusal(window={"first": 7, "last": 7}) == "window.first is 7: give another number."
    with pytest.raises(SettingError, match=r"^first is 10: give"):
        build(Window, {"first": 10})


def test_instances_are_taken_as_they_are() -> None:
    fleet, mine, recipe = Fleet(noise=1.0), Mine(), Recipe(seed=3)
    made = make(fleet=fleet, restoration=mine, many=[Scheduled()], ramp=Saturation())
    assert made.fleet is fleet
    assert made.restoration is mine
    assert made.many == (Scheduled(),)
    assert made.ramp == Saturation()
    assert build(Recipe, recipe) is recipe
    assert refusal(fleet=Link()).startswith("fleet is Link(up=1.0, down=2.0): give a mapping")


# --- build: base


def test_base_stands_in_at_every_depth() -> None:
    base = Recipe(seed=5, rate=0.2, fleet=Fleet(links=(Link(up=3.0),), noise=0.5), window=Window(first=1, last=2))
    made = build(Recipe, {"rate": 1, "fleet": {"noise": None}, "window": {"last": 4}}, base=base)
    assert made == dataclasses.replace(
        base, rate=1.0, fleet=Fleet(links=(Link(up=3.0),), noise=None), window=Window(first=1, last=4)
    )
    assert build(Recipe, {}, base=base) == base


def test_lists_and_free_mappings_replace_those_of_the_base() -> None:
    base = Recipe(seed=1, options={"a": 1}, fleet=Fleet(links=(Link(up=3.0), Link())))
    made = build(Recipe, {"options": {"b": 2}, "fleet": {"links": [{"down": 7}]}}, base=base)
    assert made.options == {"b": 2}
    assert made.fleet.links == (Link(up=1.0, down=7.0),)


def test_a_mapping_of_indices_updates_the_list_of_the_base() -> None:
    made = make(fleet={"links": {"1": {"down": 7}}})
    assert made.fleet.links == (Link(), Link(up=5.0, down=7.0))
    assert make(ladder={"0": 0.25}).ladder == (0.25, 1.0)
    sentence = "fleet.links.2 is not an entry of the list fleet.links: use an index from 0 to 1."
    assert refusal(fleet={"links": {"2": {}}}) == sentence
    assert refusal(many={"0": "scheduled"}).endswith("many: the list is empty, give it whole.")


def test_override_of_a_list_that_only_the_base_holds() -> None:
    data = apply_overrides({"seed": 1}, ["fleet.links.1.down=7", "restoration.patience=2"])
    made = build(Recipe, data)
    assert made.fleet.links[1] == Link(up=5.0, down=7.0)
    assert made.restoration == Saturation(patience=2)


def test_a_default_serves_as_base() -> None:
    assert make(restoration={"patience": 8}).restoration == Saturation(patience=8)
    assert make(second={"every": 2}).second == Scheduled(every=2)


# --- build: components


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("scheduled", Scheduled()),
        ({"kind": "scheduled"}, Scheduled()),
        ({"kind": "scheduled", "every": 2}, Scheduled(every=2)),
        ({"kind": "fraction", "value": 1}, Fraction(value=1.0)),
        ({"threshold": 0.5}, Saturation(threshold=0.5)),
        ({}, Saturation()),
        (None, None),
        ("none", None),
        ({"kind": "none"}, None),
        ({"kind": None}, None),
        (f"{HERE}:Mine", Mine()),
        ({"kind": f"{HERE}:Mine", "depth": 4}, Mine(depth=4)),
        ({"kind": f"{HERE}:Nameless", "steps": [3]}, Nameless(steps=(3,))),
        (f"{HERE}:Scheduled", Scheduled()),
    ],
)
def test_component_forms(given: Any, made: Any) -> None:
    assert make(restoration=given).restoration == made


def test_component_merges_with_a_base_of_its_kind_only() -> None:
    base = Recipe(seed=1, restoration=Saturation(patience=9, threshold=0.5))

    def rebuilt(given: Any) -> Any:
        return build(Recipe, {"restoration": given}, base=base).restoration

    assert rebuilt({"kind": "saturation", "patience": 2}) == Saturation(patience=2, threshold=0.5)
    assert rebuilt({"patience": 2}) == Saturation(patience=2, threshold=0.5)
    assert rebuilt("saturation") == Saturation()
    assert rebuilt({"kind": "scheduled"}) == Scheduled()
    assert rebuilt("none") is None


def test_component_with_a_users_class_as_base() -> None:
    base = Recipe(seed=1, restoration=Mine(depth=5, name="y"))

    def rebuilt(given: Any) -> Any:
        return build(Recipe, {"restoration": given}, base=base).restoration

    assert rebuilt({"depth": 6}) == Mine(depth=6, name="y")
    assert rebuilt({"kind": f"{HERE}:Mine", "name": "z"}) == Mine(depth=5, name="z")
    assert rebuilt({"kind": "mine", "name": "z"}) == Mine(depth=5, name="z")
    assert rebuilt("saturation") == Saturation()


def test_component_refusals() -> None:
    kinds = "give one of the kinds saturation, scheduled, fraction or none"
    assert refusal(restoration="saturatoin") == f"restoration is 'saturatoin': {kinds} (did you mean saturation?)."
    assert refusal(restoration={"kind": "zzz"}) == f"restoration.kind is 'zzz': {kinds}."
    assert refusal(restoration={"kind": 3}) == f"restoration.kind is 3: {kinds}."
    assert refusal(restoration=4) == f"restoration is 4: {kinds}."
    assert refusal(restoration="fraction") == "restoration.value is missing: give a number above 0 and of at most 1."
    assert refusal(restoration={"kind": "scheduled", "evry": 1}).endswith("did you mean restoration.every?")
    assert refusal(restoration={"kind": "none", "every": 1}).startswith(
        "restoration.every cannot be set because restoration is none"
    )
    assert refusal(third={"patience": 1}) == (
        "third.kind is missing: give one of the kinds saturation, fraction or none."
    )
    assert refusal(second=None) == "second is null: give one of the kinds saturation, scheduled."
    assert refusal(second="none") == "second is 'none': give one of the kinds saturation, scheduled."
    assert refusal(second={"kind": None}).startswith("second.kind is null")


def test_component_in_a_tuple() -> None:
    made = make(many=["scheduled", {"kind": "saturation", "patience": 1}], listed=["saturation", f"{HERE}:Mine"])
    assert made.many == (Scheduled(), Saturation(patience=1))
    assert made.listed == (Saturation(), Mine())
    assert refusal(listed=[{"patience": 1}]).startswith("listed.0.kind is missing")
    assert refusal(many=[{"kind": "saturation", "patience": 0}]).startswith("many.0.patience is 0")


def test_component_or_number() -> None:
    assert make(ramp=2).ramp == 2.0
    assert make(ramp="saturation").ramp == Saturation()
    assert make(ramp={"patience": 2}).ramp == Saturation(patience=2)
    assert refusal(ramp=-1) == "ramp is -1: give a number of at least 0 or one of the kinds saturation."
    assert refusal(ramp="saturate").endswith("(did you mean saturation?).")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no_such_package.module:Name", "ModuleNotFoundError: No module named 'no_such_package'"),
        (f"{HERE}:Absent", "has no attribute 'Absent'"),
        (":Name", "ValueError"),
        ("math:", "AttributeError"),
        ("math:sqrt", "give a dataclass"),
        (f"{HERE}:Clashing", "without a field called kind"),
    ],
)
def test_import_paths_that_fail(kind: str, reason: str) -> None:
    message = refusal(restoration={"kind": kind})
    assert message.startswith(f"restoration.kind is '{kind}'")
    assert reason in message


def test_imported() -> None:
    assert imported("math:sqrt", "task.name") is math.sqrt
    assert imported("pathlib:Path.cwd", "task.name") == Path.cwd
    with pytest.raises(SettingError, match=r"^task\.name is 'math:nothing', which cannot be imported \(Attrib"):
        imported("math:nothing", "task.name")


def test_a_module_that_fails_while_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_settings_module.py").write_text("raise RuntimeError('two\\nlines')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "(RuntimeError: two lines)" in refusal(restoration="failing_settings_module:Name")


# --- plain


def test_plain_by_hand() -> None:
    data = plain(Recipe(seed=1, restoration=Mine(), second=Saturation(), limit=math.inf))
    assert list(data)[:3] == ["seed", "rate", "fast"]
    assert "_made" not in data
    assert data["restoration"] == {"kind": f"{HERE}:Mine", "depth": 1, "name": "x"}
    assert list(data["second"].items()) == [("kind", "saturation"), ("patience", 3), ("threshold", 0.01)]
    assert data["fleet"] == {"links": [{"up": 1.0, "down": 2.0}, {"up": 5.0, "down": 2.0}], "noise": None}
    assert data["ladder"] == [0.5, 1.0]
    assert data["limit"] == "inf"
    assert data["third"] is None
    assert plain(Scheduled()) == {"kind": "scheduled", "every": 10}
    assert plain((1, {"a": (2,)})) == [1, {"a": [2]}]


def test_plain_refuses_what_json_cannot_express() -> None:
    with pytest.raises(TypeError, match="no JSON form"):
        plain(Recipe(seed=1, anything={1, 2}))


finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
saturations = st.builds(
    Saturation,
    patience=st.integers(min_value=1),
    threshold=st.floats(min_value=0, max_value=1, exclude_min=True),
)
schedules = st.builds(Scheduled, every=st.integers())
fractions = st.builds(Fraction, value=st.floats(min_value=0, max_value=1, exclude_min=True))
own = st.builds(Mine, depth=st.integers(), name=st.text()) | st.just(Nameless())
json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
recipes = st.builds(
    Recipe,
    seed=st.integers(min_value=0),
    rate=st.floats(min_value=0, max_value=10, exclude_min=True, exclude_max=True),
    fast=st.booleans(),
    note=st.text(),
    scale=st.sampled_from(["constant", "cosine", 2]),
    ladder=st.lists(st.floats(min_value=0, max_value=1, exclude_min=True), max_size=3).map(tuple),
    budget=st.integers(min_value=1) | st.just("auto"),
    tag=st.integers() | st.text() | st.sampled_from(["1e-3", "2024-01-01", "on", "none", "a: b", "1:30", "=", "<<"]),
    figure=st.integers() | finite,
    limit=st.none() | st.floats(allow_nan=False),
    fleet=st.builds(
        Fleet,
        links=st.lists(st.builds(Link, up=positive, down=positive), max_size=3).map(tuple),
        noise=st.none() | finite,
    ),
    window=st.none() | st.builds(Window, first=st.integers(max_value=6)),
    options=st.dictionaries(st.text(), json_data, max_size=3),
    shares=st.dictionaries(st.text(), st.floats(min_value=0, allow_infinity=False), max_size=2),
    anything=json_data,
    restoration=st.none() | saturations | schedules | fractions | own,
    second=saturations | schedules | own,
    third=st.none() | saturations | fractions,
    many=st.lists(saturations | schedules, max_size=2).map(tuple),
    listed=st.lists(schedules | own, max_size=2).map(tuple),
    ramp=st.floats(min_value=0) | saturations,
)


@settings(deadline=None)  # a busy disk or core is no failure
@given(recipes)
def test_round_trip(recipe: Recipe) -> None:
    data = plain(recipe)
    assert build(Recipe, data) == recipe
    assert build(Recipe, json.loads(json.dumps(data, allow_nan=False))) == recipe
    assert build(Recipe, data, base=Recipe(seed=3, restoration=Mine(), many=(Scheduled(),))) == recipe
    assert build(Recipe, {}, base=recipe) == recipe


@settings(deadline=None)
@given(recipe=recipes)
def test_round_trip_through_a_file(tmp_path_factory: pytest.TempPathFactory, recipe: Recipe) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(dump(plain(recipe)))
    assert build(Recipe, read_mapping(path)) == recipe


# --- schema


def accepts(node: dict[str, Any], data: Any) -> bool:
    """A validator for the words of JSON Schema that are in use, straight from their definitions."""
    known = {
        "$schema",
        "title",
        "description",
        "default",
        "type",
        "properties",
        "required",
        "additionalProperties",
    }
    known |= {"items", "enum", "const", "pattern", "oneOf", "anyOf"}
    known |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    assert set(node) <= known
    is_number = isinstance(data, (int, float)) and not isinstance(data, bool)
    types = {
        "object": isinstance(data, dict),
        "array": isinstance(data, list),
        "string": isinstance(data, str),
        "boolean": isinstance(data, bool),
        "null": data is None,
        "number": is_number,
        "integer": is_number and data == int(data),
    }
    fits = ["type" not in node or types[node["type"]]]
    fits.append("enum" not in node or any(type(data) is type(one) and data == one for one in node["enum"]))
    fits.append("const" not in node or data == node["const"])
    fits.append("oneOf" not in node or sum(accepts(one, data) for one in node["oneOf"]) == 1)
    fits.append("anyOf" not in node or any(accepts(one, data) for one in node["anyOf"]))
    if isinstance(data, str):
        fits.append(re.search(node.get("pattern", ""), data) is not None)
    if isinstance(data, list):
        fits += [accepts(node.get("items", {}), entry) for entry in data]
    if is_number:
        fits += [data >= node.get("minimum", data), data <= node.get("maximum", data)]
        fits += [
            data > node.get("exclusiveMinimum", data - abs(data) - 1),
            data < node.get("exclusiveMaximum", math.inf),
        ]
    if isinstance(data, dict):
        properties, rest = node.get("properties", {}), node.get("additionalProperties", {})
        fits += [name in data for name in node.get("required", [])]
        for name, entry in data.items():
            place = properties.get(name, rest)
            fits.append(place is not False and accepts(place, entry))
    return all(fits)


def test_schema_by_hand() -> None:
    node = schema(Saturation)
    assert node == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Saturation",
        "type": "object",
        "description": "Waits for saturation.",
        "properties": {
            "patience": {"type": "integer", "minimum": 1, "description": "Ticks to wait.", "default": 3},
            "threshold": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.01},
        },
        "additionalProperties": False,
    }
    node = schema(Recipe)
    assert node["required"] == ["seed"]
    assert node["description"] == "A run."
    properties = node["properties"]
    assert properties["seed"] == {"type": "integer", "minimum": 0, "description": "Names every draw."}
    assert properties["rate"]["exclusiveMaximum"] == 10
    assert properties["scale"] == {"enum": ["constant", "cosine", 2], "default": "constant"}
    assert properties["ladder"]["items"] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert properties["limit"] == {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}
    assert properties["anything"] == {"default": None}
    assert "description" not in schema(Scheduled)
    json.dumps(node, allow_nan=False)


def test_schema_of_a_component() -> None:
    node = schema(Recipe)["properties"]["restoration"]
    bare, _, *tagged, users, update, null = node["oneOf"]
    assert bare == {"enum": ["saturation", "scheduled", "none"]}  # a fraction needs its value
    assert [one["properties"]["kind"] for one in tagged] == [
        {"const": "saturation"},
        {"const": "scheduled"},
        {"const": "fraction"},
    ]
    assert tagged[2]["required"] == ["kind", "value"]
    assert users["required"] == ["kind"]
    assert set(update["properties"]) == {"patience", "threshold", "every", "value"}
    assert null == {"type": "null"}
    assert node["default"] == {"kind": "saturation", "patience": 3, "threshold": 0.01}


@pytest.mark.parametrize(
    "data",
    [
        {"restoration": "scheduled"},
        {"restoration": "none"},
        {"restoration": None},
        {"restoration": {"patience": 2}},
        {"restoration": {}},
        {"restoration": {"kind": "fraction", "value": 0.5}},
        {"restoration": "package.module:Name"},
        {"restoration": {"kind": f"{HERE}:Mine", "depth": 1}},
        {"fleet": {"links": [{"up": 3}]}},
        {"budget": "auto"},
        {"window": "none"},
        {"window": None},
        {"ramp": {"kind": "saturation"}},
    ],
)
def test_schema_accepts(data: dict[str, Any]) -> None:
    assert accepts(schema(Recipe), {"seed": 1, **data})


@pytest.mark.parametrize(
    "data",
    [
        {"seed": -1},
        {"sed": 1},
        {"rate": 10},
        {"ladder": [2]},
        {"restoration": "fraction"},
        {"restoration": "zzz"},
        {"restoration": {"kind": "fraction"}},
        {"restoration": {"kind": "scheduled", "patience": 1}},
        {"restoration": {"zzz": 1}},
        {"second": None},
        {"fleet": {"links": [{"upp": 3}]}},
        {"window": {}},
        {"budget": 0},
    ],
)
def test_schema_and_build_refuse_alike(data: dict[str, Any]) -> None:
    assert not accepts(schema(Recipe), {"seed": 1, **data})
    refusal(**data)


@settings(deadline=None)
@given(recipes)
def test_schema_accepts_every_recipe(recipe: Recipe) -> None:
    finite_recipe = dataclasses.replace(recipe, limit=None, ramp=1.0)
    assert accepts(schema(Recipe), plain(finite_recipe))


def test_imports_are_of_the_standard_library_and_yaml() -> None:
    files = list(Path(settings_package.__file__).parent.glob("*.py"))
    assert len(files) == 7
    for path in files:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= sys.stdlib_module_names | {"yaml"}
            if isinstance(node, ast.ImportFrom):
                module = str(node.module)
                assert module.partition(".")[0] in sys.stdlib_module_names or module.startswith("fedgmr.settings.")
