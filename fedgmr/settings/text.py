"""Settings as text: YAML or JSON files, and overrides such as ``training.steps=10``, to plain data and back.

Both formats are read alike and strictly: no key twice, 1e-3 is a number, a date is text. Read next: ``build.py``,
which turns the data into dataclasses.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fedgmr.settings.refusals import Place, SettingError, say_in_one_line, show_value

_FLOW_WIDTH = 80
_LONGEST = 1 << 20  # characters of a text; our own recipes have a few thousand
_MOST_NODES = 100_000  # entries of a text whose aliases are written out: a few of them can stand for billions


class _Loader(yaml.SafeLoader):
    # Before merge keys (<<) are expanded: after that a mapping's own key may rightly repeat a merged one.
    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in seen and key.tag != "tag:yaml.org,2002:merge":
                problem = f"the key {show_value(key.value)} appears twice, keep one of them"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(name)
        return node

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        sizes: dict[int, float] = {}
        if node is not None and _written_out(node, sizes) > _MOST_NODES:
            problem = f"with its aliases written out it has more than {_MOST_NODES:,} entries, give fewer"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return node


def _written_out(node: yaml.Node, sizes: dict[int, float]) -> float:
    """The number of entries below a node with its aliases written out; infinite where it contains itself."""
    if id(node) not in sizes:
        sizes[id(node)] = math.inf  # until it is known
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        below = [part for entry in parts for part in (entry if isinstance(entry, tuple) else (entry,))]
        sizes[id(node)] = 1 + sum(_written_out(part, sizes) for part in below)
    return sizes[id(node)]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def write_list(self, entries: Iterable[Any]) -> yaml.Node:
        entries = list(entries)
        scalars = not any(isinstance(entry, (dict, list, tuple)) for entry in entries)
        flow = scalars and len(repr(entries)) <= _FLOW_WIDTH
        return self.represent_sequence("tag:yaml.org,2002:seq", entries, flow_style=flow)

    def write_text(self, text: str) -> yaml.Node:
        # PyYAML loses the rarer line breaks in every style but this one.
        style = '"' if re.search("[\n\x85\u2028\u2029]", text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.write_text)
_Dumper.add_representer(list, _Dumper.write_list)
_Dumper.add_representer(tuple, _Dumper.write_list)
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
for _dialect in (_Loader, _Dumper):  # take 1e-3 for a number and a date for text, as JSON and YAML 1.2 do
    _dialect.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if not tag.endswith(":timestamp")]
        for first, rules in _dialect.yaml_implicit_resolvers.items()
    }
    _dialect.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file whose top level is a mapping.

    Raises:
        SettingError: the file cannot be read, has a syntax error or a key twice, or holds no mapping.
    """
    try:
        if path.stat().st_size > 4 * _LONGEST:  # bytes, at most four for a character
            raise SettingError(f"{path} has {path.stat().st_size:,} bytes: settings have at most {_LONGEST:,}.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SettingError(f"{path} cannot be read ({reason}): give a YAML or JSON file.") from error
    data = _parse(text, str(path))
    if not isinstance(data, dict):
        raise SettingError(f"{path} holds {show_value(data)} at its top level: write a mapping of keys to values.")
    return data


def _parse(text: str, source: str) -> Any:
    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in Counter(name for name, _ in pairs).items():
            if count > 1:
                raise SettingError(f"{source} has the key {show_value(name)} twice: keep one of them.")
        return dict(pairs)

    if len(text) > _LONGEST:
        raise SettingError(f"{source} has {len(text):,} characters: settings have at most {_LONGEST:,}.")
    try:
        with suppress(json.JSONDecodeError):  # PyYAML refuses tabs in JSON and tears its pairs of \u escapes apart
            return json.loads(text, object_pairs_hook=refuse_twice)
        return yaml.load(text, Loader=_Loader)
    except SettingError:
        raise
    except RecursionError:
        raise SettingError(f"{source} is nested too deep: settings have a few levels.") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or say_in_one_line(error)
        raise SettingError(f"{source}{place} is not valid YAML: {problem}.") from error


def dump(data: Any) -> str:
    """Write plain data as YAML text.

    Keys keep their order. The text is in block style except for short lists of scalars, and ends with a newline.
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True)


def by_dotted_key(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested data by dotted keys."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        found |= by_dotted_key(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def apply_overrides(data: Mapping[str, Any], items: Sequence[str], *, named: Collection[str] = ()) -> dict[str, Any]:
    """Set single values in plain data, each given as ``a.b.c=value``.

    Args:
        data: the data, which stays as it is.
        items: the overrides, in order. A value is YAML; a number in a path is an index.
        named: the paths where a bare word is short for a mapping with a ``name``; it is short for a ``kind`` elsewhere.

    Returns:
        New data with the values set and missing mappings created.

    Raises:
        SettingError: an item is malformed, or its path leads through something that holds no keys.
    """
    result = dict(data)
    for item in items:
        dotted, equals, text = item.partition("=")
        parts = [part.strip() for part in dotted.split(".")]
        if not equals or not all(parts):
            raise SettingError(f"Override {show_value(item)} is malformed: write key=value or part.key=value.")
        result = _set(result, parts, _parse(text, f"Override {show_value(item)}"), Place(), named)
    return result


def _set(node: Any, parts: Sequence[str], value: Any, here: Place, named: Collection[str]) -> Any:
    if not parts:
        return value
    head, rest = parts[0], parts[1:]
    if isinstance(node, (list, tuple)):
        index = here.index_below(head, len(node))
        return [*node[:index], _set(node[index], rest, value, here.below(head), named), *node[index + 1 :]]
    if isinstance(node, str):
        node = {"name" if here in named else "kind": node}
    if node is not None and not isinstance(node, Mapping):
        raise SettingError(f"{here.below(head)} cannot be set because {here} is {show_value(node)}: set {here} itself.")
    node = node or {}
    return {**node, head: _set(node.get(head), rest, value, here.below(head), named)}
