"""The page with its data inside: one file for a browser that is offline, also of runs that have not ended.

Columns are compressed JSON, counts as differences from row to row: by measurement as small as binary numbers.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.pages.columns import INTEGERS
from fedgmr.pages.page import page
from fedgmr.pages.watched import Watch
from fedgmr.settings.refusals import SettingError


def page_with_data(directories: Sequence[Path]) -> str:
    """The page of all runs in and below directories; SettingError where there are none."""
    watch = Watch(directories)
    state = watch.state()
    if not state["runs"]:
        names = ", ".join(map(str, directories))
        raise SettingError(f"There are no runs below {names}: give run directories, or one with runs below it.")
    packed = {str(run["id"]): pack(watch.columns(run["id"], 0, run["epoch"]) or {}) for run in state["runs"]}
    data = json.dumps({"state": state, "columns": packed}, allow_nan=False, separators=(",", ":"))
    return page(watch.title, data)


def pack(columns: Mapping[str, Any]) -> str:
    """Columns as text: base64 of a zlib stream of JSON.

    In it, the columns named in `differences` hold the difference from the last number before, and the values of clients
    stand client by client.
    """
    by_client = {name: list(zip(*rows, strict=True)) for name, rows in columns["clients"].items()}
    data = {
        **columns,
        "differences": sorted(INTEGERS),
        "columns": {
            name: _differences(values) if name in INTEGERS else values for name, values in columns["columns"].items()
        },
        "clients": {
            name: [_differences(values) if name in INTEGERS else values for values in clients]
            for name, clients in by_client.items()
        },
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _differences(values: Sequence[int | None]) -> list[int | None]:
    found: list[int | None] = []
    last = 0
    for value in values:
        found.append(None if value is None else value - last)
        last = last if value is None else value
    return found
