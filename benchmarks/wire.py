"""The speed of the wire format on one core: `python benchmarks/wire.py [--value-type fp16] [--csv PATH]`.

The model is the size of Conv-2 (6,603,710 coordinates) with a random level map on the ladder of the paper.
Rates are megabytes of encoded objects per second of processor time, the median of the repetitions; "values"
is a task or update under an unchanged map, "map + values" a task whose map travels too. The status is 1 if a rate is
below its target.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from environment import header, one_thread
from tables import markdown, write_csv

from fedgmr.wire import (
    Expected,
    Limits,
    Stamp,
    ValueType,
    decode_map,
    decode_values,
    encode_map,
    encode_values,
)

COORDINATES = 6_603_710
LADDER = (0.05, 0.1, 0.2, 0.5, 1.0)
TARGETS = {"values": 200.0, "map + values": 60.0}
STAMP = Stamp(run=1, version=1, map_version=1)
EXPECTED = Expected(run=1, client=0)
LIMITS = Limits(values=COORDINATES, buffers=0)


def median_seconds(action: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def measure(level: int, value_type: ValueType, repeats: int) -> list[dict[str, object]]:
    generator = np.random.default_rng(0)
    levels = np.searchsorted(LADDER, generator.random(COORDINATES), side="right").astype(np.uint8)
    count = int(np.count_nonzero(levels <= level))
    values = generator.standard_normal(count, np.float32)

    def write_values() -> bytes:
        return encode_values(values, stamp=STAMP, first=0, last=level, value_type=value_type)

    def write_map() -> bytes:
        return encode_map(levels, stamp=STAMP, last=level)

    values_object, map_object = write_values(), write_map()

    def read_values() -> object:
        return decode_values(values_object, expected=EXPECTED, limits=LIMITS)

    def read_map() -> object:
        return decode_map(map_object, total=COORDINATES, expected=EXPECTED)

    cases: tuple[tuple[str, int, Callable[[], object], Callable[[], object]], ...] = (
        ("values", len(values_object), write_values, read_values),
        (
            "map + values",
            len(values_object) + len(map_object),
            lambda: (write_map(), write_values()),
            lambda: (read_map(), read_values()),
        ),
    )
    return [
        {
            "density": LADDER[level],
            "objects": name,
            "type": str(value_type),
            "bytes": size,
            "encode MB/s": round(size / 1e6 / median_seconds(write, repeats), 1),
            "decode MB/s": round(size / 1e6 / median_seconds(read, repeats), 1),
            "target MB/s": TARGETS[name],
        }
        for name, size, write, read in cases
    ]


def met(row: dict[str, object]) -> bool:
    """Whether both rates are at least the target."""
    return all(float(str(row[f"{way} MB/s"])) >= float(str(row["target MB/s"])) for way in ("encode", "decode"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--value-type", type=ValueType, choices=list(ValueType), default=ValueType.FP32)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--csv", type=Path, metavar="PATH", help="also write the table here")
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # one core, however many threads the libraries would start
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    one_thread()
    print(header())
    rows = [row for level in range(len(LADDER)) for row in measure(level, given.value_type, given.repeats)]
    print(f"\n{markdown(rows)}")
    if given.csv:
        write_csv(given.csv, rows)
    missed = [row for row in rows if not met(row)]
    print(f"\nevery rate at or above its target: {'NO' if missed else 'yes'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
