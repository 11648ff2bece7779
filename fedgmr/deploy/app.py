"""A Flower app in a folder: pyproject and recipe, and for a fleet of machines also README, units and certificates.

Every file is a template in `templates/` with `$words` to fill in. `fedgmr deploy init` writes all of them; a local
deployment writes only those that `flwr run` needs.
"""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

from fedgmr.files import RECIPE, write_atomic
from fedgmr.recipe import Recipe
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain
from fedgmr.settings.text import dump
from fedgmr.settings.trust import import_paths

TEMPLATES = Path(str(resources.files("fedgmr.deploy") / "templates"))
SUPERNODE = TEMPLATES.parents[1] / "flower" / "client" / "supernode.py"  # a program by itself, in place of Flower's
_UNITS = ("fedgmr-superlink.service", "fedgmr-superexec.service", "fedgmr-supernode.service")


def write_app(folder: Path, recipe: Recipe, output: Path) -> None:
    """Write the files that `flwr run` needs into a folder: `pyproject.toml` and the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / RECIPE, dump(plain(recipe)))
    about = recipe.about or f"The fedgmr recipe {recipe.name}"
    words = {"name": _project_name(recipe.name), "about": about, "recipe": RECIPE, "output": str(output)}
    words["trust"] = ",".join(dict.fromkeys(import_paths(plain(recipe))))
    _write(folder, "pyproject.toml", {key: _quoted(text) for key, text in words.items()})


def write_project(folder: Path, recipe: Recipe) -> None:
    """Write a new folder for a fleet of machines: the app of a paced recipe, README, units, certificates.sh, nginx."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"DIR is {str(folder)!r}, which is not empty: give a new folder.")
    name = _project_name(recipe.name)
    write_app(folder, recipe, Path("/var/lib/fedgmr/runs") / name)
    _write(folder, "certificates.sh", None)
    _write(folder, "nginx.conf", None)
    (folder / "systemd").mkdir()
    for unit in _UNITS:
        _write(folder / "systemd", unit, None)
    write_atomic(folder / "systemd" / SUPERNODE.name, SUPERNODE.read_text(encoding="utf-8"))
    clients = len(recipe.fleet.resolved_links())
    _write(folder, "README.md", {"name": name, "clients": str(clients), "last": str(clients - 1)})


def _write(folder: Path, name: str, words: Mapping[str, str] | None) -> None:
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    write_atomic(folder / name, text if words is None else Template(text).substitute(words))


def _project_name(name: str) -> str:
    """A name that Flower accepts: letters, digits, dashes, beginning with a letter."""
    words = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    words = "-".join(filter(None, words.split("-")))
    return words if words[:1].isalpha() else f"run-{words}".rstrip("-")


def _quoted(text: str) -> str:
    """The inside of a TOML string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
