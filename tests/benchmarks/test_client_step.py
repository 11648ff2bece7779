import client_step
import pytest
import torch
from client_step import Case

from fedgmr.training.sparse.cut import SparseCutter


@pytest.fixture(scope="module")
def every() -> list[Case]:
    sparse, every = client_step.cases(0.12)
    assert sparse == 0.12
    return every


def test_every_density_of_both_methods_is_there(every: list[Case]) -> None:
    found = [(case.method, case.levels, case.density) for case in every]
    assert found[0] == ("dense", "", 1.0)
    densities = client_step.DENSITIES
    maps = (("FedGMR", "first map"), ("FedGMR", "Taylor map"), ("HeteroFL", ""))
    assert found[1:] == [(*method, density) for method in maps for density in densities]
    assert len({id(case.executor.workspace) for case in every}) == len(every)


def test_what_is_sparse(every: list[Case]) -> None:
    built = {case.name for case in every if case.build() is not None}
    assert built == {f"FedGMR {levels} map {density}" for levels in ("first", "Taylor") for density in (0.1, 0.05)}
    case = next(case for case in every if case.name == "FedGMR first map 0.05")
    workspace = case.executor.workspace
    assert isinstance(workspace.cutter, SparseCutter)
    step = case.step()
    before = workspace.open().flat.clone()
    step()
    assert len(before) == 181_182 + 321_126
    assert not torch.equal(before, workspace.open().flat)


def test_ratios_by_hand(every: list[Case]) -> None:
    cases = [every[0], next(case for case in every if case.name == "FedGMR first map 0.05")]
    times = {"step dense  1.0": 0.020, "task dense  1.0": 0.1, "step FedGMR first map 0.05": 0.0078}
    times |= {"build FedGMR first map 0.05": 0.005, "task FedGMR first map 0.05": 0.05}
    rows, good = client_step.rows_of(cases, times)
    assert good  # (7.8 + 5 / 5) / 20 = 0.44
    assert (rows[1]["step + build / 5, of dense"], rows[1]["task, of dense"]) == ("0.440", "0.500")
    assert not client_step.rows_of(cases, times | {"step FedGMR first map 0.05": 0.0082})[1]
