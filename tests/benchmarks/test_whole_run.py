import time
from collections.abc import Sequence

import pytest
import whole_run

from fedgmr.exchange import ClientTask, Update


def test_the_parts_make_the_run() -> None:
    row, parts, digest = whole_run.shares(["quickstart", "seconds=80", "execution.executor=sequential", "device=cpu"])
    again, _, same = whole_run.shares(["quickstart", "seconds=80", "execution.executor=sequential", "device=cpu"])
    assert (same, again["updates"], again["final"]) == (digest, row["updates"], row["final"])
    wall, training = (float(str(row[name])) for name in ("wall, s", "training, s"))
    assert 0 < training < wall
    assert float(str(row["not training"]).removesuffix(" %")) == pytest.approx(100 * (1 - training / wall), abs=10)
    assert sum(float(str(part["seconds"])) for part in parts) == pytest.approx(wall, abs=0.3)
    assert next(part["calls"] for part in parts if part["host"] == "SGD steps") == 5 * int(str(row["updates"]))


def test_what_the_first_group_of_a_size_takes_longer_is_set_up() -> None:
    executor = whole_run.TimedExecutor(inner=Slow(), on_gpu=False)
    executor.groups = [(size, lambda took=took: took) for size, took in ((2, 1.5), (2, 0.5), (2, 0.25), (1, 0.25))]  # type: ignore[misc]
    assert executor.seconds() == (1.5, 1.0)  # 1.5 of 0.5, the median; alone a first group is its own median
    executor.train([])
    count, took = executor.groups[-1]
    assert (count, took() >= 0.01) == (0, True)


class Slow:
    ahead = False

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        time.sleep(0.01)
        return []
