import memory
import pytest
from crowd import Case, Run, objects, synthetic

VECTOR = 4 * 100424


def test_footprint_by_hand() -> None:
    case = Case(clients=10, state="restored")
    run = Run(objects(case, synthetic("small", 10)))
    run.turn(1)
    server = run.assembly.server
    found = memory.footprint(server)
    assert found.buffer == run.done * VECTOR
    assert found.models == 2 * VECTOR  # the present; those who have not answered yet still work on the one before
    assert found.maps == VECTOR // 4  # whole models need no level order
    assert found.work == 10 * VECTOR
    assert found.arrivals == 10 * VECTOR  # everybody is at work
    assert found.bound == pytest.approx(1.2 * (found.buffer + 22.25 * VECTOR) + 200e6)


def test_a_half_buffer_takes_half() -> None:
    one, other = (
        Run.of(Case(clients=10, state="preset", dtype=dtype)).assembly.server for dtype in ("float32", "float16")
    )
    assert memory.footprint(one).buffer == 2 * memory.footprint(other).buffer


def test_rows_tell_measured_from_computed() -> None:
    found = memory.Footprint(models=1_000_000, buffer=1_500_000, arrivals=500_000, maps=3_000_000, work=4_000_000)
    measured = memory.row_of(Case(clients=10), found, 106e6)
    assert (measured["together"], measured["bound"], measured["grown"], measured["of bound"]) == (
        "10",
        "212",
        "106",
        "50 %",
    )
    assert memory.row_of(Case(clients=10), found, None)["of bound"] == "computed"
