import ims_cost
import pytest
from torch import Tensor

from fedgmr.fleets.network import NetworkSettings
from fedgmr.submodels.layout import Layout


@pytest.fixture(scope="module")
def conv2() -> tuple[Layout, Tensor]:
    return ims_cost.conv2()


def test_one_round_by_hand(conv2: tuple[Layout, Tensor]) -> None:
    """Conv-2 has 6,601,504 weights (25.18 MiB) and 2,206 biases; a bitmap is 0.787 MiB."""
    weights, biases, bitmap = 25.182739, 2206 * 4 / 2**20, 6601504 / 8 / 2**20
    full = weights + biases + bitmap
    # One full client and four at 0.05: two increments with IMS, five objects without; then compute and upload.
    increments = weights + 2 * (bitmap + biases)
    objects = 1.2 * weights + 5 * (bitmap + biases)
    quiet = NetworkSettings(sizes="paper", noise=0.0)
    for ims, sent in ((True, increments), (False, objects)):
        seconds = ims_cost.seconds_of(*conv2, fleet_name="high", clients=5, ims=ims, rounds=2, settings=quiet)
        assert seconds / 2 == pytest.approx(sent / 10 + 0.5 + full / 5, abs=1e-4)


@pytest.mark.parametrize(("sending", "fleet", "clients"), [("IMS", "low", 10), ("w/o IMS", "high", 30)])
def test_near_the_paper(conv2: tuple[Layout, Tensor], sending: str, fleet: str, clients: int) -> None:
    rounds = 40
    ours = ims_cost.seconds_of(*conv2, fleet_name=fleet, clients=clients, ims=sending == "IMS", rounds=rounds)
    assert ours * 1000 / rounds == pytest.approx(ims_cost.PAPER[sending, fleet][clients], rel=ims_cost.LIMIT)
