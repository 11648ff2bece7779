"""Settings from plain data to frozen dataclasses, strictly: whatever is not understood is an error.

Every refusal is one sentence with the key, the value and the fix. The data comes from files by ``text.py``; ``plain``
in ``schema.py`` leads back. Nothing here knows what the settings are about. Read next: ``slots.py``.
"""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from fedgmr.settings.refusals import Place, SettingError, say_in_one_line, show_value, suggestion
from fedgmr.settings.slots import BOUNDS, Slot, is_value, keys_of, kind_of
from fedgmr.settings.trust import check_trusted

T = TypeVar("T")

_MISMATCH = object()


def build(kind: type[T], data: Mapping[str, Any] | T, *, path: str = "", base: T | None = None) -> T:
    """Make a dataclass from plain data.

    Args:
        kind: the dataclass to make, frozen and keyword-only.
        data: a mapping of its keys, or an instance, whose fields are checked as those of a mapping.
        path: the dotted path of this data in the whole settings, for messages.
        base: an instance whose values stand in for the keys that data leaves out, at every depth.

    Raises:
        SettingError: a key is unknown or missing, or a value does not fit.
    """
    here = Place(path)
    if isinstance(data, kind):
        return _checked(data, here)
    if not isinstance(data, Mapping):
        raise here.refusal(data, Slot(simple=(), kinds=(kind,)).wanted())
    keys = keys_of(kind)
    for name in data:
        if name not in keys:
            fix = suggestion(str(name), list(keys), here.below(""))
            raise SettingError(f"{here.below(name)} is not a known key: {fix}")
    values = {}
    for name, slot in keys.items():
        fallback = slot.default if base is None else getattr(base, name)
        if name in data:
            values[name] = _convert(slot, data[name], here.below(name), fallback)
        elif fallback is not MISSING:
            values[name] = fallback
        else:
            raise SettingError(f"{here.below(name)} is missing: give {slot.wanted()}.")
    try:
        return kind(**values)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(f"{path}: {say_in_one_line(error)}" if path else say_in_one_line(error)) from error


def settle(value: Any) -> None:
    """Check the fields of a new dataclass instance, and give them the form that plain data gets; for `__post_init__`.

    Raises:
        SettingError: a value does not fit; the sentence begins with the name of its field.
    """
    for name, fitted in _fitted(value, Place()).items():
        object.__setattr__(value, name, fitted)


def _checked(value: T, here: Place) -> T:
    """An instance that was made in Python, as plain data would have made it."""
    changed = _fitted(value, here)
    try:
        return replace(value, **changed) if changed else value  # type: ignore[type-var]
    except ValueError as error:
        raise SettingError(f"{here}: {say_in_one_line(error)}" if here else say_in_one_line(error)) from error


def _fitted(value: Any, here: Place) -> dict[str, Any]:
    """The fields of an instance that plain data would give another form."""
    keys = _keys_of(type(value))  # type: ignore[arg-type] # a class can be hashed
    fields = {name: (slot, getattr(value, name)) for name, slot in keys if getattr(value, name) is not slot.default}
    fitted = {
        name: given if slot.component and _own_object(given) else _convert(slot, given, here.below(name), None)
        for name, (slot, given) in fields.items()
    }
    return {name: entry for name, entry in fitted.items() if not _same(entry, fields[name][1])}


def _own_object(given: Any) -> bool:
    """Whether this may be a component that is no dataclass, which no file can hold but Python can use."""
    return not (is_value(given) or isinstance(given, (type, str, Real, Mapping, Sequence, NoneType)))


def _same(fitted: Any, given: Any) -> bool:
    """Whether a value is what plain data gives; 3 is as good as 3.0, a number of NumPy's is not."""
    if isinstance(fitted, tuple) and isinstance(given, tuple):
        return len(fitted) == len(given) and all(map(_same, fitted, given))
    return fitted is given or (type(given) in (int, float, str, dict, list) and fitted == given)


@cache
def _keys_of(cls: type[Any]) -> tuple[tuple[str, Slot], ...]:
    try:
        return tuple(keys_of(cls).items())
    except (TypeError, NameError):  # a user's own component may have fields that no file can hold
        return ()


def imported(name: str, path: str) -> Any:
    """Import the object ``package.module:Name`` that a user named under the key ``path``.

    Raises:
        SettingError: the module cannot be imported or has no such name, or settings of others name it and nobody trusts
            it.
    """
    check_trusted(name, path)
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


def _convert(slot: Slot, value: Any, here: Place, base: Any) -> Any:
    if slot.optional and (value is None or (slot.kinds and value == "none")):
        return None
    if slot.kinds:
        names_kind = isinstance(value, str) and slot.component and (value in slot.choices() or ":" in value)
        if names_kind or isinstance(value, Mapping) or is_value(value):
            return _convert_dataclass(slot, value, here, base if is_value(base) else None)
    # int | float must keep 3 whole and 3.0 a float, so the member of the very same type comes first.
    for member in sorted(slot.simple, key=lambda member: type(value) is not member):
        converted = _convert_simple(slot, member, value, here, base)
        if converted is not _MISMATCH:
            return converted
    raise here.refusal(value, slot.wanted(), slot.choices())


def _convert_dataclass(slot: Slot, value: Any, here: Place, base: Any) -> Any:
    if is_value(value):
        # A component admits a user's class by import path, hence also an instance of one.
        if slot.component or isinstance(value, slot.kinds):
            return _checked(value, here)
        raise here.refusal(value, slot.wanted())
    if isinstance(value, str):
        return build(_class_of_kind(slot, value, here, base), {}, path=here)
    if slot.component and "kind" in value:
        fields = {key: entry for key, entry in value.items() if key != "kind"}
        if slot.optional and value["kind"] in (None, "none"):
            for name in fields:
                raise SettingError(f"{here.below(name)} cannot be set because {here} is none: give {slot.wanted()}.")
            return None
        cls = _class_of_kind(slot, value["kind"], here.below("kind"), base)
        return build(cls, fields, path=here, base=base if type(base) is cls else None)
    if base is not None:
        return build(type(base), value, path=here, base=base)
    if len(slot.kinds) > 1:
        raise SettingError(f"{here.below('kind')} is missing: give {slot.wanted()}.")
    return build(slot.kinds[0], value, path=here)


def _class_of_kind(slot: Slot, name: Any, here: Place, base: Any) -> type[Any]:
    """Find the class that a kind names."""
    for cls in (*slot.kinds, *([] if base is None else [type(base)])):
        if name == kind_of(cls) and name is not None:
            return cls
    if not isinstance(name, str) or ":" not in name:
        raise here.refusal(name, slot.wanted(), slot.choices())
    found = imported(name, here)
    if not (isinstance(found, type) and is_dataclass(found)) or "kind" in keys_of(found):
        raise here.refusal(name, "a dataclass, without a field called kind")
    return found


def _convert_simple(slot: Slot, member: Any, value: Any, here: Place, base: Any) -> Any:
    if member is Any:
        return _free(value, here)
    if member in (int, float):
        return _convert_number(slot, member, value)
    if member in (bool, str):
        return value if isinstance(value, member) else _MISMATCH
    if get_origin(member) is Literal:
        # True == 1, so a literal has to match in type as well.
        fits = [option for option in get_args(member) if type(option) is type(value) and option == value]
        return fits[0] if fits else _MISMATCH
    inner = slot.inside(member)
    if get_origin(member) is dict:
        if not isinstance(value, Mapping):
            return _MISMATCH
        here.check_names(value)
        return {name: _convert(inner, entry, here.below(name), None) for name, entry in value.items()}
    if isinstance(value, Mapping) and isinstance(base, tuple):
        return _update_elements(inner, value, here, base)
    if not isinstance(value, (list, tuple)):
        return _MISMATCH
    return tuple(_convert(inner, entry, here.below(index), None) for index, entry in enumerate(value))


def _free(value: Any, here: Place) -> Any:
    """A value that no annotation describes: refused where a file would give another one when it is read again."""
    if isinstance(value, Mapping):
        here.check_names(value)
        return {name: _free(entry, here.below(name)) for name, entry in value.items()}
    if isinstance(value, list):
        return [_free(entry, here.below(index)) for index, entry in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise here.refusal(value, "a finite number, or a text")
    return value


def _convert_number(slot: Slot, member: type[Any], value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (Real, str)):
        return _MISMATCH
    if not isinstance(value, (int, float, str)):  # NumPy's numbers
        value = int(value) if isinstance(value, Integral) else float(value)
    try:
        if isinstance(value, str):  # YAML 1.1 reads 1e-3 and 1e6 as text; other text is no whole number
            value = float(value) if member is float or "e" in value.lower() else math.nan
        if member is int and isinstance(value, float):
            value = int(value) if value.is_integer() else math.nan
        number = member(value)
    except (ValueError, OverflowError):  # not a number; NaN or too large for the type
        return _MISMATCH
    kept = all(BOUNDS[name][0](number, bound) for name, bound in slot.bounds(member).items())
    return number if number == number and kept else _MISMATCH


def _update_elements(slot: Slot, value: Mapping[Any, Any], here: Place, base: Sequence[Any]) -> tuple[Any, ...]:
    """Let ``links.0.up=3`` reach one element of a list that only the base holds."""
    elements = list(base)
    for name, entry in value.items():
        index = here.index_below(str(name), len(base))
        elements[index] = _convert(slot, entry, here.below(index), elements[index])
    return tuple(elements)
