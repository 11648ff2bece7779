import pytest
import scaling
import torch
from crowd import SGD, Case, Run


@pytest.mark.parametrize("method", ["fedgmr", "fedavg"])
def test_turns_do_not_change_a_run(method: str) -> None:
    case = Case(clients=10, method=method)
    whole, turned = Run.of(case), Run.of(case)
    whole.turn(40)
    while turned.done < 40:
        turned.turn(1)
    assert len(turned.turns) >= 4
    assert sum(turned.updates) == turned.done == whole.done
    assert torch.equal(turned.assembly.server.model, whole.assembly.server.model)


def test_states_last() -> None:
    preset, restored = (Run.of(Case(clients=10, state=state)).assembly for state in ("preset", "restored"))
    assert sorted(preset.server.client_levels) == [0, 0, 0, 0, 0, 0, 1, 2, 3, 4]
    assert restored.server.client_levels == [4] * 10
    assert preset.recipe.method.coordination == restored.recipe.method.coordination  # the period, too


def test_every_client_has_an_update_in_the_buffer() -> None:
    assert sorted(Run.of(Case(clients=30)).assembly.server.buffer) == list(range(30))
    assert not Run.of(Case(clients=30, method="fedavg")).assembly.server.buffer


def test_rows_say_what_was_measured() -> None:
    small, large = Case(clients=10), Case(clients=30)
    runs = scaling.time_pair(small, large, updates=10, turn=10)
    (row,) = scaling.time_rows(small, large, runs)
    assert row["clients"] == 30
    assert 0 < float(str(row["all but SGD, ms"])) < float(str(row["everything, ms"]))
    raw = list(scaling.part_rows((small, large), runs))
    assert {entry["part"] for entry in raw} >= {SGD, "merge", "network", "fleet"}
