"""The history of a run: its evaluations as rows and as columns, the same for a live result and for one read back.

A row is what a line of `metrics.jsonl` holds. Read next: `records.py`, the run around it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgmr.reading import Reading

Row = Mapping[str, Any]
_INTEGER_COLUMNS = ("tick", "level", "updates", "bytes_down", "bytes_up", "bytes_server", "in_flight")
_FLOAT_COLUMNS = ("seconds", "accuracy", "loss", "density", "staleness", "wall")
_PER_CLIENT = ("density", "level", "staleness", "updates", "bytes_down", "bytes_up")
_WHEN = ("seconds", "tick")


@dataclass(frozen=True, kw_only=True, eq=False)
class History(Sequence[Row]):
    """The evaluations of a run: E evaluations, C clients.

    `history[-1]` is a row, `history["accuracy"]` a field of all rows as it was recorded, `history.accuracy` an array of
    numbers. `staleness` is NaN where a client has no buffered update; byte and update counts are cumulative.
    """

    rows: Sequence[Row]
    seconds: NDArray[np.float64]  # [E] virtual
    tick: NDArray[np.int64]  # [E]
    accuracy: NDArray[np.float64]  # [E] the leading metric, 0..1 for an accuracy
    loss: NDArray[np.float64]  # [E]
    density: NDArray[np.float64]  # [E, C]
    level: NDArray[np.int64]  # [E, C]
    staleness: NDArray[np.float64]  # [E, C]
    updates: NDArray[np.int64]  # [E, C]
    bytes_down: NDArray[np.int64]  # [E, C]
    bytes_up: NDArray[np.int64]  # [E, C]
    bytes_server: NDArray[np.int64]  # [E]
    in_flight: NDArray[np.int64]  # [E]
    wall: NDArray[np.float64]  # [E] seconds of the host
    views: Mapping[str, NDArray[np.float64]]  # by view other than the merged one: accuracy [E], NaN where not tested

    @classmethod
    def of(cls, rows: Sequence[Row], place: object = "The history") -> "History":
        """Arrange rows in columns; ValueError naming `place`, where they come from, if they are not a table."""
        try:
            names = dict.fromkeys(name for row in rows for name in row.get("views", {}))
            views = {
                name: np.array([row.get("views", {}).get(name, {}).get("accuracy") for row in rows], dtype=np.float64)
                for name in names
            }
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{place}: the views of an evaluation are not numbers by name ({error}).") from error
        columns = {name: _column(rows, name, place) for name in _FLOAT_COLUMNS + _INTEGER_COLUMNS}
        return cls(rows=rows, views=views, **columns)

    def __getitem__(self, key: Any) -> Any:
        """`history[3]` is a row, `history["accuracy"]` a field of all rows, the leading metric also by its own name."""
        if isinstance(key, str):
            if key not in self.columns and self.rows and key == Reading.recorded(self.rows[-1])[0].name:
                key = "accuracy"
            if key not in self.columns:
                raise KeyError(f"{key!r} is not a field of every row: choose one of {', '.join(self.columns)}.")
            return [row[key] for row in self.rows]
        return self.rows[key]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"History({len(self)} evaluations, {self.density.shape[1]} clients, fields: {', '.join(self.columns)})"

    @property
    def columns(self) -> list[str]:
        """The names of the fields that every row has."""
        return [name for name in self.rows[0] if all(name in row for row in self.rows)] if self.rows else []

    def view(self, name: str) -> NDArray[np.float64]:
        """Accuracies of a view, NaN where it was not tested; all NaN for one that never was."""
        if name == "merged":
            return self.accuracy
        return self.views.get(name, np.full(len(self.seconds), math.nan))

    def of_clients(self, name: str) -> NDArray[np.float64]:
        """A figure of the evaluations per client (`mean`, `p10`, `worst`, `jain`, ...), NaN where there was none."""
        try:
            return np.array([row.get("clients", {}).get(name) for row in self.rows], dtype=np.float64)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"The clients of an evaluation are not numbers by name ({error}): restore it.") from error

    def table(self) -> list[dict[str, Any]]:
        """One flat row per evaluation, without the lists per client; `views.padded.accuracy` is a field of a field."""
        name = Reading.recorded(self.rows[-1])[0].name if self.rows else "accuracy"
        own = {} if name == "accuracy" else {name: "accuracy"}  # the leading metric by its own name too
        return [
            {name: value for name, value in _flat(row) if not isinstance(value, Sequence) or isinstance(value, str)}
            | {name: row[field] for name, field in own.items() if name not in row}
            for row in self.rows
        ]

    def client_table(self) -> list[dict[str, Any]]:
        """One flat row per evaluation and client: seconds, tick, client, and every field that is a list per client."""
        clients, table = self.density.shape[1], []
        for row in self.rows:
            lists = {name: value for name, value in _flat(row) if isinstance(value, list) and len(value) == clients}
            when = {name: row[name] for name in _WHEN}
            for client in range(clients):
                table.append(when | {"client": client} | {name: values[client] for name, values in lists.items()})
        return table


def _flat(row: Row, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if name in ("readings", "trips", "away", "rates"):  # no numbers per client
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _column(rows: Sequence[Row], name: str, place: object) -> NDArray[Any]:
    dtype = np.int64 if name in _INTEGER_COLUMNS else np.float64
    try:
        column = np.array([row[name] for row in rows], dtype=dtype)  # null becomes NaN in a float column
    except KeyError as error:
        raise ValueError(f"{place}: an evaluation has no {name!r}.") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{place}: column {name!r} is not a table of numbers ({error}).") from error
    if column.ndim != (2 if name in _PER_CLIENT else 1):
        expected = "one number per client" if name in _PER_CLIENT else "one number"
        raise ValueError(f"{place}: column {name!r} should hold {expected} per evaluation.")
    return column
