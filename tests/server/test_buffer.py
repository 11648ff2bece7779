"""How updates are kept: natural or level order, half precision, and that neither changes what a run learns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.runs import BRISK, LINKS, distance, drive, objects

from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments.assembly import Assembly
from fedgmr.experiments.checkpoint import Checkpoint, load_checkpoint
from fedgmr.federation import federate
from fedgmr.server.buffer import BufferRule, Contribution
from fedgmr.submodels.levels import LevelMap

# Level order 2, 0, 3, 1.
LEVELS = LevelMap(torch.tensor([1, 2, 0, 1], dtype=torch.uint8), (0.25, 0.75, 1.0))
NATURAL, ORDERED = [10.0, 20.0, 30.0, 40.0], [30.0, 10.0, 40.0, 20.0]


def task_of(level: int, levels: LevelMap = LEVELS) -> ClientTask:
    return ClientTask(
        client=3,
        version=7,
        level=level,
        levels=levels,
        map_version=2,
        model=torch.zeros(len(levels)),
        buffers=torch.zeros(1),
        learning_rate=0.1,
        first_batch=0,
    )


def update_of(values: list[float], *, natural: bool = False) -> Update:
    return Update(client=3, version=7, values=torch.tensor(values), buffers=torch.ones(1), loss=0.5, natural=natural)


@pytest.mark.parametrize("update", [update_of(ORDERED), update_of(NATURAL, natural=True)])
def test_a_whole_model_is_kept_in_the_order_asked_for(update: Update) -> None:
    natural = Contribution.of(update, task_of(2), natural=True)
    assert (natural.values.tolist(), natural.levels) == (NATURAL, None)
    ordered = Contribution.of(update, task_of(2), natural=False)
    assert (ordered.values.tolist(), ordered.levels) == (ORDERED, LEVELS)
    assert (ordered.client, ordered.version, ordered.level, ordered.map_version) == (3, 7, 2, 2)


def test_a_sub_model_stays_in_level_order() -> None:
    for natural in (True, False):
        kept = Contribution.of(update_of([30.0, 10.0, 40.0]), task_of(1), natural=natural)
        assert (kept.values.tolist(), kept.levels) == ([30, 10, 40], LEVELS)


def test_the_only_sub_model_is_in_natural_order_anyway() -> None:
    full = LevelMap.full(4)
    for natural in (True, False):
        assert Contribution.of(update_of(NATURAL), task_of(0, full), natural=natural).values.tolist() == NATURAL


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        ("float32", [1.0009765, 70000.0, -(2.0**100), 2.0**-30]),
        ("float16", [1.0009765625, 65504.0, -65504.0, 0.0]),  # steps of 2^-10 at 1; from 2^-24 to 65504
        ("bfloat16", [1.0, 70144.0, -(2.0**100), 2.0**-30]),  # steps of 2^-7 at 1, of 512 at 70000
    ],
)
def test_precision_of_the_buffer(dtype: Any, kept: list[float]) -> None:
    given = Contribution.of(update_of([1.0009765, 70000.0, -(2.0**100), 2.0**-30]), task_of(2), natural=False)
    stored = BufferRule(dtype=dtype).stored(given)
    assert stored.values.tolist() == pytest.approx(kept, rel=1e-6)
    assert str(stored.values.dtype) == f"torch.{dtype}"
    once = BufferRule(dtype=dtype, keep=False).stored(given)
    assert once is given, "what is merged once is not rounded"


def test_a_run_with_updates_in_level_order_is_the_same_run() -> None:
    """Executors hand whole models over as they lie, clients on the wire do not; while all are restored and after."""
    rules = {**BRISK, "interval": 2}
    plain = {"executor": "sequential"}
    natural, ordered = (objects(tiny.dense(), "fedgmr", rules, execution=plain) for _ in range(2))
    assert natural.fleet.executor.natural  # type: ignore[attr-defined]
    ordered.fleet.executor.natural = False  # type: ignore[attr-defined]
    one, other = drive(natural, ticks=40), drive(ordered, ticks=40)
    assert [moment.learned() for moment in one] == [moment.learned() for moment in other]
    for run in (natural, ordered):
        assert all(c.levels is None for c in run.server.buffer.values()), "in the end all are whole, in natural order"
    assert min(one[0].levels) < max(one[0].levels) == min(one[-1].levels)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("ticks", [5, 40])  # mixed levels and maps; all restored
def test_a_checkpoint_keeps_the_buffer_exactly(dtype: str, ticks: int, tmp_path: Path) -> None:
    rules = {**BRISK, "interval": 2, "buffer": {"dtype": dtype}}
    run = objects(tiny.dense(), "fedgmr", rules)
    drive(run, ticks=ticks)
    Checkpoint.of(run.server, run.fleet, recorded=0).write(tmp_path, keep=1)
    twin = objects(tiny.dense(), "fedgmr", rules)
    load_checkpoint(tmp_path, twin.server, twin.fleet)
    assert {c.values.dtype for c in twin.server.buffer.values()} == {getattr(torch, dtype)}
    assert _go_on(twin) == _go_on(run)


def _go_on(run: Assembly) -> list[bytes]:
    models: list[bytes] = []

    def stop() -> bool:
        models.append(run.server.model.numpy().tobytes())
        return len(models) == 6

    federate(run.server, run.fleet, seconds=1e9, stop=stop, resumed=True)
    assert len(models) == 6
    return models


def test_half_precision_hardly_changes_a_run() -> None:
    def final(dtype: str) -> torch.Tensor:
        return drive(objects(tiny.dense(), "fedgmr", {"buffer": {"dtype": dtype}}, links=LINKS), ticks=10)[-1].model

    full = final("float32")
    assert 0 < distance(final("float16"), full) < 2e-3
    assert 0 < distance(final("bfloat16"), full) < 2e-2
