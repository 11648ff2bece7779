import pytest
import scaling
import torch
from crowd import SGD, Case, Run, fill, objects, synthetic


def run_of(case: Case) -> Run:
    """A run whose buffer is empty yet."""
    return Run(objects(case, synthetic(case.net, case.clients)))


@pytest.mark.parametrize("method", ["fedgmr", "fedavg"])
def test_turns_do_not_change_a_run(method: str) -> None:
    case = Case(clients=10, method=method)
    whole, turned = run_of(case), run_of(case)
    whole.turn(40)
    while turned.done < 40:
        turned.turn(1)
    assert len(turned.turns) >= 4
    assert sum(turned.updates) == turned.done == whole.done
    assert torch.equal(turned.assembly.server.model, whole.assembly.server.model)


def test_states_last() -> None:
    preset, restored = (run_of(Case(clients=10, state=state)).assembly for state in ("preset", "restored"))
    assert sorted(preset.server.client_levels) == [0, 0, 0, 0, 0, 0, 1, 2, 3, 4]
    assert restored.server.client_levels == [4] * 10
    assert preset.recipe.method.coordination == restored.recipe.method.coordination  # the period, too


@pytest.mark.parametrize("state", ["preset", "restored"])
def test_a_filled_buffer_is_what_a_run_would_hold(state: str) -> None:
    case = Case(clients=30, state=state)
    filled, run = run_of(case).assembly.server, run_of(case)
    fill(filled, case)
    while len(run.assembly.server.buffer) < 30:
        run.turn(10)
    lived = run.assembly.server.buffer
    for client, c in filled.buffer.items():
        assert (c.level, len(c.values), c.levels is None) == (
            lived[client].level,
            len(lived[client].values),
            lived[client].levels is None,
        )
        assert c.version <= 0
    assert len({c.version for c in filled.buffer.values()}) > 1


def test_rows_say_what_was_measured() -> None:
    small, large = Case(clients=10), Case(clients=30)
    runs = scaling.time_pair(small, large, updates=10, turn=10)
    (row,) = scaling.time_rows(small, large, runs)
    assert 0 < float(str(row["all but SGD, ms"])) < float(str(row["everything, ms"]))
    assert row["limit"] == 1.3
    raw = list(scaling.part_rows((small, large), runs))
    assert {part["part"] for part in raw} >= {SGD, "merge", "network", "fleet"}
    assert not scaling.judged(Case(clients=10_000, state="restored"))
