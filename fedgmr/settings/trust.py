"""Whose code may run: import paths of settings that came from elsewhere are followed only where they are trusted.

A recipe that the user names may import anything. Settings found in a run directory or sent by a server are read within
`foreign_settings`: their import paths must be built in, named by the user's own recipe, or in a package that the
environment variable FEDGMR_TRUST names (`--trust` sets it). `imported` in `build.py` asks here before every import.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fedgmr.settings.refusals import SettingError, show_value

_TRUST_VARIABLE = "FEDGMR_TRUST"
# What settings of others may import while they are read; None: they are the user's own.
_allowed: ContextVar[frozenset[str] | None] = ContextVar("_allowed", default=None)


@contextmanager
def foreign_settings(trust: Iterable[str] = ()) -> Iterator[None]:
    """Within, only packages and import paths in `trust` (or this one) and in FEDGMR_TRUST are imported."""
    given = [trust] if isinstance(trust, str) else trust
    token = _allowed.set(frozenset([*given, *split_names(os.environ.get(_TRUST_VARIABLE, ""))]))
    try:
        yield
    finally:
        _allowed.reset(token)


def check_trusted(name: str, path: str) -> None:
    """Refuse the import path `name` under the key `path` where settings of others name it and nobody trusts it."""
    allowed = _allowed.get()
    if allowed is None or ":" not in name:
        return
    module = name.partition(":")[0]
    parents = {module.rsplit(".", count)[0] for count in range(module.count(".") + 1)}
    if allowed.isdisjoint({name, *parents}):
        package = module.partition(".")[0]
        raise SettingError(
            f"{path} is {show_value(name)}, code that a run directory or a server names and that is not trusted here: "
            f"give --trust {package} (or set {_TRUST_VARIABLE}={package}) if you trust it."
        )


def split_names(text: str) -> list[str]:
    """The names in a text with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def import_paths(data: Any) -> Iterator[str]:
    """Yield the import paths in the plain data of a recipe: its task, its method, and components by their kind."""
    entries = enumerate(data) if isinstance(data, list) else data.items() if isinstance(data, Mapping) else ()
    for key, value in entries:
        name = value.get("name") if key in ("task", "method") and isinstance(value, Mapping) else None
        found = name if name is not None else value if key == "kind" else None
        if isinstance(found, str) and ":" in found:
            yield found.partition("+")[0]
        yield from import_paths(value)


def trust_packages(names: Iterable[str]) -> None:
    """Add packages or import paths to FEDGMR_TRUST, for this process and those that it starts."""
    known = split_names(os.environ.get(_TRUST_VARIABLE, ""))
    if added := [name for name in names if name not in known]:
        os.environ[_TRUST_VARIABLE] = ",".join([*known, *added])
