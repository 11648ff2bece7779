"""The journal of a deployed run, updates.jsonl: one line per event, from the dispatch of every task to its end.

It is appended and flushed line by line. A resumed run drops the lines that its checkpoint does not know of, as with the
metrics.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedgmr.exchange import Verdict
from fedgmr.files import UPDATES, write_atomic
from fedgmr.flower.server.flights import Flight


class Journal:
    """Writes events; without a directory it only counts them."""

    def __init__(self, directory: Path | None, now: Callable[[], float]) -> None:
        """`now` tells the run's seconds."""
        self._path = None if directory is None else directory / UPDATES
        self.now, self.lines = now, 0
        self._accepted: list[tuple[Flight, dict[str, Any]]] = []  # since the last merge
        self._tick = -1

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        self.lines += 1
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **fields}) + "\n")

    def write_task(self, event: str, flight: Flight, **fields: Any) -> None:
        """Append one event of a task."""
        who = {"task": flight.name, "client": flight.task.client, "version": flight.task.version}
        self.write(event, **who, seconds=round(self.now(), 3), **fields)

    def accept(self, flight: Flight, **fields: Any) -> None:
        """Note an update that is handed on to the next merge."""
        self._accepted.append((flight, {"arrived": round(self.now(), 3), **fields}))

    def judge(self, verdict: Verdict) -> None:
        """Note the server's word on an update that was handed on."""
        for flight, fields in self._accepted:
            if flight.task.client == verdict.client and verdict.merged:
                fields[verdict.reason] = True
            elif flight.task.client == verdict.client:
                self.write_task("refused", flight, reason=verdict.reason, **fields)
        if not verdict.merged:
            self._accepted = [entry for entry in self._accepted if entry[0].task.client != verdict.client]

    def merge(self, tick: int, *, late: float) -> None:
        """Note that `tick` merges are done: only now do updates count as accepted."""
        for flight, fields in self._accepted:
            self.write_task("accepted", flight, tick=tick, **fields)
        self._accepted.clear()
        if tick != self._tick:
            self._tick = tick
            self.write("tick", tick=tick, seconds=round(self.now(), 3), late=round(late, 3))

    def close(self) -> None:
        """Note the updates that arrived after the last merge, which are not used."""
        for flight, fields in self._accepted:
            self.write_task("unmerged", flight, **fields)
        self._accepted.clear()

    def cut_back(self, lines: int) -> None:
        """Keep only the first `lines` lines of a file already there; fewer where it was cut by force."""
        if self._path is not None and self._path.exists():
            kept = self._path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[:lines]
            write_atomic(self._path, "".join(kept))
            lines = len(kept)
        self.lines = lines

    def restore(self, lines: int, *, lost: Sequence[int], tick: int) -> None:
        """Continue after so many lines; the tasks of the clients `lost` were in flight then."""
        self.cut_back(lines)
        self._tick = tick
        self.write("resumed", seconds=self.now(), tick=tick, lost=list(lost))
