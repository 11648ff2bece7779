"""Settings as text, as plain data and as frozen dataclasses, strictly: what is not understood is an error.

``read_mapping`` and ``apply_overrides`` give plain data, ``build`` makes it a dataclass, ``plain`` and
``dump`` lead back. Every refusal is one sentence with the key, the value and the fix. Nothing here knows what
the settings are about; ``settings_schema.py`` holds the reading of annotations that all of this shares.
"""

import difflib
import importlib
import json
import math
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from fedgmr.settings_schema import (
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
    plain,
    schema,
    wanted,
    within_bounds,
)

__all__ = [
    "SettingError",
    "apply_overrides",
    "build",
    "dump",
    "imported",
    "plain",
    "read_mapping",
    "schema",
    "suggestion",
    "write_text_atomic",
]

T = TypeVar("T")

_MISMATCH = object()
# Where a bare word stands for a whole part of the settings, the key that it becomes; "kind" everywhere else.
_SHORT: Mapping[str, str] = MappingProxyType({"method": "name", "task": "name", "fleet": "name"})
_FLOW_WIDTH = 80


class SettingError(ValueError):
    """A setting that cannot be used, said in one sentence: its key, its value and the fix."""


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
        raise SettingError(f"{path or 'The top level'} is {_show(data)}: give {wish}.")
    keys = keys_of(kind)
    data = _without_own_kind(kind, data, path)
    _refuse_unknown(data, [key.name for key in keys], path)
    values = {}
    for key in keys:
        here = _join(path, key.name)
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
        raise SettingError(f"{path}: {_one_line(error)}" if path else _one_line(error)) from error


def _without_own_kind(kind: type[Any], data: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Drops the kind that ``plain`` wrote, once it is known to mean this very class."""
    name = kind_name(kind)
    if name is None or "kind" not in data:
        return data
    if data["kind"] not in (name, import_path(kind)):
        here = _join(path, "kind")
        raise SettingError(f"{here} is {_show(data['kind'])}: give {name}, the only kind here.")
    return {key: value for key, value in data.items() if key != "kind"}


def _refuse_unknown(data: Mapping[Any, Any], known: Sequence[str], path: str) -> None:
    for name in data:
        if name not in known:
            fix = suggestion(str(name), known, _join(path, ""))
            raise SettingError(f"{_join(path, name)} is not a known key: {fix}")


def suggestion(word: str, known: Sequence[str], prefix: str = "") -> str:
    """Ends a sentence about an unknown word.

    Args:
        word: What was given.
        known: What is known in its place.
        prefix: What comes before the word in its dotted path, with the dot.

    Returns:
        A question with the nearest known word, or all known words where none is near.
    """
    near = _nearest(word, known)
    if near is not None:
        return f"did you mean {prefix}{near}?"
    return f"choose one of {', '.join(known)}." if known else "remove it, nothing is known here."


def _nearest(word: str, known: Iterable[str]) -> str | None:
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


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
        cls = _class_of_kind(slot, value["kind"], _join(path, "kind"), base)
        fields = {key: entry for key, entry in value.items() if key != "kind"}
        if cls is None:
            if not fields:
                return None
            here = _join(path, next(iter(fields)))
            raise SettingError(f"{here} cannot be set because {path} is none: give {wanted(slot)}.")
        return build(cls, fields, path=path, base=base if type(base) is cls else None)
    if base is not None:
        return build(type(base), value, path=path, base=base)
    if len(slot.kinds) > 1:
        raise SettingError(f"{_join(path, 'kind')} is missing: give {wanted(slot)}.")
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
        raise SettingError(f"{path} is {_show(name)}: give a dataclass, without a field called kind.")
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
        reason = f"{type(error).__name__}: {_one_line(error)}"
        fix = "give package.module:Name of something importable"
        raise SettingError(f"{path} is {_show(name)}, which cannot be imported ({reason}): {fix}.") from error
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
        return {name: _convert(inner, entry, _join(path, name), None) for name, entry in value.items()}
    if is_list(member) and isinstance(value, Mapping) and isinstance(base, tuple):
        return _update_elements(inner, value, path, base)
    if not isinstance(value, (list, tuple)):
        return _MISMATCH
    return tuple(_convert(inner, entry, _join(path, index), None) for index, entry in enumerate(value))


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
        index = _index(str(name), len(base), path)
        elements[index] = _convert(slot, entry, _join(path, index), elements[index])
    return tuple(elements)


def _index(name: str, length: int, path: str) -> int:
    if name.isdecimal() and int(name) < length:
        return int(name)
    fix = f"use an index from 0 to {length - 1}" if length else "the list is empty, give it whole"
    raise SettingError(f"{_join(path, name)} is not an entry of the list {path}: {fix}.")


def _refusal(slot: Slot, value: Any, path: str) -> SettingError:
    near = _nearest(value, choices(slot)) if isinstance(value, str) else None
    hint = "" if near is None else f" (did you mean {near}?)"
    return SettingError(f"{path} is {_show(value)}: give {wanted(slot)}{hint}.")


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _show(value: Any) -> str:
    """A value as a recipe's author would write it, short enough for a sentence."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def read_mapping(path: Path) -> dict[str, Any]:
    """Reads a YAML or JSON file whose top level is a mapping.

    Args:
        path: The file; a name that ends in .json must hold JSON, any other may hold either.

    Returns:
        The mapping, as plain data.

    Raises:
        SettingError: The file cannot be read, has a syntax error or a key twice, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SettingError(f"{path} cannot be read ({reason}): give a YAML or JSON file.") from error
    try:
        data = _parse_json(text, str(path))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        if path.suffix == ".json":
            raise SettingError(f"{path}, {place} is not valid JSON: {error.msg}.") from error
        try:
            data = _parse_yaml(text, str(path))
        except ImportError:
            fix = "install pyyaml or use the JSON form"
            raise SettingError(f"{path} is not JSON ({place}) and YAML needs PyYAML: {fix}.") from error
    if not isinstance(data, dict):
        raise SettingError(f"{path} holds {_show(data)} at its top level: write a mapping of keys to values.")
    return data


def _parse_json(text: str, source: str) -> Any:
    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise SettingError(f"{source} has the key {_show(name)} twice: keep one of them.")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=refuse_twice)


def _parse_yaml(text: str, source: str) -> Any:
    import yaml  # optional: whoever writes JSON does without

    class Loader(yaml.SafeLoader):
        # Looked at before merge keys (<<) are expanded, where an own key may rightly repeat a merged one.
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                name = (key.tag, str(key.value))
                if name in seen and key.tag != "tag:yaml.org,2002:merge":
                    problem = f"the key {_show(key.value)} appears twice, keep one of them"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(name)
            return node

    _read_scalars_as_json(Loader)
    try:
        return yaml.load(text, Loader=Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or _one_line(error)
        raise SettingError(f"{source}{place} is not valid YAML: {problem}.") from error


def _read_scalars_as_json(dialect: Any) -> None:
    """Makes a YAML loader or dumper take 1e-3 for a number and a date for text, as JSON and YAML 1.2 do."""
    dialect.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if not tag.endswith(":timestamp")]
        for first, rules in dialect.yaml_implicit_resolvers.items()
    }
    exponent = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    dialect.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))


def dump(data: Any) -> str:
    """Writes plain data as YAML text, or as JSON (which is YAML too) where PyYAML is not installed.

    Args:
        data: Plain data; the keys keep their order.

    Returns:
        The text, in block style but for short lists of scalars, with a newline at its end.
    """
    try:
        import yaml
    except ImportError:
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def write_list(dumper: yaml.SafeDumper, entries: Iterable[Any]) -> yaml.Node:
        entries = list(entries)
        scalars = not any(isinstance(entry, (dict, list, tuple)) for entry in entries)
        flow = scalars and len(repr(entries)) <= _FLOW_WIDTH
        return dumper.represent_sequence("tag:yaml.org,2002:seq", entries, flow_style=flow)

    def write_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
        # PyYAML loses the rarer line breaks in every style but this one.
        style = '"' if re.search("[\n\x85\u2028\u2029]", text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, write_text)
    Dumper.add_representer(list, write_list)
    Dumper.add_representer(tuple, write_list)
    _read_scalars_as_json(Dumper)
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True)


def write_text_atomic(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old text or the new one, never half of it.

    Args:
        path: The file; its folder must exist.
        text: The whole text, written as UTF-8.
    """
    # Not from tempfile: its files are private to their owner, and os.replace would keep them so.
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with draft.open("w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def apply_overrides(
    data: Mapping[str, Any], items: Sequence[str], *, short: Mapping[str, str] = _SHORT
) -> dict[str, Any]:
    """Sets single values in plain data, each given as ``a.b.c=value``.

    Args:
        data: The data; it stays as it is.
        items: The overrides, in order. A value is YAML (JSON without PyYAML); a number in a path is an index.
        short: For the dotted path of a bare word, the key it becomes when a key below it is set; "kind" for
            every other path.

    Returns:
        New data with the values set and missing mappings created.

    Raises:
        SettingError: An item is malformed, or its path leads through something that holds no keys.
    """
    result = dict(data)
    for item in items:
        dotted, equals, text = item.partition("=")
        parts = [part.strip() for part in dotted.split(".")]
        if not equals or not all(parts):
            raise SettingError(f"Override {_show(item)} is malformed: write key=value or part.key=value.")
        result = _set(result, parts, _parse_value(text, item), "", short)
    return result


def _set(node: Any, parts: Sequence[str], value: Any, path: str, short: Mapping[str, str]) -> Any:
    if not parts:
        return value
    head, rest = parts[0], parts[1:]
    here = _join(path, head)
    if isinstance(node, (list, tuple)):
        index = _index(head, len(node), path)
        return [*node[:index], _set(node[index], rest, value, here, short), *node[index + 1 :]]
    if isinstance(node, str):
        node = {short.get(path, "kind"): node}
    if node is not None and not isinstance(node, Mapping):
        raise SettingError(f"{here} cannot be set because {path} is {_show(node)}: set {path} itself.")
    node = node or {}
    return {**node, head: _set(node.get(head), rest, value, here, short)}


def _parse_value(text: str, item: str) -> Any:
    source = f"Override {_show(item)}"
    try:
        return _parse_json(text, source)
    except json.JSONDecodeError as error:
        try:
            return _parse_yaml(text, source)
        except ImportError:
            if text.lstrip().startswith(("[", "{")):
                raise SettingError(f"{source} is not JSON: install pyyaml or use the JSON form.") from error
            return text.strip() or None
