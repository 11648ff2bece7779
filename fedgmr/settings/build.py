"""Settings from plain data to frozen dataclasses, strictly: what is not understood is an error.

``build`` makes plain data a dataclass; ``plain`` (in ``settings_schema.py``, with the reading of annotations) leads
back. The data comes from and goes to files by ``settings_text.py``. Every refusal is one sentence with the key, the
value and the fix, in the words of ``settings_refusals.py``. Nothing here knows what the settings are about.
"""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Any, TypeVar, get_args

from fedgmr.settings.refusals import (
    SettingError,
    join_path,
    list_index,
    nearest_word,
    say_in_one_line,
    show_value,
    suggestion,
)
from fedgmr.settings.schema import (
    Slot,
    choices,
    import_path,
    inner_slot,
    is_list,
    is_literal,
    is_mapping,
    is_value,
    is_value_class,
    keys_of,
    kind_name,
    wanted,
    within_bounds,
)

T = TypeVar("T")

_MISMATCH = object()


def build(kind: type[T], data: Mapping[str, Any] | T, *, path: str = "", base: T | None = None) -> T:
    """Makes a dataclass from plain data.

    Args:
        kind: The dataclass to make, frozen and keyword-only.
        data: A mapping of its keys, or an instance, which is taken as it is.
        path: The dotted path of this data in the whole settings, for messages.
        base: An instance whose values stand in for the keys that data leaves out, at every depth.

    Returns:
        The instance.

    Raises:
        SettingError: A key is unknown or missing, or a value does not fit.
    """
    if isinstance(data, kind):
        return data
    if not isinstance(data, Mapping):
        wish = wanted(Slot(simple=(), kinds=(kind,)))
        raise SettingError(f"{path or 'The top level'} is {show_value(data)}: give {wish}.")
    keys = keys_of(kind)
    data = _without_own_kind(kind, data, path)
    _refuse_unknown(data, [key.name for key in keys], path)
    values = {}
    for key in keys:
        here = join_path(path, key.name)
        fallback = key.default if base is None else getattr(base, key.name)
        if key.name in data:
            values[key.name] = _convert(key.slot, data[key.name], here, fallback)
        elif fallback is not MISSING:
            values[key.name] = fallback
        else:
            raise SettingError(f"{here} is missing: give {wanted(key.slot)}.")
    try:
        return kind(**values)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(f"{path}: {say_in_one_line(error)}" if path else say_in_one_line(error)) from error


def _without_own_kind(kind: type[Any], data: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Drops the kind that ``plain`` wrote, once it is known to mean this very class."""
    name = kind_name(kind)
    if name is None or "kind" not in data:
        return data
    if data["kind"] not in (name, import_path(kind)):
        here = join_path(path, "kind")
        raise SettingError(f"{here} is {show_value(data['kind'])}: give {name}, the only kind here.")
    return {key: value for key, value in data.items() if key != "kind"}


def _refuse_unknown(data: Mapping[Any, Any], known: Sequence[str], path: str) -> None:
    for name in data:
        if name not in known:
            fix = suggestion(str(name), known, join_path(path, ""))
            raise SettingError(f"{join_path(path, name)} is not a known key: {fix}")


def _convert(slot: Slot, value: Any, path: str, base: Any) -> Any:
    if value is None and slot.optional:
        return None
    if slot.kinds:
        names_kind = isinstance(value, str) and slot.component and (value in choices(slot) or ":" in value)
        if names_kind or isinstance(value, Mapping) or is_value(value):
            return _convert_dataclass(slot, value, path, base if is_value(base) else None)
    # int | float must keep 3 whole and 3.0 a float, so the member of the very same type comes first.
    for member in sorted(slot.simple, key=lambda member: type(value) is not member):
        converted = _convert_simple(member, value, slot.metadata, path, base)
        if converted is not _MISMATCH:
            return converted
    raise _refusal(slot, value, path)


def _convert_dataclass(slot: Slot, value: Any, path: str, base: Any) -> Any:
    if is_value(value):
        # A component admits a user's class by import path, hence also an instance of one.
        if slot.component or isinstance(value, slot.kinds):
            return value
        raise _refusal(slot, value, path)
    if isinstance(value, str):
        cls = _class_of_kind(slot, value, path, base)
        return None if cls is None else build(cls, {}, path=path)
    if slot.component and "kind" in value:
        cls = _class_of_kind(slot, value["kind"], join_path(path, "kind"), base)
        fields = {key: entry for key, entry in value.items() if key != "kind"}
        if cls is None:
            if not fields:
                return None
            here = join_path(path, next(iter(fields)))
            raise SettingError(f"{here} cannot be set because {path} is none: give {wanted(slot)}.")
        return build(cls, fields, path=path, base=base if type(base) is cls else None)
    if base is not None:
        return build(type(base), value, path=path, base=base)
    if len(slot.kinds) > 1:
        raise SettingError(f"{join_path(path, 'kind')} is missing: give {wanted(slot)}.")
    return build(slot.kinds[0], value, path=path)


def _class_of_kind(slot: Slot, name: Any, path: str, base: Any) -> type[Any] | None:
    """The class that a kind names, or None where the component is switched off."""
    for cls in (*slot.kinds, *([] if base is None else [type(base)])):
        if name == kind_name(cls) and name is not None:
            return cls
    if slot.optional and name in (None, "none"):
        return None
    if not isinstance(name, str) or ":" not in name:
        raise _refusal(slot, name, path)
    found = imported(name, path)
    if not is_value_class(found) or any(key.name == "kind" for key in keys_of(found)):
        raise SettingError(f"{path} is {show_value(name)}: give a dataclass, without a field called kind.")
    return found  # type: ignore[no-any-return]


def imported(name: str, path: str) -> Any:
    """Imports what a user named in the settings.

    Args:
        name: An import path, ``package.module:Name``.
        path: The dotted path of the key that holds it, for messages.

    Returns:
        The object of that name.

    Raises:
        SettingError: The module cannot be imported or has no such name.
    """
    module, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except Exception as error:  # a user's module may fail in any way while it is imported
        reason = f"{type(error).__name__}: {say_in_one_line(error)}"
        fix = "give package.module:Name of something importable"
        raise SettingError(f"{path} is {show_value(name)}, which cannot be imported ({reason}): {fix}.") from error
    return found


def _convert_simple(member: Any, value: Any, metadata: Mapping[str, Any], path: str, base: Any) -> Any:
    if member is Any:
        return value
    if member in (int, float):
        return _convert_number(member, value, metadata)
    if member in (bool, str):
        return value if isinstance(value, member) else _MISMATCH
    if is_literal(member):
        # True == 1, so a literal has to match in type as well.
        fits = [option for option in get_args(member) if type(option) is type(value) and option == value]
        return fits[0] if fits else _MISMATCH
    inner = inner_slot(member, metadata)
    if is_mapping(member):
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            return _MISMATCH
        return {name: _convert(inner, entry, join_path(path, name), None) for name, entry in value.items()}
    if is_list(member) and isinstance(value, Mapping) and isinstance(base, tuple):
        return _update_elements(inner, value, path, base)
    if not isinstance(value, (list, tuple)):
        return _MISMATCH
    return tuple(_convert(inner, entry, join_path(path, index), None) for index, entry in enumerate(value))


def _convert_number(member: type[Any], value: Any, metadata: Mapping[str, Any]) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return _MISMATCH
    try:
        if isinstance(value, str):  # YAML 1.1 reads 1e-3 and 1e6 as text; other text is no whole number
            value = float(value) if member is float or "e" in value.lower() else math.nan
        if member is int and isinstance(value, float):
            value = int(value) if value.is_integer() else math.nan
        number = member(value)
    except (ValueError, OverflowError):  # not a number; NaN or too large for the type
        return _MISMATCH
    return number if number == number and within_bounds(number, metadata) else _MISMATCH


def _update_elements(slot: Slot, value: Mapping[Any, Any], path: str, base: Sequence[Any]) -> tuple[Any, ...]:
    """Lets ``links.0.up=3`` reach one element of a list that only the base holds."""
    elements = list(base)
    for name, entry in value.items():
        index = list_index(str(name), len(base), path)
        elements[index] = _convert(slot, entry, join_path(path, index), elements[index])
    return tuple(elements)


def _refusal(slot: Slot, value: Any, path: str) -> SettingError:
    near = nearest_word(value, choices(slot)) if isinstance(value, str) else None
    hint = "" if near is None else f" (did you mean {near}?)"
    return SettingError(f"{path} is {show_value(value)}: give {wanted(slot)}{hint}.")
