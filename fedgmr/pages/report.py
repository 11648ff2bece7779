"""The page with its data inside: one file for a browser that is offline, also of runs that have not ended.

Columns are compressed JSON, counts as differences from row to row: by measurement as small as binary numbers.
"""

import base64
import contextlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedgmr.files import write_atomic
from fedgmr.pages.columns import INTEGERS
from fedgmr.pages.page import page
from fedgmr.pages.watch import Watch
from fedgmr.reporting.comparison import Comparison
from fedgmr.reporting.records import read_run
from fedgmr.reporting.run_files import find_runs, is_run
from fedgmr.settings.refusals import SettingError

REPORT = "report.html"


def write_report(
    directory: str | Path, runs: Sequence[Path] | None = None, comparison: Comparison | None = None
) -> Path:
    """Write `report.html` into a directory, and into those of its runs; returns its path.

    Args:
        directory: of a run, which may be unfinished, or one with runs below it.
        runs: the directories of the runs that the page shows; unless given, all in and below the directory.
        comparison: the table of the page, where it was made already.

    Raises:
        ValueError: there is no run, or the only one is not what its summary was written for.
    """
    folder = Path(directory)
    if is_run(folder) or not folder.is_dir():
        read_run(folder)
    else:
        for run in runs or [files.path for files in find_runs(folder)]:
            with contextlib.suppress(ValueError):  # the page of all says which cannot be understood
                write_report(run)
    text = page_with_data(runs or [folder], title=folder.absolute().name, comparison=comparison, folder=folder)
    write_atomic(folder / REPORT, text)
    return folder / REPORT


def page_with_data(
    directories: Sequence[Path],
    *,
    title: str = "",
    comparison: Comparison | None = None,
    folder: Path | None = None,
) -> str:
    """The page of all runs in and below directories, with links to the pages of those below `folder`.

    Raises:
        SettingError: there are no runs in one of them.
    """
    if empty := [str(directory) for directory in directories if not find_runs(directory)]:
        names = ", ".join(empty)
        raise SettingError(f"There are no runs below {names}: give run directories, or one with runs below it.")
    watch = Watch(directories, title=title, comparison=comparison)
    watch.verify()
    state = watch.state()
    data: dict[str, Any] = {"state": state, "columns": {}, "events": {}, "provenance": {}}
    for run in state["runs"]:
        number = run["id"]
        run["page"] = None if folder is None else _link(watch.place(number), folder)
        data["columns"][number] = pack(watch.columns(number, 0, run["epoch"]) or {})
        data["events"][number] = _packed(watch.events(number, 0, run["epoch"]) or {})
        data["provenance"][number] = _packed(watch.provenance(number) or {})
    return page(watch.title, json.dumps(data, allow_nan=False, separators=(",", ":")))


def _link(run: Path, folder: Path) -> str | None:
    """The address of a run's own page, as a page in a folder above it names it; None where there is none."""
    target, base = run / REPORT, folder.absolute()
    if target.parent == base or base not in target.parents or not target.is_file():
        return None
    return "./" + quote(os.fsencode(target.relative_to(base)))


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
    return _packed(data)


def _packed(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _differences(values: Sequence[int | None]) -> list[int | None]:
    found: list[int | None] = []
    last = 0
    for value in values:
        found.append(None if value is None else value - last)
        last = last if value is None else value
    return found
