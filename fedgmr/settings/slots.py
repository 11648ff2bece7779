"""The settings that a frozen dataclass admits, from its annotations and the metadata of its fields.

A ``Slot`` is the reading of one annotation. ``build.py`` turns data into values by it, and ``schema.py`` turns values
back into data and tells an editor what may stand where. All three share this reading, so they cannot disagree.
Metadata: ``help``; the bounds ``above``, ``at_least``, ``below``, ``at_most``; ``kinds``, the classes of a component.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

# Each scalar in the words of a sentence and of JSON Schema; each bound likewise, after its test.
SCALARS = {
    int: ("a whole number", "integer"),
    float: ("a number", "number"),
    bool: ("true or false", "boolean"),
    str: ("a text", "string"),
}
BOUNDS: dict[str, tuple[Callable[[float, float], bool], str, str]] = {
    "above": (operator.gt, "above", "exclusiveMinimum"),
    "at_least": (operator.ge, "of at least", "minimum"),
    "below": (operator.lt, "below", "exclusiveMaximum"),
    "at_most": (operator.le, "of at most", "maximum"),
}


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The values that one place in the data admits.

    Attributes:
        simple: the annotations that are no dataclass: scalars, literals, tuples, dicts, Any.
        kinds: the dataclasses that may stand here.
        component: whether the data chooses among the dataclasses by ``kind``.
        optional: whether None may stand here.
        metadata: the metadata of the field, which also holds for the elements of a tuple or dict.
        default: the value where the data has none; MISSING where the key is required.
    """

    simple: tuple[Any, ...] = (Any,)
    kinds: tuple[type[Any], ...] = ()
    component: bool = False
    optional: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    default: Any = field(default_factory=lambda: MISSING)  # MISSING itself would mean that there is no default

    @classmethod
    def read(cls, annotation: Any, metadata: Mapping[str, Any], default: Any = MISSING) -> "Slot":
        """Read one annotation."""
        members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        holds_others = any(get_origin(member) in (tuple, dict) for member in members)
        listed = () if holds_others else tuple(metadata.get("kinds", ()))
        kinds = listed or tuple(m for m in members if isinstance(m, type) and dataclasses.is_dataclass(m))
        simple = tuple(member for member in members if member is not NoneType and member not in kinds)
        if listed:  # any other annotation is then a protocol or a base class, there for the type checker only
            simple = tuple(member for member in simple if member in SCALARS or get_origin(member) is Literal)
        for member in simple:
            if member not in SCALARS and member is not Any and get_origin(member) not in (Literal, tuple, dict):
                raise TypeError(f"{member} is not supported: annotate with scalars, tuples or dataclasses.")
        names = {kind_of(kind) for kind in kinds}
        component = bool(listed) or names - {None} != set()
        assert not component or (None not in names and len(names) == len(kinds)), f"{kinds} need distinct kinds"
        assert component or len(kinds) < 2, f"{kinds} need kind: ClassVar[str] to be told apart"
        return cls(
            simple=simple,
            kinds=kinds,
            component=component,
            optional=NoneType in members,
            metadata=metadata,
            default=default,
        )

    def inside(self, member: Any) -> "Slot":
        """Return the slot of the elements of a ``tuple[X, ...]`` or of the values of a ``dict[str, X]``."""
        match get_origin(member), get_args(member):
            case (origin, (element, end)) if origin is tuple and end is Ellipsis:
                return Slot.read(element, self.metadata)
            case (origin, (name, entry)) if origin is dict and name is str:
                return Slot.read(entry, self.metadata)
        raise TypeError(f"{member} is not supported: annotate settings with tuple[X, ...] or dict[str, X].")

    def bounds(self, member: Any) -> dict[str, float]:
        """Return the bounds by name that hold for an annotation: numbers have them, others do not."""
        return {name: self.metadata[name] for name in BOUNDS if name in self.metadata and member in (int, float)}

    def choices(self) -> list[str]:
        """List the words that may stand here: literals, kinds, and none where a dataclass may be absent."""
        words = [option for member in self.simple if get_origin(member) is Literal for option in get_args(member)]
        if self.component:
            words += [kind_of(kind) for kind in self.kinds]
        words += ["none"] if self.kinds and self.optional and "none" not in words else []
        return [word for word in words if isinstance(word, str)]

    def wanted(self) -> str:
        """Say what may stand here, as the fix in a sentence: ``a number above 0 or one of auto, off``."""
        phrases = [self._phrase(member) for member in self.simple]
        if self.component:
            phrases.append("one of the kinds " + ", ".join(str(kind_of(kind)) for kind in self.kinds))
        elif self.kinds:
            phrases.append("a mapping with keys among " + ", ".join(keys_of(self.kinds[0])))
        if self.optional:
            phrases.append("none" if self.kinds else "null")
        return " or ".join(phrases)

    def _phrase(self, member: Any) -> str:
        if get_origin(member) is Literal:
            return "one of " + ", ".join(str(option) for option in get_args(member))
        if member in SCALARS:
            limits = [f"{BOUNDS[name][1]} {bound}" for name, bound in self.bounds(member).items()]
            return f"{SCALARS[member][0]} {' and '.join(limits)}".rstrip()
        return "a list" if get_origin(member) is tuple else "a mapping"


def keys_of(cls: type[Any]) -> dict[str, Slot]:
    """Read the keys of a dataclass in field order; default factories are called again."""
    hints = get_type_hints(cls)
    keys = {}
    for entry in dataclasses.fields(cls):
        if entry.init:
            default = entry.default if entry.default_factory is MISSING else entry.default_factory()
            keys[entry.name] = Slot.read(hints[entry.name], entry.metadata, default)
    return keys


def is_value(thing: Any) -> bool:
    """Tell whether this is an instance of a dataclass, not a dataclass itself."""
    return not isinstance(thing, type) and dataclasses.is_dataclass(thing)


def kind_of(cls: type[Any]) -> str | None:
    """Return the ``kind: ClassVar[str]`` of a dataclass; an ordinary field called kind does not count."""
    name = getattr(cls, "kind", None)
    is_field = any(entry.name == "kind" for entry in dataclasses.fields(cls))
    return name if isinstance(name, str) and not is_field else None
