"""The journal of a deployed run, updates.jsonl: one line per event, from the dispatch of every task to its end.

It is appended and flushed line by line. A resumed run drops the lines that its checkpoint does not know of, as with the
metrics. A fleet may run for months, so a long file is put aside at a tick, in place of the one put aside before it, and
the new one begins with the counts of all that went before.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgmr.exchange import Verdict
from fedgmr.files import EARLIER_UPDATES, UPDATES, write_atomic
from fedgmr.flower.server.flights import Flight

LARGEST = 16 * 2**20  # bytes at which the file is put aside, about 40,000 tasks
_EARLIER = "earlier"
_BEGINNING: Mapping[str, Any] = {"event": _EARLIER, "lines": 0, "counts": {}}  # before the first event


class Journal:
    """Writes events; without a directory it only counts them."""

    def __init__(self, directory: Path | None, now: Callable[[], float]) -> None:
        """`now` tells the run's seconds."""
        self._path = None if directory is None else directory / UPDATES
        self.now, self.lines = now, 0
        self.counts: Counter[str] = Counter()  # of the events, by what they are and why
        self._accepted: list[tuple[Flight, dict[str, Any]]] = []  # since the last merge
        self._tick = -1

    def write(self, event: str, **fields: Any) -> None:
        """Append one event, with the run's seconds."""
        line = {"event": event, "seconds": round(self.now(), 3), **fields}
        self.lines += 1
        self._count(line)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(line))

    def write_task(self, event: str, flight: Flight, **fields: Any) -> None:
        """Append one event of a task."""
        who = {"task": flight.name, "client": flight.task.client, "version": flight.task.version}
        self.write(event, **who, **fields)

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
            self._put_aside()
            self.write("tick", tick=tick, late=round(late, 3))

    def close(self) -> None:
        """Note the updates that arrived after the last merge, which are not used."""
        for flight, fields in self._accepted:
            self.write_task("unmerged", flight, **fields)
        self._accepted.clear()

    def cut_back(self, lines: int) -> None:
        """Keep only the first `lines` events of files already there; fewer where they were cut by force."""
        self.lines, self.counts = lines, Counter()
        if self._path is None:
            return
        earlier = self._path.with_name(EARLIER_UPDATES)
        if earlier.exists() and (not self._path.exists() or lines < self._read()[0]["lines"]):
            os.replace(earlier, self._path)  # the run was killed soon after this was put aside
        head, events = self._read()
        if lines < head["lines"]:
            head, events = _BEGINNING, []
        kept = events[: lines - head["lines"]]
        self.lines, self.counts = head["lines"] + len(kept), Counter(head["counts"])
        for event in kept:
            self._count(event)
        write_atomic(self._path, "".join(map(_line, [head, *kept] if head["lines"] else kept)))

    def _read(self) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        """What the file says of those before it, and its own events up to the first that was not written whole."""
        assert self._path is not None
        events: list[dict[str, Any]] = []
        with suppress(FileNotFoundError, ValueError):  # a machine that lost its power leaves half a line, or zeros
            for line in self._path.read_bytes().splitlines():
                events.append(json.loads(line))
        return (events[0], events[1:]) if events and events[0]["event"] == _EARLIER else (_BEGINNING, events)

    def _put_aside(self) -> None:
        """Begin a new file where this one is long; a tick is about to be written, so every file has one."""
        if self._path is not None and self._path.exists() and self._path.stat().st_size >= LARGEST:
            os.replace(self._path, self._path.with_name(EARLIER_UPDATES))
            write_atomic(self._path, _line({**_BEGINNING, "lines": self.lines, "counts": self.counts}))

    def _count(self, event: Mapping[str, Any]) -> None:
        reason = event.get("reason")
        self.counts[f"{event['event']} {reason}" if reason else event["event"]] += 1
        if event["event"] == "resumed":
            self.counts["interrupted"] += len(event["lost"])

    def restore(self, lines: int, *, lost: Sequence[int], tick: int) -> None:
        """Continue after so many lines; the tasks of the clients `lost` were in flight then."""
        self.cut_back(lines)
        self._tick = tick
        self.write("resumed", tick=tick, lost=list(lost))


def _line(event: Mapping[str, Any]) -> str:
    return json.dumps(event) + "\n"
