"""Settings back to plain data, and the JSON schema of a dataclass, which tells an editor what may stand where.

Both go by the reading of annotations in ``slots.py``. ``build`` in ``build.py`` reads the plain data again.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, Literal, get_args, get_origin

from fedgmr.settings.slots import BOUNDS, SCALARS, Slot, is_value, keys_of, kind_of

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_IMPORT_PATH = {"type": "string", "pattern": "^[^:]+:[^:]+$"}
_ANYTHING = Slot()
_ENTRIES = 6  # of a list in a brief text
_LINK = re.compile(r"\[(.+?)\]\(.+?\)")  # a help is Markdown for docs/recipes.md; an editor shows the words


def plain(value: Any, slot: Slot = _ANYTHING, *, defaults: bool = True) -> Any:
    """Turn a value that stands in a slot into JSON-ready data that ``build`` turns back into an equal value.

    Args:
        value: what to turn into data.
        slot: where it stands.
        defaults: False leaves out every field that has the default of its dataclass.

    Returns:
        Dataclasses as dicts in field order, components with their ``kind`` first, tuples as lists; an infinite float
        becomes text ("inf"), which a float field reads back.

    Raises:
        TypeError: the value holds something that JSON cannot express.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if is_value(value):
        # Only the slot knows which classes have a short name there; any other goes by its import path.
        cls = type(value)
        own = slot.component and cls not in slot.kinds
        name = f"{cls.__module__}:{cls.__qualname__}" if own else kind_of(cls)
        data: dict[str, Any] = {} if name is None else {"kind": name}
        for key, place in keys_of(cls).items():
            entry = getattr(value, key)
            if defaults or entry != place.default:
                data[key] = plain(entry, place, defaults=defaults)
        return data
    if isinstance(value, (list, tuple)):
        inner = _inside(slot, tuple)
        return [plain(element, inner, defaults=defaults) for element in value]
    if isinstance(value, Mapping):
        inner = _inside(slot, dict)
        return {str(name): plain(entry, inner, defaults=defaults) for name, entry in value.items()}
    raise TypeError(f"{value!r} has no JSON form: keep numbers, texts, lists and mappings in settings.")


def brief(value: Any) -> str:
    """Write settings as Python would, without the fields that have their default; of a long list, its first entries."""
    if isinstance(value, tuple) and len(value) > _ENTRIES:
        return f"({', '.join(map(brief, value[:_ENTRIES]))}, ... {len(value)} in all)"
    if not is_value(value):
        return repr(value)
    places = {key: place for key, place in keys_of(type(value)).items() if getattr(value, key) != place.default}
    return f"{type(value).__name__}({', '.join(f'{key}={brief(getattr(value, key))}' for key in places)})"


def _inside(slot: Slot, origin: type[Any]) -> Slot:
    return next((slot.inside(member) for member in slot.simple if get_origin(member) is origin), _ANYTHING)


def schema(kind: type[Any]) -> dict[str, Any]:
    """Describe a dataclass as JSON Schema (draft 2020-12), for editors that check and complete YAML.

    The schema has defaults, bounds, and the ``help`` of every field as its description.
    """
    return {"$schema": _DIALECT, "title": kind.__name__} | _object(kind, complete=True)


def _object(cls: type[Any], *, complete: bool, kind: str | None = None) -> dict[str, Any]:
    """Describe one class; complete where no default above it can supply what is missing."""
    node: dict[str, Any] = {"type": "object"}
    summary = (cls.__doc__ or "").strip().partition("\n")[0]
    if summary and not summary.startswith(f"{cls.__name__}("):  # what @dataclass makes up says nothing
        node["description"] = summary
    keys = keys_of(cls)
    own = {} if kind is None else {"kind": {"const": kind}}
    node["properties"] = own | {key: _property(slot) for key, slot in keys.items()}
    required = [key for key, slot in keys.items() if slot.default is MISSING]
    if complete and required:
        node["required"] = required
    return node | {"additionalProperties": False}


def _property(slot: Slot) -> dict[str, Any]:
    node = _place(slot)
    if "help" in slot.metadata:
        node["description"] = _LINK.sub(r"\1", slot.metadata["help"])
    if slot.default is not MISSING:
        node["default"] = plain(slot.default, slot)
    return node


def _place(slot: Slot) -> dict[str, Any]:
    alternatives = [_simple(slot, member) for member in slot.simple]
    if slot.component:
        alternatives += _component(slot)
    else:
        alternatives += [_object(cls, complete=not is_value(slot.default)) for cls in slot.kinds]
    if slot.optional:
        alternatives.append({"enum": [None, "none"]} if slot.kinds and not slot.component else {"type": "null"})
    if len(alternatives) == 1:
        return alternatives[0]
    # A component's forms exclude each other; simple members may overlap, as int | float does.
    return {"oneOf" if slot.component and not slot.simple else "anyOf": alternatives}


def _simple(slot: Slot, member: Any) -> dict[str, Any]:
    if member is Any:
        return {}
    if get_origin(member) is Literal:
        return {"enum": list(get_args(member))}
    if get_origin(member) is tuple:
        return {"type": "array", "items": _place(slot.inside(member))}
    if get_origin(member) is dict:
        return {"type": "object", "additionalProperties": _place(slot.inside(member))}
    return {"type": SCALARS[member][1]} | {BOUNDS[name][2]: bound for name, bound in slot.bounds(member).items()}


def _component(slot: Slot) -> list[dict[str, Any]]:
    """List the forms of a component: a bare kind, the mapping of a kind, a user's class, an update of the base."""
    needy = {kind_of(cls) for cls in slot.kinds if any(inner.default is MISSING for inner in keys_of(cls).values())}
    bare = [word for word in dataclasses.replace(slot, simple=()).choices() if word not in needy]
    tagged = []
    for cls in slot.kinds:
        node = _object(cls, complete=type(slot.default) is not cls, kind=kind_of(cls))
        tagged.append(node | {"required": ["kind", *node.get("required", [])]})
    updates: dict[str, list[dict[str, Any]]] = {}
    own = {type(slot.default)} - set(slot.kinds) if is_value(slot.default) else set()
    for cls in (*slot.kinds, *own):
        for key, inner in keys_of(cls).items():
            updates.setdefault(key, []).append(_property(inner))
    update = {name: nodes[0] if len(nodes) == 1 else {"anyOf": nodes} for name, nodes in updates.items()}
    return [
        *([{"enum": bare}] if bare else []),
        dict(_IMPORT_PATH),
        *tagged,
        {"type": "object", "properties": {"kind": dict(_IMPORT_PATH)}, "required": ["kind"]},
        {"type": "object", "properties": update, "additionalProperties": False},
    ]
