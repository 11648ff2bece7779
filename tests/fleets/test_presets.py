"""Fleets by name: the paper's compositions and their errors."""

from collections import Counter
from dataclasses import replace

import pytest

from fedgmr.fleets.availability import Absence, DayNight
from fedgmr.fleets.drive import Drive
from fedgmr.fleets.links import Link
from fedgmr.fleets.presets import CLASSES, CONV2_PARAMETERS, FleetSettings
from fedgmr.fleets.spread import spread_links
from fedgmr.recipe import recipe_from

DENSITIES = (1.0, 0.5, 0.2, 0.1, 0.05)


@pytest.mark.parametrize(
    ("name", "clients", "counts"),
    [
        ("high", 10, (1, 1, 1, 1, 6)),
        ("medium", 10, (1, 1, 2, 3, 3)),
        ("low", 10, (2, 2, 2, 2, 2)),
        ("high", 30, (3, 3, 3, 3, 18)),
        ("medium", 30, (3, 3, 6, 9, 9)),
        ("low", 30, (6, 6, 6, 6, 6)),
        ("high", 5, (1, 0, 0, 0, 4)),
        ("low", 5, (1, 1, 1, 1, 1)),
        ("low", 7, (2, 2, 1, 1, 1)),  # 1.4 each: the faster classes first
        ("high", 13, (2, 1, 1, 1, 8)),  # 1.3 four times, 7.8
    ],
)
def test_compositions(name: str, clients: int, counts: tuple[int, ...]) -> None:
    links = FleetSettings(name=name, clients=clients).resolved_links()  # type: ignore[arg-type]
    assert len(links) == clients
    have = Counter(link.density for link in links)
    assert tuple(have[density] for density in DENSITIES) == counts
    assert [link.density for link in links] == sorted((link.density for link in links), reverse=True), "fastest first"


def test_five_medium_clients() -> None:
    links = FleetSettings(name="medium", clients=5).resolved_links()
    assert len(links) == 5
    assert links[0].density == 1.0


def test_every_class_needs_the_same_time_for_its_sub_model() -> None:
    assert [(link.down, link.up) for link in CLASSES] == [(20, 5), (10, 2.5), (4, 1), (2, 0.5), (1, 0.25)]
    for link in CLASSES:
        assert link.density is not None
        assert link.density / link.up == pytest.approx(1 / 5)
        assert link.density / link.down == pytest.approx(1 / 20)


def test_ten_clients_unless_told_otherwise() -> None:
    assert len(FleetSettings().resolved_links()) == 10
    assert FleetSettings().name == "high"


def test_own_links() -> None:
    links = (Link(down=3.0, up=1.0, density=0.5), Link(down=8.0, up=2.0))
    settings = FleetSettings(name="custom", links=links)
    assert [link.density for link in settings.resolved_links()] == [0.5, 1.0]
    assert [link.down for link in settings.resolved_links()] == [3.0, 8.0]


def test_own_densities() -> None:
    links = FleetSettings(name="high", clients=5, densities=(1.0, 0.2, 0.2, 0.1, 0.1)).resolved_links()
    assert [link.density for link in links] == [1.0, 0.2, 0.2, 0.1, 0.1]
    assert [link.up for link in links] == [5.0, 0.25, 0.25, 0.25, 0.25]


def test_scale() -> None:
    assert FleetSettings().rate_scale(10) == 1.0
    assert FleetSettings(scale=0.25).rate_scale(10) == 0.25
    assert CONV2_PARAMETERS == 6_603_710
    assert FleetSettings(scale="model").rate_scale(660_371) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"name": "custom"}, "name is 'custom' and links are not given: links go with name: custom"),
        ({"name": "high", "links": (Link(down=1.0, up=1.0),)}, "name is 'high' and links are given"),
        ({"name": "custom", "links": ()}, r"links is \[\]: give at least one client"),
        (
            {"name": "custom", "clients": 3, "links": (Link(down=1.0, up=1.0),)},
            "clients is 3 and there are 1 links: give one link per client",
        ),
    ],
)
def test_contradictions(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        FleetSettings(**settings)  # type: ignore[arg-type]


def test_as_many_densities_as_clients() -> None:
    with pytest.raises(ValueError, match=r"fleet\.densities has 2 entries: give one per client, 10"):
        FleetSettings(densities=(1.0, 0.5)).resolved_links()


def test_absences_of_clients_there_are() -> None:
    def absent(client: int) -> FleetSettings:
        return FleetSettings(absences=(Absence(clients=(0, client), start=1.0, end=2.0),))

    assert len(absent(9).resolved_links()) == 10
    with pytest.raises(ValueError, match=r"fleet\.absences names client 10: give numbers from 0 to 9"):
        absent(10).resolved_links()


def test_fleets_that_vary() -> None:
    links = {name: FleetSettings(name=name).resolved_links() for name in ("lte", "commute", "day_night")}  # type: ignore[arg-type]
    assert {link.trace for link in links["lte"]} == {Drive()}
    assert {link.trace for link in links["commute"]} == {Drive(seconds=1020, rest=2040)}
    assert {link.trace for link in links["day_night"]} == {None}
    assert all([link.down for link in found] == [link.down for link in spread_links(10)] for found in links.values())
    night = DayNight(day=0.4, night=0.15, spread=0.2)
    assert FleetSettings(name="day_night").presence(3).varies
    assert FleetSettings(name="day_night").sealed() == FleetSettings(name="day_night", availability=night)
    assert FleetSettings(name="lte").sealed() == FleetSettings(name="lte", trace=Drive()), "a resolved recipe says it"
    assert not FleetSettings(name="lte").presence(3).varies
    assert len(FleetSettings(name="lte", clients=23).resolved_links()) == 23


def test_given_traces_and_nights_replace_those_of_the_name() -> None:
    assert FleetSettings(name="lte", trace=Drive(pool=1)).resolved_links()[3].trace == Drive(pool=1)
    assert FleetSettings(name="high", trace=Drive()).resolved_links()[9] == replace(CLASSES[4], trace=Drive())
    assert FleetSettings(name="day_night", availability=DayNight()).sealed().availability == DayNight()


def test_another_name_drops_what_the_first_one_means() -> None:
    data = {"seconds": 9, "task": "mnist5k", "method": "fedavg", "fleet": "lte"}
    tuned = recipe_from({**data, "methods": {"fedavg": {"fleet": {"name": "low"}}}})
    assert {link.trace for link in tuned.fleet.resolved_links()} == {None}
    assert {link.trace for link in recipe_from(data).fleet.resolved_links()} == {Drive()}
