"""The wheel: what it holds, and that it works where nothing of the source tree is near. Needs no network."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from fedgmr import __version__

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "fedgmr", "recipes")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, because setuptools takes along what an earlier build left in the tree."""
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tree, tmp_path_factory.mktemp("wheels"))


def build_wheel(source: Path, wheels: Path) -> Path:
    _run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(source))
    (built,) = wheels.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the wheel; it sees the dependencies installed here."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    # Only after the installation, which must not see the fedgmr that is installed here.
    own = Path(_run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    outer = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (own / "outer.pth").write_text("\n".join(outer) + "\n")
    return home / "bin"


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "fedgmr").rglob("*.py")}
    recipes = {f"fedgmr/{path.relative_to(ROOT)}" for path in (ROOT / "recipes").rglob("*.yaml")}
    info = f"fedgmr-{__version__}.dist-info"
    inside = {name for name in names if not name.startswith(info)}
    templates = {str(path.relative_to(ROOT)) for path in (ROOT / "fedgmr" / "deploy" / "templates").iterdir()}
    browser = {str(path.relative_to(ROOT)) for path in (ROOT / "fedgmr" / "pages" / "browser").iterdir()}
    other = {f"fedgmr/{name}" for name in ("py.typed", "paper/paper.yaml", "paper/table.html", "cli/words.json")}
    assert inside == modules | recipes | templates | browser | other
    assert "fedgmr/recipes/quickstart.yaml" in inside
    assert f"{info}/licenses/LICENSE" in names
    assert len(names) == len(set(names))


def test_wheel_tells_its_version_and_asks_for_little(wheel: Path) -> None:
    metadata = zipfile.ZipFile(wheel).read(f"fedgmr-{__version__}.dist-info/METADATA").decode()
    required = [
        line.split()[1] for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ]
    names = [re.split("[<>=]", name)[0].lower() for name in required]
    assert names == ["torch", "numpy", "pyyaml", "matplotlib", "rich", "jinja2", "safetensors"]
    assert f"\nVersion: {__version__}\n" in metadata


def test_installed_command_works_away_from_the_source(environment: Path, tmp_path: Path) -> None:
    place = _run(str(environment / "python"), "-c", "import fedgmr; print(fedgmr.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(environment.parent)
    assert "quickstart" in _run(str(environment / "fedgmr"), "list", cwd=tmp_path)
    shown = _run(str(environment / "fedgmr"), "show", "quickstart", cwd=tmp_path)
    assert shown.startswith("schema_version: 3\nname: quickstart\n")
    line = ("completion", "--line", "fedgmr run paper/femnist-")
    assert _run(str(environment / "fedgmr"), *line, cwd=tmp_path) == "paper/femnist-short\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_source_archive_holds_what_the_wheel_is_made_of(tree: Path, wheel: Path, tmp_path: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    _run(sys.executable, "-c", code, cwd=tree)
    (archive,) = tmp_path.glob("*.tar.gz")
    again = build_wheel(archive, tmp_path / "wheels")
    names, expected = (set(zipfile.ZipFile(path).namelist()) for path in (again, wheel))
    assert names == expected


@pytest.mark.slow
def test_an_installed_command_runs_the_demo_and_hands_out_its_model(environment: Path, tmp_path: Path) -> None:
    command = str(environment / "fedgmr")
    assert "Nothing is broken." in _run(command, "doctor", cwd=tmp_path)
    short = ("seconds=60", "short=true", "device=cpu")
    assert "FedGMR" in _run(command, "demo", *short, cwd=tmp_path)
    runs = tmp_path / "runs" / "demo"
    assert (runs / "report.html").is_file()
    _run(command, "export", str(runs), "--to", "csv", cwd=tmp_path)
    assert len((runs / "tables" / "runs.csv").read_text().splitlines()) == 1 + 4
    _run(command, "model", str(runs / "fedgmr-seed3"), "--level", "0.2", "--to", "torch.export", cwd=tmp_path)
    assert (runs / "fedgmr-seed3" / "level-0.2.pt2").is_file()


def _run(*command: str, cwd: Path | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
