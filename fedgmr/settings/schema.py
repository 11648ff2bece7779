"""What a frozen dataclass says about its keys, read once and used three ways.

A ``Slot`` is the reading of one annotation with its metadata. By it ``build`` (in ``settings.py``, read that
next) turns data into values, ``plain`` turns values back into data, and ``schema`` tells an editor what may
stand where. Because all three share the one reading, they cannot disagree about what a key admits.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_IMPORT_PATH = {"type": "string", "pattern": "^[^:]+:[^:]+$"}
# Each scalar in the words of a sentence and of JSON Schema; each bound likewise, after its test.
_SCALARS = {
    int: ("a whole number", "integer"),
    float: ("a number", "number"),
    bool: ("true or false", "boolean"),
    str: ("a text", "string"),
}
_BOUNDS: dict[str, tuple[Callable[[float, float], bool], str, str]] = {
    "above": (operator.gt, "above", "exclusiveMinimum"),
    "at_least": (operator.ge, "of at least", "minimum"),
    "below": (operator.lt, "below", "exclusiveMaximum"),
    "at_most": (operator.le, "of at most", "maximum"),
}


@dataclass(frozen=True, kw_only=True)
class Slot:
    """What one place in the data admits.

    Attributes:
        simple: Annotations that are no dataclass: scalars, literals, tuples, mappings, Any.
        kinds: The dataclasses that may stand here.
        component: Whether the data chooses among the dataclasses by ``kind``.
        optional: Whether None may stand here.
        metadata: The metadata of the field, also for the elements of a tuple.
    """

    simple: tuple[Any, ...] = (Any,)
    kinds: tuple[type[Any], ...] = ()
    component: bool = False
    optional: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a dataclass: its name, what it admits and its default (MISSING when it is required)."""

    name: str
    slot: Slot
    default: Any


def keys_of(cls: type[Any]) -> tuple[Key, ...]:
    """Reads the keys of a dataclass in field order; default factories are called afresh."""
    hints = get_type_hints(cls)
    keys = []
    for entry in dataclasses.fields(cls):
        if entry.init:
            slot = slot_of(hints[entry.name], entry.metadata)
            default = entry.default if entry.default_factory is MISSING else entry.default_factory()
            keys.append(Key(name=entry.name, slot=slot, default=default))
    return tuple(keys)


def slot_of(annotation: Any, metadata: Mapping[str, Any]) -> Slot:
    """Reads one annotation; the metadata of a tuple or mapping is meant for what it holds."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    holds_others = any(is_list(member) or is_mapping(member) for member in members)
    listed = () if holds_others else tuple(metadata.get("kinds", ()))
    kinds = listed or tuple(member for member in members if is_value_class(member))
    simple = tuple(member for member in members if member is not NoneType and member not in kinds)
    if listed:  # any other annotation is then a protocol or a base class, there for the type checker only
        simple = tuple(member for member in simple if member in _SCALARS or is_literal(member))
    for member in simple:
        known = member in _SCALARS or is_literal(member) or is_list(member) or is_mapping(member)
        if not known and member is not Any:
            raise TypeError(f"{member} is not supported: annotate with scalars, tuples or dataclasses.")
    component = bool(listed) or any(kind_name(cls) is not None for cls in kinds)
    names = {kind_name(cls) for cls in kinds}
    assert not component or (None not in names and len(names) == len(kinds)), f"{kinds} need distinct kinds"
    assert component or len(kinds) < 2, f"{kinds} need kind: ClassVar[str] to be told apart"
    optional = NoneType in members
    return Slot(simple=simple, kinds=kinds, component=component, optional=optional, metadata=metadata)


def inner_slot(member: Any, metadata: Mapping[str, Any]) -> Slot:
    """What the elements of a ``tuple[X, ...]`` or the values of a ``dict[str, X]`` admit."""
    arguments = get_args(member)
    if is_list(member) and arguments[1:] == (Ellipsis,):
        return slot_of(arguments[0], metadata)
    if is_mapping(member) and arguments[:1] == (str,):
        return slot_of(arguments[1], metadata)
    raise TypeError(f"{member} is not supported: annotate settings with tuple[X, ...] or dict[str, X].")


def is_literal(member: Any) -> bool:
    """Whether an annotation is ``Literal[...]``."""
    return get_origin(member) is Literal


def is_list(member: Any) -> bool:
    """Whether an annotation is a tuple, which data writes as a list."""
    return get_origin(member) is tuple


def is_mapping(member: Any) -> bool:
    """Whether an annotation is a mapping with free keys."""
    return get_origin(member) in (dict, Mapping)


def is_value_class(thing: Any) -> bool:
    """Whether this is a dataclass itself, not an instance of one."""
    return isinstance(thing, type) and dataclasses.is_dataclass(thing)


def is_value(thing: Any) -> bool:
    """Whether this is an instance of a dataclass."""
    return not isinstance(thing, type) and dataclasses.is_dataclass(thing)


def kind_name(cls: type[Any]) -> str | None:
    """The ``kind: ClassVar[str]`` of a dataclass; an ordinary field called kind does not count."""
    name = getattr(cls, "kind", None)
    is_field = any(entry.name == "kind" for entry in dataclasses.fields(cls))
    return name if isinstance(name, str) and not is_field else None


def import_path(cls: type[Any]) -> str:
    """The kind of a user's own class: ``package.module:Name``."""
    return f"{cls.__module__}:{cls.__qualname__}"


def within_bounds(number: float, metadata: Mapping[str, Any]) -> bool:
    """Whether a number keeps the bounds of its field."""
    return all(test(number, metadata[name]) for name, (test, _, _) in _BOUNDS.items() if name in metadata)


def _bounds(metadata: Mapping[str, Any], language: Literal[1, 2]) -> dict[str, Any]:
    return {_BOUNDS[name][language]: metadata[name] for name in _BOUNDS if name in metadata}


def choices(slot: Slot) -> list[str]:
    """The words that may stand here: literals, kinds, and none where a component may be absent."""
    words = [option for member in slot.simple if is_literal(member) for option in get_args(member)]
    if slot.component:
        words += [kind_name(cls) for cls in slot.kinds]
        words += ["none"] if slot.optional and "none" not in words else []
    return [word for word in words if isinstance(word, str)]


def wanted(slot: Slot) -> str:
    """Says what may stand here, as the fix in a sentence: ``a number above 0 or one of auto, off``."""
    phrases = []
    for member in slot.simple:
        if is_literal(member):
            phrases.append("one of " + ", ".join(str(option) for option in get_args(member)))
        elif member in _SCALARS:
            bounds = _bounds(slot.metadata, 1) if member in (int, float) else {}
            limits = " and ".join(f"{words} {bound}" for words, bound in bounds.items())
            phrases.append(f"{_SCALARS[member][0]} {limits}".rstrip())
        else:
            phrases.append("a list" if is_list(member) else "a mapping")
    if slot.component:
        phrases.append("one of the kinds " + ", ".join(str(kind_name(cls)) for cls in slot.kinds))
    elif slot.kinds:
        phrases.append("a mapping with keys among " + ", ".join(key.name for key in keys_of(slot.kinds[0])))
    if slot.optional:
        phrases.append("none" if slot.component else "null")
    return " or ".join(phrases)


def plain(value: Any) -> Any:
    """Turns a value into JSON-ready data that ``build`` turns back into an equal value.

    Args:
        value: A dataclass instance, or anything one may hold.

    Returns:
        Dataclasses as dicts in field order, components with their ``kind`` first, tuples as lists; an
        infinite float becomes text ("inf"), which a float field reads back.

    Raises:
        TypeError: The value holds something that JSON cannot express.
    """
    return _plain(value, Slot())


def _plain(value: Any, slot: Slot) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if is_value(value):
        # Only the slot knows which classes have a short name there; any other goes by its import path.
        cls = type(value)
        name = import_path(cls) if slot.component and cls not in slot.kinds else kind_name(cls)
        data: dict[str, Any] = {} if name is None else {"kind": name}
        return data | {key.name: _plain(getattr(value, key.name), key.slot) for key in keys_of(cls)}
    if isinstance(value, (list, tuple)):
        inner = _inside(slot, is_list)
        return [_plain(element, inner) for element in value]
    if isinstance(value, Mapping):
        inner = _inside(slot, is_mapping)
        return {str(name): _plain(entry, inner) for name, entry in value.items()}
    raise TypeError(f"{value!r} has no JSON form: keep numbers, texts, lists and mappings in settings.")


def _inside(slot: Slot, fits: Callable[[Any], bool]) -> Slot:
    found = [inner_slot(member, slot.metadata) for member in slot.simple if fits(member)]
    return found[0] if found else Slot()


def schema(kind: type[Any]) -> dict[str, Any]:
    """Describes a dataclass as JSON Schema (draft 2020-12), for editors that check and complete YAML.

    Args:
        kind: The dataclass at the top level of the file.

    Returns:
        The schema, with defaults, bounds, and the ``help`` of every field as its description.
    """
    node = _object(kind, complete=True)
    name = kind_name(kind)
    if name is not None:
        node["properties"] = {"kind": {"const": name}} | node["properties"]
    return {"$schema": _DIALECT, "title": kind.__name__} | node


def _object(cls: type[Any], *, complete: bool) -> dict[str, Any]:
    """The object schema of one class; complete when no default above it can supply what is missing."""
    node: dict[str, Any] = {"type": "object"}
    summary = (cls.__doc__ or "").strip().partition("\n")[0]
    if summary and not summary.startswith(f"{cls.__name__}("):  # what @dataclass makes up says nothing
        node["description"] = summary
    node["properties"] = {key.name: _property(key) for key in keys_of(cls)}
    required = [key.name for key in keys_of(cls) if key.default is MISSING]
    if complete and required:
        node["required"] = required
    return node | {"additionalProperties": False}


def _property(key: Key) -> dict[str, Any]:
    node = _place(key.slot, key.default)
    if "help" in key.slot.metadata:
        node["description"] = key.slot.metadata["help"]
    if key.default is not MISSING:
        node["default"] = _plain(key.default, key.slot)
    return node


def _place(slot: Slot, default: Any = MISSING) -> dict[str, Any]:
    alternatives = [_simple(member, slot.metadata) for member in slot.simple]
    if slot.component:
        alternatives += _component(slot, default)
    else:
        alternatives += [_object(cls, complete=not is_value(default)) for cls in slot.kinds]
    if slot.optional:
        alternatives.append({"type": "null"})
    if len(alternatives) == 1:
        return alternatives[0]
    # A component's forms exclude each other; simple members may overlap, as int | float does.
    return {"oneOf" if slot.component and not slot.simple else "anyOf": alternatives}


def _simple(member: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    if member is Any:
        return {}
    if is_literal(member):
        return {"enum": list(get_args(member))}
    if is_list(member):
        return {"type": "array", "items": _place(inner_slot(member, metadata))}
    if is_mapping(member):
        return {"type": "object", "additionalProperties": _place(inner_slot(member, metadata))}
    return {"type": _SCALARS[member][1]} | (_bounds(metadata, 2) if member in (int, float) else {})


def _component(slot: Slot, default: Any) -> list[dict[str, Any]]:
    """The forms of a component: a bare kind, the mapping of a kind, a user's class, an update of the base."""
    needy = [cls for cls in slot.kinds if any(key.default is MISSING for key in keys_of(cls))]
    needs = [kind_name(cls) for cls in needy]
    bare = [word for word in choices(dataclasses.replace(slot, simple=())) if word not in needs]
    tagged = []
    for cls in slot.kinds:
        node = _object(cls, complete=type(default) is not cls)
        node["properties"] = {"kind": {"const": kind_name(cls)}} | node["properties"]
        tagged.append(node | {"required": ["kind", *node.get("required", [])]})
    updates: dict[str, list[dict[str, Any]]] = {}
    own = [type(default)] if is_value(default) and type(default) not in slot.kinds else []
    for key in (key for cls in [*slot.kinds, *own] for key in keys_of(cls)):
        updates.setdefault(key.name, []).append(_property(key))
    update = {name: nodes[0] if len(nodes) == 1 else {"anyOf": nodes} for name, nodes in updates.items()}
    return [
        *([{"enum": bare}] if bare else []),
        dict(_IMPORT_PATH),
        *tagged,
        {"type": "object", "properties": {"kind": dict(_IMPORT_PATH)}, "required": ["kind"]},
        {"type": "object", "properties": update, "additionalProperties": False},
    ]
