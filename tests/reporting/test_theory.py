"""The terms of the convergence bound by hand: coverage, factors, arrivals, staleness, sentences, and runs as kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedgmr.reporting.arrivals import Merge, Participation
from fedgmr.reporting.coverage import Coverage
from fedgmr.reporting.theory import Terms, Theory, theory_of
from fedgmr.reporting.theory_words import MEANINGS, account, advice, bounding
from fedgmr.settings.text import read_mapping

ROOT = Path(__file__).parents[2]
LADDER = (0.05, 0.1, 0.2, 0.5, 1.0)
HIGH = [4, 3, 2, 1, 0, 0, 0, 0, 0, 0]  # the paper's High fleet, client by client
RECIPE: dict[str, Any] = {
    "method": {
        "ladder": list(LADDER),
        "staleness": {"kind": "polynomial", "alpha": 0.5},
        "buffer": {"keep": True, "aging": True},
        "aggregation": {"kind": "mask_aware", "over": "buffer"},
    }
}


def row(levels: list[int], **fields: Any) -> dict[str, Any]:
    clients = len(levels)
    given = {"tick": 0, "updates": [0] * clients, "staleness": [None] * clients, **fields}
    return {"level": levels, "density": [LADDER[level] for level in levels], **given}


def terms_of(levels: list[int], recipe: dict[str, Any] = RECIPE, **fields: Any) -> Terms:
    terms = Theory(recipe).add(row(levels, **fields))
    assert terms is not None
    return terms


def with_method(**sections: Any) -> dict[str, Any]:
    return {"method": {**RECIPE["method"], **sections}}


def test_coverage_and_factors_of_the_high_fleet() -> None:
    high = Coverage.of(HIGH, 5)
    assert high.groups == (6, 1, 1, 1, 1)
    assert high.covered == (10, 4, 3, 2, 1)
    assert high.least == 1
    # With f² = density: 6/10 x 0.05 + 1/4 x 0.1 + 1/3 x 0.2 + 1/2 x 0.5 + 1/1 x 1.
    assert high.drift(LADDER) == pytest.approx(0.03 + 0.025 + 0.2 / 3 + 0.25 + 1)
    # 6/100 x 0.05 + 1/16 x 0.1 + 1/9 x 0.2 + 1/4 x 0.5 + 1.
    assert high.variance(LADDER) == pytest.approx(0.003 + 0.00625 + 0.2 / 9 + 0.125 + 1)
    # Increments 0.05, 0.05, 0.1, 0.3, 0.5 with 10, 4, 3, 2, 1 clients.
    assert high.noise(LADDER) == pytest.approx(0.005 + 0.0125 + 0.1 / 3 + 0.15 + 0.5)
    # The same increments, each shrunk to 10, 4, 3, 2, 1 tenths: f² x (c / 10)² / c.
    assert high.padded_noise(LADDER) == pytest.approx((0.5 + 0.2 + 0.3 + 0.6 + 0.5) / 100)
    assert high.whole.padded_noise(LADDER) == high.whole.noise(LADDER) == pytest.approx(0.1)
    assert high.untrained(LADDER) == 0


def test_factors_where_all_are_alike() -> None:
    whole = Coverage.of([4] * 10, 5)
    assert Coverage.of(HIGH, 5).whole == whole
    assert whole.factors(LADDER) == {"drift": 1.0, "variance": 0.1, "noise": 0.1}
    # All at one level: c* is the number of clients, so drift is f² itself, and grows with the density.
    assert [Coverage.of([level] * 4, 5).drift(LADDER) for level in range(5)] == list(LADDER)
    tenth = Coverage.of([1] * 4, 5)
    assert tenth.least == 0
    assert tenth.untrained(LADDER) == pytest.approx(0.9)
    assert tenth.noise(LADDER) == pytest.approx(0.1 / 4)


def test_what_one_restoration_changes() -> None:
    high = Coverage.of(HIGH, 5)
    # A second whole client: the top group's summand falls from 1/1 to 2/4, and the group at 0.5 (1/4 x 0.5) is gone.
    second = high.raised(3)
    assert second.groups == (6, 1, 1, 0, 2)
    assert second.variance(LADDER) - high.variance(LADDER) == pytest.approx(-0.625)
    assert second.noise(LADDER) - high.noise(LADDER) == pytest.approx(-0.25)
    # A slow client: 6/10 x 0.05 + 1/4 x 0.1 become 5/10 x 0.05 + 2/5 x 0.1, so the bound grows, the noise does not.
    slow = high.raised(0)
    assert slow.drift(LADDER) - high.drift(LADDER) == pytest.approx(0.065 - 0.055)
    assert slow.variance(LADDER) - high.variance(LADDER) == pytest.approx(0.0025 + 0.008 - 0.003 - 0.00625)
    assert slow.noise(LADDER) - high.noise(LADDER) == pytest.approx(0.05 / 5 - 0.05 / 4)
    for level in range(4):
        assert high.raised(level).noise(LADDER) < high.noise(LADDER)


def test_no_group_is_larger_than_the_coverage_of_its_least_trained_coordinate() -> None:
    coverage = Coverage.of(HIGH, 5)
    assert all(held <= covered for held, covered in zip(coverage.groups, coverage.covered, strict=True))


def merge_of(*updates: tuple[float, float]) -> Merge:
    """Of updates at level 0 with these weights, each in this share of the merges."""
    return Merge.of([(0, 0, weight, share) for weight, share in updates], 2)


def test_effective_number_of_updates() -> None:
    assert merge_of().effective() is None
    assert merge_of(*[(0.3, 1.0)] * 7).effective() == pytest.approx(7)
    assert merge_of((1.0, 1.0), (0.5, 1.0)).effective() == pytest.approx(1.5**2 / 1.25)
    assert merge_of((1.0, 1.0), (0.0, 1.0)).effective() == pytest.approx(1)
    # Both in every second merge: one update in a merge on average.
    assert merge_of((1.0, 0.5), (0.5, 0.5)).effective() == pytest.approx(1)
    assert merge_of((1.0, 1.0), (1.0, 1.0), (1.0, 0.5)).effective() == pytest.approx(2.5)
    assert merge_of((1.0, 0.1)).effective() == pytest.approx(0.1)
    both = Merge.of([(0, 3, 0.5, 1.0), (0, 0, 1.0, 1.0), (1, 2, 1.0, 1.0)], 2)
    assert (both.effective(1), both.effective()) == (1.0, pytest.approx(2.5**2 / 2.25))
    assert both.staleness == (pytest.approx(4.5 / 1.5), 4.0)  # (0.5 x 9 + 1 x 0) / 1.5


def test_participation_by_hand() -> None:
    # Two, four and six updates: 1, 2 and 3 while the slowest sends one.
    sent = Participation.of([2, 4, 6], [0, 1, 1], 2)
    assert sent is not None
    assert sent.mean == (2.0, 2.5)
    assert sent.skew == pytest.approx((2 / 3, 0.25))  # (1 + 0 + 1) / 3 and (0.25 + 0.25) / 2
    assert sent.dilution == 0.5
    assert Participation.of([2, 0], [0, 1], 2) is None
    even = Participation.of([3, 3], [0, 0], 2)
    assert even is not None
    assert (even.mean, even.skew, even.dilution) == ((1.0, None), (0.0, None), 1.0)


def test_a_row_of_two_clients() -> None:
    terms = terms_of([0, 4], staleness=[3, 0])
    # Weights (1 + 3)^-1/2 = 0.5 and 1.
    assert terms.effective == pytest.approx(1.5**2 / 1.25)
    assert terms.effective_whole == 1
    assert terms.staleness == (9.0, None, None, None, 0.0)
    assert terms.stale_drift == pytest.approx(0.5 * 0.05 * 9)
    assert terms.numbers()["average density"] == pytest.approx(0.525)
    assert not terms.measured
    hinge = terms_of([0, 4], with_method(staleness={"kind": "hinge", "a": 1.0, "b": 2.0}), staleness=[3, 0])
    assert hinge.effective == pytest.approx(1.5**2 / 1.25)  # 1 / (1 x (3 - 2) + 1) = 0.5
    own = terms_of([0, 4], with_method(staleness={"kind": "sensors:mine"}), staleness=[3, 0])
    assert (own.effective, own.stale_drift) == (None, pytest.approx(0.5 * 0.05 * 9))
    fixed = terms_of([0, 4], with_method(buffer={"keep": True, "aging": False}), staleness=[3, 0])
    assert fixed.effective is None, "the row does not say how old the update was when it came"


def test_measured_shares_take_the_place_of_the_density() -> None:
    shares = {
        name: dict(zip(("level 0.05", "level 0.1", "level 0.2", "level 0.5"), values, strict=True))
        for name, values in {"update": (0.5, 0.6, 0.8, 0.9), "norm": (0.25, 0.5, 0.75, 1.0)}.items()
    }
    theory = Theory(RECIPE)
    views = {"padded": {"accuracy": 0.5, "distance": 0.125}}
    terms = theory.add(row(HIGH, shares=shares, views=views))
    assert terms is not None
    assert (terms.measured, terms.energy) == (True, (0.5, 0.6, 0.8, 0.9, 1.0))
    assert terms.coverage.noise(terms.energy) == pytest.approx(0.05 + 0.025 + 0.2 / 3 + 0.05 + 0.1)
    numbers = terms.numbers()
    assert numbers["norm outside level 0.1"] == 0.5
    assert numbers["distance of padded and merged"] == 0.125
    later = theory.add(row(HIGH, shares={"norm": shares["norm"]}))
    assert later is not None
    assert later.energy == terms.energy, "as measured last, where no fresh update was there"


def test_the_window_is_as_short_as_everybody_s_update_allows() -> None:
    theory = Theory(RECIPE)
    found = []
    for tick, updates in enumerate([[0, 0], [1, 0], [2, 1], [3, 1], [5, 2]]):
        terms = theory.add(row([0, 4], tick=tick, updates=updates))
        assert terms is not None
        found.append(terms.participation and terms.participation.mean[0])
    # Until row 1 not everybody has sent. Row 2 since row 1: 1, 1. Row 3 since row 1: 2, 1. Row 4 since row 3: 2, 1.
    assert found == [None, None, 1.0, 1.5, 1.5]


def test_over_arrivals_a_merge_has_those_who_came() -> None:
    theory = Theory(with_method(aggregation={"kind": "mask_aware", "over": "arrivals"}))
    theory.add(row([4, 4], tick=0))
    terms = theory.add(row([4, 4], tick=10, updates=[10, 1], staleness=[0, 8]))
    assert terms is not None
    # In 1 and in 0.1 of the merges, with weights 1 and 1/3: (1 + 1/30)² / (1 + 1/90).
    assert terms.effective == pytest.approx((31 / 30) ** 2 / (91 / 90))


def test_sentences_name_the_term_and_the_client() -> None:
    terms = terms_of(HIGH)
    name, sentence = bounding(terms)
    assert name == "variance"
    # 1.15647 against 0.1; of it 1 is the whole client's.
    assert "variance factor is 11.6 times" in sentence
    assert "86% of it comes from 1 client at density 1," in sentence
    assert "from density 0.5 to 1 would lower the variance factor most, by 54%" in advice(terms)
    whole = terms_of([4] * 3)
    assert bounding(whole)[0] == ""
    assert advice(whole) == "There is nobody left to restore."
    tenth = terms_of([1] * 3)
    assert "90% of a gradient lies in coordinates that nobody trains" in bounding(tenth)[1]
    told = account(terms)
    assert [level["coverage"] for level in told["levels"]] == [10, 4, 3, 2, 1]
    assert [move["from"] for move in told["moves"]] == [0.05, 0.1, 0.2, 0.5]
    assert {term["name"]: term["whole"] for term in told["terms"]}["variance factor"] == pytest.approx(0.1)


def test_every_number_has_a_meaning() -> None:
    numbers = terms_of([0, 4], staleness=[3, 0]).numbers()
    assert {name for name in numbers if " level " not in name} <= set(MEANINGS)
    text = (ROOT / "docs" / "theory.md").read_text()
    assert [name for name in MEANINGS if name not in text] == []


def test_recipes_and_rows_that_do_not_fit() -> None:
    assert Theory({}).add(row([0, 4])) is None
    assert Theory(RECIPE).add({**row([0, 4]), "level": [0, None]}) is None
    for ladder in ([1.0, 0.5], [0.0, 1.0], [0.5, 2.0], "0.5"):
        densities = [0.5, 1.0]
        terms = Theory({"method": {"ladder": ladder}}).add({**row([0, 4]), "level": [0, 1], "density": densities})
        assert terms is not None, "the rows' own densities"
        assert terms.ladder == (0.5, 1.0)


def test_a_method_without_sub_models() -> None:
    terms = Theory(RECIPE).add({**row([0, 0]), "density": [1.0, 1.0]})
    assert terms is not None
    assert terms.ladder == (1.0,)
    assert terms.coverage.factors(terms.energy) == {"drift": 1.0, "variance": 0.5, "noise": 0.5}


@pytest.mark.parametrize("name", ["fair-femnist-fedgmr-s0-e2bbd2fa683b", "cifar10-fedgmr-s0-051a11807e90"])
def test_kept_runs_without_recorded_shares_have_all_other_terms(name: str) -> None:
    run = ROOT / "results" / name
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:20]]
    assert "shares" not in rows[-1]
    terms = theory_of(rows, read_mapping(run / "recipe.yaml"))[-1]
    assert terms is not None
    assert terms.coverage.covered == (10, 4, 3, 2, 1)
    told = {term["name"] for term in account(terms)["terms"]}
    assert told == set(MEANINGS) - {"distance of padded and merged"}
