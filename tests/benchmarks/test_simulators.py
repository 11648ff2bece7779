"""The plain loop and fedgmr do the same work, and the clock counts what it should."""

import sys
from pathlib import Path

import bare
import numpy as np
import plan
import pytest
import simulators
import torch
import with_fedgmr
from contenders import Contender, Entry, gate
from workload import NETWORKS, Plan, Setting


@pytest.fixture(scope="module", params=["cifar_cnn", "small_cnn"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Six users with ten images each, two of them in a round: somebody is drawn again within four rounds."""
    root = tmp_path_factory.mktemp("simulators")
    workload = plan.Workload(network=request.param, cohort=2, batch=5, steps=2, users=6, images_per_user=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDGMR_DATA", raising=False)
        data = plan.write_images(root / "images", 61, ["chw", "hwc"], seed=3)
    plan.write_plan(root / "plan", workload, root / "images", rounds=4, data=data, seed=3)
    return Plan.read(root / "plan", torch.float64)


def setting(written: Plan, layout: str, out: Path) -> Setting:
    return Setting(
        plan=written,
        gate=written,
        out=out,
        layout=layout,
        threads=1,
        processes=1,
        device="cpu",
        executor="sequential",
    )


def test_the_plan_holds_what_the_workload_says(written: Plan) -> None:
    assert written.clients.shape == (4, 2)
    assert written.samples.shape == (4, 2, 2, 5)
    assert len(np.unique(written.clients)) < written.clients.size
    assert "synthetic" in written.data
    first_epoch = written.samples[0].reshape(2, 10)
    assert all(len(np.unique(samples)) == 10 for samples in first_epoch)
    assert torch.equal(written.images("hwc").permute(0, 3, 1, 2), written.images("chw"))
    assert len(written.weights) == {"cifar_cnn": 1_626_442, "small_cnn": 62_006}[written.network]
    assert list(NETWORKS) == ["cifar_cnn", "small_cnn"]


@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_fedgmr_ends_where_the_plain_loop_does(written: Plan, layout: str, tmp_path: Path) -> None:
    chosen = setting(written, layout, tmp_path / "weights.npy")
    loop = bare.Federation(written, chosen, dropout=False)
    for _ in range(4):
        loop.run_round()
    expected = torch.cat([part.reshape(-1) for part in loop.globals])
    result = with_fedgmr.run(written, chosen, rounds=4, dropout=False)
    found = torch.cat([part.reshape(-1) for part in result.model.values()])
    assert result.summary["ticks"] == 4
    assert float((found - expected).norm() / expected.norm()) < 1e-12
    assert float((expected - torch.from_numpy(written.weights)).norm()) > 1e-3


def test_a_contender_takes_turns(written: Plan, tmp_path: Path) -> None:
    entry = Entry(system="bare", setting="1 thread", arguments=("--threads", "1"))
    contender = Contender.start(entry, sys.executable, written.root, written.root)
    try:
        contender.take_turn(1, counts=False)
        contender.take_turn(2)
    finally:
        contender.stop()
    assert contender.process.returncode == 0
    assert gate([contender]) == [contender]
    assert contender.difference == 0
    other = Contender(entry=entry, process=contender.process, errors=contender.errors, weights=tmp_path / "other.npy")
    np.save(other.weights, np.load(contender.weights) * (1 + 2e-5))
    assert gate([contender, other]) == [contender]
    assert other.difference == pytest.approx(2e-5, rel=1e-3)
    assert len(contender.walls) == len(contender.processors) == 1
    assert simulators.ratio(contender, contender) == 1
    (row,) = simulators.raw("trivial", [contender])
    assert row["rounds"] == 2
    assert row["seconds_per_round"] == contender.walls[0] > 0
