"""The counts of a made-up package, by hand."""

from pathlib import Path

import count_house
import pytest

FILES = {
    "__init__.py": "from made.kitchen.oven import Oven\n",
    "kitchen/__init__.py": "",
    "kitchen/oven.py": """
from made.kitchen.stove import Stove, _light
import made.cellar

class Oven(Stove):
    def bake(self):
        return _light()

async def preheat(): ...
def _clean(): ...
""",
    "kitchen/stove.py": """
from typing import Generic
from made import plan

class Appliance(Generic):
    pass

class Stove(Appliance):
    def cook(self):
        return plan._draw() + self._private()
    def _private(self):
        def inner(): ...

def _light(): ...
""",
    "cellar.py": "import torch\nfrom made.attic.box import Box\n",
    "attic/__init__.py": "",
    "attic/box.py": "def f():\n    from made.kitchen import oven\n\nclass Box: ...\n",
    "plan.py": "def _draw():\n" + "    x = 1\n" * 60 + "\n\ndef short():\n" + "    x = 1\n" * 40,
}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "made"


def test_structure(made: Path) -> None:
    modules = count_house.read_package(made)
    assert count_house.deepest_hierarchy(modules) == ["Oven", "Stove", "Appliance"]
    assert count_house.cycles(modules) == [["attic", "cellar", "kitchen"]]  # kitchen -> cellar -> attic -> kitchen
    assert count_house.private_imports(modules) == [
        "made.kitchen.oven takes made.kitchen.stove._light",
        "made.kitchen.stove takes made.plan._draw",
    ]


def test_table(made: Path) -> None:
    lines = count_house.table(count_house.read_package(made)).splitlines()
    assert "| files / lines | 8 / 135 |" in lines
    assert "| functions over 40 lines | 2 of 10 |" in lines  # of 61 and 41 lines
    assert "| functions over 60 lines | 1 of 10 |" in lines
    assert "| public names | 7 |" in lines
    assert "| private names | 3 |" in lines
    assert "| kitchen | 3 | 4 | 2 | 24 |" in lines
    assert "| plan | 1 | 1 | 1 | 104 |" in lines


def test_a_plain_package(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Only: ...\n")
    text = count_house.table(count_house.read_package(tmp_path))
    assert "| package cycles | none |" in text
    assert "| private names taken from another module | none |" in text
    assert "| deepest class hierarchy | 1 (Only) |" in text
