"""The code against ARCHITECTURE.md: its list of files, and its table of who may import whom."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from fedgmr.cli.main import main

PACKAGE = Path(__file__).resolve().parents[1] / "fedgmr"
DOCUMENT = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w/]+)` \| ?((?:[\w/]+(?:, )?)*) ?\|$", re.MULTILINE)

# room -> rooms it may import; a room is a folder or a module, by its path below the package
TABLE = {room: set(others.split(", ")) - {""} for room, others in ROW.findall(DOCUMENT)}


def imports(source: str, module: str, *, package: bool = False) -> Iterator[str]:
    """Full names of everything a module imports, wherever in the file it does so.

    Args:
        source: the module's text.
        module: its full name.
        package: whether it is the `__init__` of a package.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")
                above = above[: len(above) - node.level + package]
                base = ".".join([*above, base] if base else above)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def room_of(path: str) -> str:
    """The row of the table for a path below the package: the longest that it begins with, else the public names."""
    rows = [row for row in TABLE if path == row or path.startswith(f"{row}/")]
    return max(rows, key=len, default="__init__")


def rooms(names: Iterator[str]) -> set[str]:
    """The rooms of this package that are imported."""
    inside = (name.split(".")[1:] for name in names if name.split(".")[0] == "fedgmr")
    return {room_of("/".join(parts)) for parts in inside}


def modules() -> dict[str, set[str]]:
    """By path below the package, without .py: the rooms that the module imports."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        package = parts[-1] == "__init__"
        name = ".".join(["fedgmr", *(parts[:-1] if package else parts)])
        found["/".join(parts)] = rooms(imports(path.read_text(encoding="utf-8"), name, package=package))
    return found


def named_files() -> Iterator[str]:
    """Paths below the package that the document lists: names up to two blanks, then words; a folder ends with /."""
    block = re.search(r"^```\nfedgmr/\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert block
    folders: list[str] = []
    for indent, names in re.findall(r"^( +)(\S+(?: \S+)*)", block[1], re.MULTILINE):
        del folders[len(indent) // 2 - 1 :]
        for name in names.split():
            if name.endswith("/"):
                folders.append(name)
            else:
                yield "".join([*folders, name])


MODULES = modules()


def test_every_file_has_a_line_in_the_document() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    paths = {str(path.relative_to(PACKAGE)) for path in files if "recipes" not in path.relative_to(PACKAGE).parts}
    unnamed = {path for path in paths if path.endswith("/__init__.py")}
    named = list(named_files())
    assert len(set(named)) == len(named)
    assert set(named) == paths - unnamed


def test_table_has_a_row_for_every_room() -> None:
    assert {path.split("/")[0] for path in MODULES} <= set(TABLE)
    assert all((PACKAGE / row).is_dir() or (PACKAGE / f"{row}.py").is_file() for row in TABLE)


def test_rows_name_only_rows_above() -> None:
    order = list(TABLE)
    assert [(room, other) for room in order for other in TABLE[room] if other not in order[: order.index(room)]] == []


def test_imports_keep_to_the_table() -> None:
    wrong = {path: found - TABLE[room_of(path)] - {room_of(path)} for path, found in MODULES.items()}
    assert {path: others for path, others in wrong.items() if others} == {}


def test_table_allows_nothing_that_is_not_needed() -> None:
    needed: dict[str, set[str]] = {room: set() for room in TABLE}
    for path, found in MODULES.items():
        needed[room_of(path)] |= found
    assert {room: TABLE[room] - needed[room] for room in TABLE if TABLE[room] - needed[room]} == {}


def test_packages_import_each_other_in_no_circle() -> None:
    # Computed from the code alone, so that a table that was read wrongly hides nothing.
    graph: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        top = path.relative_to(PACKAGE).with_suffix("").parts[0]
        found = (f"{name}.__init__".split(".") for name in _names(path))
        others = {parts[1] if _exists(parts[1]) else "__init__" for parts in found if parts[0] == "fedgmr"}
        graph[top] = graph.get(top, set()) | others - {top}
    assert len(graph) > 15
    while graph:
        leaves = [room for room, others in graph.items() if not others & set(graph)]
        assert leaves, f"these go in a circle, or stand on one: {sorted(graph)}"
        for room in leaves:
            del graph[room]


def test_only_the_room_of_flower_imports_flwr() -> None:
    users = {path for path in PACKAGE.rglob("*.py") if "flwr" in {n.split(".")[0] for n in _names(path)}}
    assert {path.relative_to(PACKAGE).parts[0] for path in users} == {"flower"}


def _names(path: Path) -> Iterator[str]:
    return imports(path.read_text(encoding="utf-8"), "fedgmr.any")


def _exists(room: str) -> bool:
    return (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file()


def test_known_imports_are_seen() -> None:
    # Were the search blind, the rules above would hold for nothing.
    assert {"server", "training", "submodels"} <= MODULES["methods/method"]
    assert MODULES["federation"] == {"exchange", "server"}
    assert "experiments" in MODULES["__init__"]


@pytest.mark.parametrize(
    ("line", "room"),
    [
        ("import fedgmr.server.server as s", "server"),
        ("from fedgmr.server import Server", "server"),
        ("from fedgmr import server", "server"),
        ("from fedgmr import federation", "federation"),
        ("from fedgmr import Task", "__init__"),
        ("import fedgmr", "__init__"),
        ("from ..server.server import Server", "server"),
        ("from .. import server", "server"),
        ("from .levels import LevelMap", "submodels"),
        ("def f():\n    from fedgmr.experiments import run", "experiments"),
        ("if TYPE_CHECKING:\n    from fedgmr.wire import Stamp", "wire"),
    ],
)
def test_every_way_to_import_is_seen(line: str, room: str) -> None:
    assert rooms(imports(line, "fedgmr.submodels.layout")) == {room}


def test_relative_imports_of_a_package() -> None:
    assert rooms(imports("from .layout import Layout", "fedgmr.submodels", package=True)) == {"submodels"}
    assert rooms(imports("from ..wire import Stamp", "fedgmr.submodels", package=True)) == {"wire"}
    assert rooms(imports("import torch\nfrom fedgmrx import a", "fedgmr.submodels", package=True)) == set()


Hop = tuple[str, str]  # a file below the package, and a function in it


def hop_of(frame: FrameType | None) -> Hop | None:
    """The function of the package that a frame belongs to, or that called it; comprehensions belong to theirs."""
    while frame and not frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
        frame = frame.f_back
    if frame is None:
        return None
    return frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"), frame.f_code.co_qualname.split(".<locals>")[0]


def entered(arguments: list[str]) -> list[tuple[Hop | None, Hop | None]]:
    """Every function of the package that a command enters, in order, with its caller."""
    found = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/") and "<" not in code.co_qualname:
            found.append((hop_of(frame), hop_of(frame.f_back)))

    sys.setprofile(note)
    try:
        assert main(arguments) == 0
    finally:
        sys.setprofile(None)
    return found


def test_walk_is_the_way_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgmr.cli.runs.write_report", lambda directory: directory)
    section = DOCUMENT.split("\n## From command")[1].split("\n## ")[0]
    hops: list[Hop] = re.findall(r"^ *\d+  (\S+\.py) +(\S+)", section, re.MULTILINE)
    assert len(hops) > 30
    settings = ["seconds=12", "evaluation.every_seconds=5", "execution.executor=sequential", f"output={tmp_path}/run"]
    events = iter(entered(["run", "quickstart", *settings]))
    for place, hop in enumerate(hops):
        callers = (caller for function, caller in events if function == hop)
        assert next(callers, "nobody") in (hops[:place] or [None]), hop


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = (
        "import sys, fedgmr\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'matplotlib', 'mlxtend', 'flwr', 'torch', 'pandas', 'sklearn'}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=PACKAGE.parent, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
