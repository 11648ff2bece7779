import pytest
import scaling
import torch
from scaling import Case, Run


def run_of(case: Case) -> Run:
    return Run(scaling.objects(case, scaling.synthetic(case.net, case.clients)))


@pytest.mark.parametrize("coordination", ["semi_asynchronous", "synchronous"])
def test_turns_do_not_change_a_run(coordination: str) -> None:
    case = Case(net="small", clients=10, state="preset", coordination=coordination, updates=40)
    whole, turned = run_of(case), run_of(case)
    whole.turn(40)
    while turned.done < 40:
        turned.turn(1)
    assert len(turned.turns) >= 4
    assert sum(turned.updates) == turned.done == whole.done
    assert torch.equal(turned.assembly.server.model, whole.assembly.server.model)


def test_states_last() -> None:
    preset = run_of(Case(net="small", clients=10, state="preset", updates=1)).assembly
    restored = run_of(Case(net="small", clients=10, state="restored", updates=1)).assembly
    assert sorted(preset.server.client_levels) == [0, 0, 0, 0, 0, 0, 1, 2, 3, 4]
    assert restored.server.client_levels == [4] * 10
    assert preset.recipe.method.coordination == restored.recipe.method.coordination  # the period, too


def test_footprint_by_hand() -> None:
    run = run_of(Case(net="small", clients=10, state="restored", updates=1))
    run.turn(1)
    server = run.assembly.server
    found, vector = scaling.footprint(server), 4 * 100424
    assert found.buffered == run.done * vector
    assert found.models == 2 * vector  # those who have not answered yet still work on the first model
    assert found.slot == 4 * vector
    assert found.bound == 1.2 * (found.buffered + 6 * vector) + 200e6


def test_rows_say_what_was_measured() -> None:
    small = Case(net="small", clients=10, state="preset", updates=10)
    large = Case(net="small", clients=30, state="preset", updates=10)
    runs = scaling.time_pair(small, large, turn=10)
    everything, rest = scaling.time_rows(small, large, runs)
    assert everything["cost per update of"] == "everything"
    assert 0 < float(str(rest["30 clients, ms"])) < float(str(everything["30 clients, ms"]))
    raw = list(scaling.part_rows((small, large), runs))
    assert {row["part"] for row in raw} >= {scaling.SGD, "merge", "network", "fleet"}
