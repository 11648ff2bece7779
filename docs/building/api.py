"""The reference of the Python interface, made by Sphinx's autodoc from docstrings: which names, in which order.

The names are those of `import fedgmr`, and whatever else the snippets of the documents import from the package.
"""

import ast
import dataclasses
import inspect
import re
from importlib import import_module
from typing import Any

import fedgmr
from building.tree import documents, text_of

_SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_reference() -> str:
    """Markdown with a directive for every name."""
    public = [f"fedgmr.{name}" for name in sorted(fedgmr.__all__, key=str.lower) if not name.startswith("_")]
    parts = ["## `import fedgmr`", *map(_directive, public)]
    parts += ["## Names in modules", "The documents use these too.", *map(_directive, _imported())]
    return "\n\n".join(parts)


def _imported() -> list[str]:
    """Functions and classes that snippets import from the package's modules."""
    blocks = [block for path in documents() for block in _SNIPPET.findall(text_of(path))]
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    names = {f"{n.module}.{a.name}" for n in nodes for a in n.names if (n.module or "").startswith("fedgmr.")}
    return sorted(name for name in names if callable(_thing(name)))


def _directive(path: str) -> str:
    module, _, name = path.rpartition(".")
    thing = _thing(path)
    kind = "class" if inspect.isclass(thing) else "module" if inspect.ismodule(thing) else "function"
    if inspect.isclass(thing) and issubclass(thing, Exception):
        kind = "exception"
    members = "" if kind == "function" else "   :members:\n"
    if dataclasses.is_dataclass(thing):  # fields stand in the signature; a default is not a member
        members += f"   :exclude-members: {', '.join(entry.name for entry in dataclasses.fields(thing))}\n"
    heading = f"### `{name}`" if module == "fedgmr" else f"### `{path}`"
    return f"{heading}\n\n```{{eval-rst}}\n.. auto{kind}:: {thing.__name__ if kind == 'module' else path}\n{members}```"


def _thing(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def plain_backticks(*event: object) -> None:
    """Let autodoc read docstrings as they are written: code stands in single backticks."""
    lines = event[-1]
    assert isinstance(lines, list)
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line) for line in lines]
