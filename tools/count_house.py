"""Count what there is to know in a package: files, lines, long functions, names, class hierarchies, package cycles.

`python tools/count_house.py [PACKAGE]` prints a table of the totals and one of the rooms, the packages and files at the
top level; PACKAGE is a directory, `fedgmr` by default. It only prints, and only reads the source: nothing is imported.
A name is a function or a class at the top level of a file.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

Name = tuple[str, str]  # (module, name)


@dataclass(frozen=True, kw_only=True, eq=False)
class Module:
    """One file of the package."""

    name: str  # package.folder.file
    room: str  # its package or file at the top level; empty for the package's own __init__
    lines: int
    tree: ast.Module

    @cached_property
    def names(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
        """The functions and classes at the top level."""
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        return [node for node in self.tree.body if isinstance(node, kinds)]

    @property
    def public(self) -> int:
        """How many names begin without an underscore."""
        return sum(not node.name.startswith("_") for node in self.names)

    @property
    def functions(self) -> Iterator[int]:
        """The length in lines of every function and method, decorators left out."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (node.end_lineno or node.lineno) - node.lineno + 1

    @cached_property
    def imports(self) -> dict[str, Name]:
        """By the name it has here: the module and the name that an import brings, the name empty for a module."""
        found: dict[str, Name] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}
        return found


def read_package(root: Path) -> dict[str, Module]:
    """The modules of the package in a directory, by name."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        text = path.read_text()
        name = ".".join([root.name, *parts]).removesuffix(".__init__")
        room = "" if parts == ("__init__",) else parts[0]
        modules[name] = Module(name=name, room=room, lines=text.count("\n"), tree=ast.parse(text))
    return modules


def private_imports(modules: Mapping[str, Module]) -> list[str]:
    """Where a module takes a private name from another module of the package."""
    found = []
    for module in modules.values():
        taken = [(source, name) for source, name in module.imports.values() if source in modules]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                taken.append((_module_called(node.value.id, module, modules), node.attr))
        private = {(source, name) for source, name in taken if source and name.startswith("_") and name[:2] != "__"}
        found += [f"{module.name} takes {source}.{name}" for source, name in sorted(private)]
    return found


def deepest_hierarchy(modules: Mapping[str, Module]) -> list[str]:
    """The longest chain of classes of the package, each derived from the next."""
    known = {(m.name, n.name): n for m in modules.values() for n in m.names if isinstance(n, ast.ClassDef)}

    def chain(name: Name) -> list[str]:
        bases = [_definition(base, modules[name[0]], modules) for base in known[name].bases]
        return [name[1], *max((chain(base) for base in bases if base in known), key=len, default=[])]

    return max(map(chain, known), key=len, default=[])


def cycles(modules: Mapping[str, Module]) -> list[list[str]]:
    """Rooms that import each other, directly or through others; each group of such rooms once."""
    edges: dict[str, set[str]] = {module.room: set() for module in modules.values() if module.room}
    for module in modules.values():
        for source, name in module.imports.values():
            target = modules.get(f"{source}.{name}") or modules.get(source)
            if target and target.room and module.room and target.room != module.room:
                edges[module.room].add(target.room)
    reached = {room: _reachable(room, edges) for room in edges}
    groups = {frozenset(other for other in reached[room] if room in reached[other]) for room in edges}
    return sorted(sorted(group) for group in groups if group)


def _reachable(room: str, edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = set(edges[room])
    while waiting:
        found.add(following := waiting.pop())
        waiting |= edges[following] - found
    return found


def _module_called(name: str, module: Module, modules: Mapping[str, Module]) -> str:
    """The module of the package that a name stands for in a file; empty where it is none."""
    source, attribute = module.imports.get(name, ("", ""))
    full = f"{source}.{attribute}" if attribute else source
    return full if full in modules else ""


def _definition(base: ast.expr, module: Module, modules: Mapping[str, Module]) -> Name:
    """Where a base class is defined, as far as the source of one file tells."""
    base = base.value if isinstance(base, ast.Subscript) else base
    if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
        return _module_called(base.value.id, module, modules), base.attr
    name = base.id if isinstance(base, ast.Name) else ""
    return module.imports.get(name, (module.name, name))


def table(modules: Mapping[str, Module]) -> str:
    """The totals, then the rooms."""
    files = [module.lines for module in modules.values()]
    functions = [length for module in modules.values() for length in module.functions]
    public, names = sum(m.public for m in modules.values()), sum(len(m.names) for m in modules.values())
    private, chain, circles = private_imports(modules), deepest_hierarchy(modules), cycles(modules)
    rows = [
        ("files / lines", f"{len(files)} / {sum(files):,}"),
        ("median / max file", f"{median(files):.0f} / {max(files)}"),
        ("functions over 40 lines", f"{sum(n > 40 for n in functions)} of {len(functions):,}"),
        ("functions over 60 lines", f"{sum(n > 60 for n in functions)} of {len(functions):,}"),
        ("public names", f"{public}"),
        ("private names", f"{names - public}"),
        ("private names taken from another module", "; ".join(private) or "none"),
        ("deepest class hierarchy", f"{len(chain)} ({' < '.join(chain)})"),
        ("package cycles", "; ".join(" - ".join(group) for group in circles) or "none"),
    ]
    lines = ["| | |", "|---|---:|", *(f"| {what} | {value} |" for what, value in rows)]
    lines += ["", "| room | files | public | private | lines |", "|---|---:|---:|---:|---:|"]
    for room in sorted({module.room for module in modules.values()}):
        own = [module for module in modules.values() if module.room == room]
        shown, total = sum(m.public for m in own), sum(len(m.names) for m in own)
        size = sum(m.lines for m in own)
        lines.append(f"| {room or '__init__'} | {len(own)} | {shown} | {total - shown} | {size:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read_package(Path(sys.argv[1] if len(sys.argv) > 1 else "fedgmr"))))
