"""Runs without training: the pace of the code that the paper's authors have released."""

from dataclasses import replace

import pytest
from torch import nn

from fedgmr.experiments.time_model import make_sizes, round_period, run_untrained
from fedgmr.fleets.network import Network, NetworkSettings
from fedgmr.fleets.presets import FleetSettings
from fedgmr.methods import Method, named_method
from fedgmr.recipe import recipe_from
from fedgmr.server.coordination import Fastest, Synchronous
from fedgmr.submodels.layout import Layout

LAYOUT = Layout.of(nn.Linear(40, 25, bias=False))
RELEASED = NetworkSettings(
    sizes="linear",
    sends="shared",
    server_rate=10.0,
    compute_seconds=0.5,
    noise=0.3,
    noise_on="rates",
    noise_draws=20,
    server_noise=0.1,
    merge_seconds=0.5,
)
AT_PRESETS = replace(named_method("fedgmr_without_restoration"), coordination=Fastest(grace=0.5))
# By full size in MiB (FEMNIST, CIFAR-10, ImageNet-100, StackOverflow), High with ten clients: seconds of a tick by the
# fastest client with IMS, of synchronous rounds with and without IMS, of FedAvg's rounds.
PACE = {
    25.9811: (9.09, 8.58, 10.77, 134.0),
    37.20398: (12.37, 11.85, 14.99, 192.0),
    43.1007: (14.10, 13.57, 17.20, 222.0),
    17.26: (6.54, 6.03, 7.49, 90.0),
}


def seconds_per_tick(full_size: float, method: Method, ticks: int = 400) -> float:
    settings = replace(RELEASED, full_size=full_size)
    links = FleetSettings(name="high").resolved_links()
    network = Network(settings, links, make_sizes(settings, LAYOUT), ims=method.ims, seed=0)
    return run_untrained(LAYOUT, network, method, ticks=ticks).now / ticks


@pytest.mark.parametrize("full_size", PACE)
def test_the_pace_of_the_released_code(full_size: float) -> None:
    tick, with_ims, without, fedavg = PACE[full_size]
    assert seconds_per_tick(full_size, AT_PRESETS) == pytest.approx(tick, rel=0.01)
    together = replace(AT_PRESETS, coordination=Synchronous())
    assert seconds_per_tick(full_size, together) == pytest.approx(with_ims, rel=0.01)
    assert seconds_per_tick(full_size, replace(together, ims=False)) == pytest.approx(without, rel=0.01)
    assert seconds_per_tick(full_size, named_method("fedavg")) == pytest.approx(fedavg, rel=0.01)


def test_linear_sizes_without_a_full_size_are_four_bytes_per_coordinate() -> None:
    assert make_sizes(NetworkSettings(sizes="linear"), LAYOUT).full == 4000  # type: ignore[attr-defined]


def test_the_period_has_no_noise_and_includes_the_merge() -> None:
    network = {"sizes": "linear", "full_size": 20.0, "merge_seconds": 0.25, "noise": 0.3, "server_noise": 0.1}
    recipe = recipe_from({"seconds": 1, "task": "mnist5k", "method": "fedgmr", "network": network})
    # 20 MiB leave in 2 s; half a second of training; 4 s of uploading at every link.
    assert round_period(recipe, LAYOUT) == pytest.approx(1.10 * (0.25 + 2 + 0.5 + 4))
