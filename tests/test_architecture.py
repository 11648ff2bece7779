"""Dependencies point one way, and the package is light to import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "fedgmr"
ROOT = "(root)"  # names taken from `fedgmr` itself, which imports everything

# room -> rooms it must not import
FORBIDDEN = {
    "submodels": {
        "server",
        "methods",
        "training",
        "wire",
        "fleets",
        "tasks",
        "federation",
        "experiments",
        "reporting",
        ROOT,
    },
    "server": {"training", "methods", "fleets", "wire", "tasks", "federation", "experiments", "reporting", ROOT},
    "methods": {"fleets", "federation", "experiments", "reporting", ROOT},
    "training": {"server", "methods", "fleets", "federation", "experiments", "reporting", ROOT},
    "wire": {"server", "methods", "training", "fleets", "federation", "experiments", "reporting", ROOT},
    "tasks": {"server", "methods", "training", "fleets", "federation", "experiments", "reporting", ROOT},
    "fleets": {"methods", "experiments", "reporting"},
    "federation": {"methods", "training", "fleets", "experiments", "reporting", ROOT},
    "reporting": {"server", "methods", "fleets", "training", "federation", "experiments", ROOT},
    "experiments": set(),
}


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


def rooms(names: Iterator[str]) -> set[str]:
    """The rooms of this package that are imported."""
    found = set()
    for name in names:
        first, *rest = name.split(".")
        if first == "fedgmr":
            known = rest and ((PACKAGE / rest[0]).is_dir() or (PACKAGE / f"{rest[0]}.py").is_file())
            found.add(rest[0] if known else ROOT)
    return found


def modules() -> dict[str, set[str]]:
    """By module name: the rooms it imports."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["fedgmr", *path.relative_to(PACKAGE).with_suffix("").parts]
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        found[name] = rooms(imports(path.read_text(encoding="utf-8"), name, package=package))
    return found


MODULES = modules()


@pytest.mark.parametrize("room", FORBIDDEN)
def test_dependencies_point_one_way(room: str) -> None:
    inside = {n: r for n, r in MODULES.items() if n == f"fedgmr.{room}" or n.startswith(f"fedgmr.{room}.")}
    inside = {n: r for n, r in inside.items() if not n.startswith("fedgmr.flower")}  # stands on everything
    assert inside, f"there is no fedgmr.{room} any more: correct this test"
    wrong = {name: sorted(found & FORBIDDEN[room]) for name, found in inside.items() if found & FORBIDDEN[room]}
    assert wrong == {}


def test_only_main_imports_the_command_line() -> None:
    assert {name for name, found in MODULES.items() if "cli" in found} == {"fedgmr.__main__"}


def test_only_the_room_of_the_flower_apps_imports_flwr() -> None:
    users = {path for path in PACKAGE.rglob("*.py") if "flwr" in {n.split(".")[0] for n in _names(path)}}
    assert users
    assert {path.relative_to(PACKAGE).parts[:2] for path in users} == {("flower", "client"), ("flower", "server")}


def _names(path: Path) -> Iterator[str]:
    return imports(path.read_text(encoding="utf-8"), "fedgmr.any")


def test_known_imports_are_seen() -> None:
    # Were the search blind, the rules above would hold for nothing.
    assert {"server", "training", "settings"} <= MODULES["fedgmr.methods.method"]
    assert MODULES["fedgmr.federation"] == {"exchange", "server"}
    assert "experiments" in MODULES["fedgmr"]


@pytest.mark.parametrize(
    ("line", "room"),
    [
        ("import fedgmr.server.server as s", "server"),
        ("from fedgmr.server import Server", "server"),
        ("from fedgmr import server", "server"),
        ("from fedgmr import federation", "federation"),
        ("from fedgmr import Task", ROOT),
        ("import fedgmr", ROOT),
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


def test_importing_the_package_loads_no_heavy_or_optional_library() -> None:
    program = (
        "import sys, fedgmr\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'matplotlib', 'yaml', 'mlxtend', 'flwr', 'torch', 'pandas', 'sklearn'}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=PACKAGE.parent, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["torch"]
