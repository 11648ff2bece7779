"""Participation: the size of a cohort, and every policy on a fleet small enough to be worked out by hand."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedgmr.exchange import ClientProfile, ClientTask, News, Update
from fedgmr.recipe import foreign_recipe, recipe_from
from fedgmr.server import Server, ServerRules
from fedgmr.server.coordination import Fastest
from fedgmr.server.participation import ByData, FastestFirst, Known, Oort, Participation, Policy, RoundRobin
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain
from fedgmr.submodels.layout import Layout


def draw(
    rule: Participation, free: list[int], *, in_flight: int = 0, seed: int = 0, tick: int = 0, always: int = 0
) -> list[int]:
    return rule.draw(free, Known(clients=10, seed=seed, tick=tick), in_flight=in_flight, always=always)


FREE = list(range(10))


def test_everybody_takes_part_unless_told_otherwise() -> None:
    assert draw(Participation(), [7, 2, 5], in_flight=4) == [7, 2, 5]


@pytest.mark.parametrize(
    ("rule", "size"),
    [
        (Participation(count=3), 3),
        (Participation(count=10), 10),
        (Participation(count=99), 10),
        (Participation(fraction=0.3), 3),
        (Participation(fraction=0.31), 4),
        (Participation(fraction=0.01), 1),
        (Participation(fraction=1.0), 10),
    ],
)
def test_the_size_of_a_cohort(rule: Participation, size: int) -> None:
    chosen = draw(rule, FREE)
    assert len(chosen) == len(set(chosen)) == size
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(FREE)


@pytest.mark.parametrize(("fraction", "clients", "size"), [(0.07, 100, 7), (0.28, 25, 7), (0.55, 100, 55)])
def test_a_share_is_not_rounded_up_by_a_rounding_error(fraction: float, clients: int, size: int) -> None:
    assert fraction * clients > size
    chosen = Participation(fraction=fraction).draw(range(clients), Known(clients=clients), in_flight=0)
    assert len(chosen) == size


def test_some_clients_are_in_every_cohort() -> None:
    cohorts = [draw(Participation(count=4), FREE, tick=tick, always=2) for tick in range(20)]
    assert all(cohort[:2] == [0, 1] and len(cohort) == 4 for cohort in cohorts)
    assert {client for cohort in cohorts for client in cohort} == set(FREE)
    assert draw(Participation(count=4), [1, 5, 6, 7], in_flight=3, always=2) == [1]
    assert draw(Participation(count=4), [1, 5, 6, 7], in_flight=4, always=2) == [1], "one more than the cohort"


def test_a_cohort_is_filled_up() -> None:
    rule = Participation(count=4)
    assert len(draw(rule, FREE[:7], in_flight=3)) == 1
    assert draw(rule, FREE[:6], in_flight=4) == []
    assert draw(rule, FREE[:5], in_flight=5) == [], "too many at work already"
    assert draw(rule, [8, 3], in_flight=2) == [8, 3], "as many free as places"
    # The share is of the whole fleet, not of the free clients.
    assert len(draw(Participation(fraction=0.5), FREE[:6], in_flight=4)) == 1


def test_a_cohort_belongs_to_seed_and_tick() -> None:
    rule = Participation(count=3)
    assert draw(rule, FREE, seed=1, tick=2) == draw(rule, FREE, seed=1, tick=2)
    drawn = {tuple(draw(rule, FREE, seed=seed, tick=tick)) for seed in range(4) for tick in range(5)}
    assert len(drawn) > 10
    assert {client for cohort in drawn for client in cohort} == set(FREE), "everybody's turn comes"


def test_count_or_fraction() -> None:
    with pytest.raises(ValueError, match=r"count is 3 and fraction is 0\.5: give one"):
        Participation(count=3, fraction=0.5)


def test_the_uniform_draw_is_pinned() -> None:
    """Kept runs have drawn these clients."""
    rule = Participation(count=3)
    assert [draw(rule, FREE, seed=1, tick=tick) for tick in range(3)] == [[0, 5, 7], [0, 1, 8], [1, 6, 9]]
    some = [draw(rule, [1, 2, 4, 8, 9], in_flight=1, seed=7, tick=tick) for tick in range(3)]
    assert some == [[2, 4], [4, 9], [2, 8]]


def test_the_fastest_are_those_with_the_shortest_tasks() -> None:
    known = Known(clients=5, seconds={0: 9.0, 1: 3.0, 2: 5.0, 4: 3.0})
    assert FastestFirst().choose([0, 1, 2, 4], 3, known) == [1, 4, 2]
    assert FastestFirst().choose([0, 2, 4], 1, known) == [4], "client 1 is at work"
    assert FastestFirst().choose([0, 1, 2, 3, 4], 2, known) == [3, 1], "nobody knows how long client 3 takes"


def test_samples_decide_the_probability() -> None:
    # One place: 1/4, 1/4, 1/2. Two places: client 2 comes first with 1/2, or second after one of the others:
    # 1/2 + 2 x 1/4 x 2/(1 + 2) = 5/6; the others share the rest, 7/12 each.
    ticks = 3000
    for places, shares in ((1, [1 / 4, 1 / 4, 1 / 2]), (2, [7 / 12, 7 / 12, 5 / 6])):
        counts: Counter[int] = Counter()
        for tick in range(ticks):
            chosen = ByData().choose([0, 1, 2], places, Known(clients=3, tick=tick, samples=[30.0, 30.0, 60.0]))
            assert len(set(chosen)) == places
            counts.update(chosen)
        assert [counts[client] / ticks for client in range(3)] == pytest.approx(shares, abs=0.03)


def test_a_client_whose_samples_are_not_known_counts_as_the_average() -> None:
    assert Known(clients=3, samples=[10.0, 0.0, 50.0]).counts([0, 1, 2]) == [10.0, 30.0, 50.0]
    assert Known(clients=2, samples=[0.0, 0.0]).counts([1]) == [1.0]


def oort_fleet(tick: int = 0) -> Known:
    """Four clients that were asked at tick 0.

    client  samples  loss  seconds   samples x loss  / 100   T = median = 15 s      utility at tick 0
    0       100      1.0   10        100             1       not slower             1
    1        50      2.0   40        100             1       (15/40)^2 = 0.140625   0.140625
    2       100      0.5    5         50             0.5     not slower             0.5
    3        10      4.0   20         40             0.4     (15/20)^2 = 0.5625     0.225
    """
    return Known(
        clients=4,
        tick=tick,
        samples=[100.0, 50.0, 100.0, 10.0],
        losses={0: 1.0, 1: 2.0, 2: 0.5, 3: 4.0},
        seconds={0: 10.0, 1: 40.0, 2: 5.0, 3: 20.0},
        asked={0: 0, 1: 0, 2: 0, 3: 0},
    )


USEFUL = Oort(explore=0.0, least=0.0)


def test_the_utility_of_loss_and_speed() -> None:
    known, everybody = oort_fleet(), [0, 1, 2, 3]
    assert USEFUL.utilities(everybody, known) == pytest.approx([1.0, 0.140625, 0.5, 0.225])
    # With a preferred time of 20 s client 1 alone is slower: 20/40. Penalty 1: to the first power; 0: no matter.
    assert replace(USEFUL, seconds=20.0, penalty=1.0).utilities(everybody, known) == pytest.approx([1, 0.5, 0.5, 0.4])
    assert replace(USEFUL, penalty=0.0).utilities(everybody, known) == pytest.approx([1, 1, 0.5, 0.4])
    # Age: at tick 3 of a client asked at tick 0, sqrt(0.1 ln 4 / 1) = 0.372330; of one asked at tick 2, over 3.
    later = replace(oort_fleet(tick=3), asked={0: 0, 2: 2})
    assert USEFUL.utilities([0, 2], later) == pytest.approx([1.372330, 1.0 * 0.5 + 0.214965], abs=1e-6)
    # One whose task was lost has age alone.
    assert USEFUL.utilities([0, 2], replace(later, losses={0: 1.0}))[1] == pytest.approx(0.214965, abs=1e-6)


def test_the_largest_utilities_are_clipped() -> None:
    # 21 clients that learn 1, 2, ..., 20 and 1000: the quantile 0.95 is entry 0.95 x 20 = 19 of 0 to 20, which is 20.
    losses = {client: float(client + 1) for client in range(20)} | {20: 1000.0}
    known = Known(clients=21, samples=[1.0] * 21, losses=losses, asked=dict.fromkeys(range(21), 0))
    utilities = USEFUL.utilities(range(21), known)
    assert utilities[18:] == pytest.approx([0.95, 1.0, 1.0])


def test_a_loss_without_measure_ends_no_run() -> None:
    # 100 samples x 1.7e308 is more than a float holds; the others have nothing beside it.
    known = replace(oort_fleet(), losses={0: 1.7e308, 1: 2.0, 2: 0.5, 3: 4.0})
    assert USEFUL.utilities([0, 1, 2, 3], known) == [1.0, 0.0, 0.0, 0.0]
    assert USEFUL.choose([0, 1, 2, 3], 1, known) == [0]


def test_places_go_to_the_useful() -> None:
    # The cut is 0.95 x the utility of the last place, here far above the next one's.
    for seed in range(20):
        known = replace(oort_fleet(), seed=seed)
        assert USEFUL.choose([0, 1, 2, 3], 1, known) == [0]
        assert set(USEFUL.choose([0, 1, 2, 3], 2, known)) == {0, 2}
        assert set(USEFUL.choose([1, 2, 3], 2, known)) == {2, 3}


def test_almost_as_useful_is_drawn_by_utility() -> None:
    # 1 and 0.96 are both above the cut of 0.95; client 2 with 0.94 is not. Client 0 is drawn with 1/1.96 = 0.51.
    known = Known(clients=3, samples=[100.0, 96.0, 94.0], losses=dict.fromkeys(range(3), 1.0), asked={0: 0, 1: 0, 2: 0})
    counts = Counter(USEFUL.choose([0, 1, 2], 1, replace(known, seed=seed))[0] for seed in range(2000))
    assert counts[2] == 0
    assert counts[0] / 2000 == pytest.approx(0.51, abs=0.04)


def test_the_share_of_those_never_asked_decays() -> None:
    # Clients 0 to 19 were asked. 0.9 x 10 places = 9 at tick 0; 0.9 x 0.98^10 = 0.7354 at tick 10, so 7 or 8, 7.354 on
    # average; 0.9 x 0.98^100 = 0.119 is less than 0.2, so 2 at tick 100.
    known = Known(clients=40, losses=dict.fromkeys(range(20), 1.0), asked=dict.fromkeys(range(20), 0))

    def new(tick: int, seed: int, free: Sequence[int] = range(40)) -> int:
        chosen = Oort().choose(free, 10, replace(known, tick=tick, seed=seed))
        assert len(set(chosen)) == 10
        return sum(client >= 20 for client in chosen)

    assert {new(0, seed) for seed in range(20)} == {9}
    assert {new(100, seed) for seed in range(20)} == {2}
    some = [new(10, seed) for seed in range(400)]
    assert set(some) == {7, 8}
    assert sum(some) / 400 == pytest.approx(7.354, abs=0.08)
    assert new(0, 0, range(23)) == 3, "all that there are"
    assert new(100, 0, [0, 1, 2, *range(20, 40)]) == 7, "places that nobody else can take"


def test_the_fast_are_explored_first() -> None:
    # By 1/seconds: 1 to 1/3, so 3/4 for the first.
    known = Known(clients=2, seconds={0: 1.0, 1: 3.0})
    first = sum(Oort(explore=1.0).choose([0, 1], 1, replace(known, seed=seed)) == [0] for seed in range(2000))
    assert first / 2000 == pytest.approx(0.75, abs=0.04)


def server(policy: Policy, clients: int, count: int) -> Server:
    return Server(
        rules=ServerRules(),
        layout=Layout.of(nn.Linear(1, 1, bias=False)),
        model=torch.zeros(1),
        buffers=torch.empty(0),
        clients=[ClientProfile(density=1.0, samples=10) for _ in range(clients)],
        steps=5,
        learning_rate=lambda tick: 0.1,
        seconds=100.0,
        participation=Participation(count=count, policy=policy),
    )


def answers(tasks: Sequence[ClientTask], loss: float | torch.Tensor = 1.0) -> list[Update]:
    return [
        Update(client=task.client, version=task.version, values=torch.zeros(1), buffers=task.buffers, loss=loss)
        for task in tasks
    ]


def test_everybody_in_turn() -> None:
    at, turns = server(RoundRobin(), clients=5, count=2), []
    for tick in range(5):
        tasks = at.tasks(range(5), float(tick))
        assert [task.client for task in tasks] == sorted(task.client for task in tasks)
        turns += list(at.asked)[-2:]
        at.merge(answers(tasks), float(tick))
    assert turns == [1, 2, 3, 0, 4, 1, 2, 3, 0, 4], "the order of seed 0, twice"


def test_a_lost_turn_is_a_turn_and_an_absent_client_keeps_its_own() -> None:
    at = server(RoundRobin(), clients=5, count=2)
    assert [task.client for task in at.tasks([0, 2, 3, 4], 0.0)] == [2, 3], "1 would be the first, and is away"
    at.learn([News(client=2, lost=True), News(client=3, lost=True)])
    assert [task.client for task in at.tasks(range(5), 1.0)] == [0, 1]
    at.learn([News(client=0, lost=True), News(client=1, lost=True)])
    assert [task.client for task in at.tasks(range(5), 2.0)] == [2, 4], "1, 0 were asked after 2, 3"


def test_the_server_notes_times_and_losses() -> None:
    at = server(FastestFirst(), clients=3, count=1)
    asked = []
    for seconds in (4.0, 2.0, 3.0, 5.0, 6.0):
        (task,) = at.tasks(range(3), 0.0)
        asked.append(task.client)
        at.learn([News(client=task.client, seconds=seconds)])
        at.merge(answers([task], torch.tensor(seconds / 8)), 1.0)  # as a device has it
    # 0, 1, 2 are measured: 4, 2, 3. So 1, which takes 5 now; so 2, which takes 6.
    assert asked == [0, 1, 2, 1, 2]
    assert at.seconds_of == {0: 4.0, 1: 5.0, 2: 6.0}
    assert at.losses.known == {0: 0.5, 1: 0.625, 2: 0.375}, "of client 2's second update the device is not asked yet"
    at.tasks([0], 1.0)
    assert at.losses.known[2] == 0.75
    at.learn([News(client=1, seconds=0.0)])
    assert 0 < at.seconds_of[1] < 1e-6, "utilities divide by it"


def test_the_server_asks_the_fastest_in_every_tick() -> None:
    at = server(RoundRobin(), clients=5, count=2)
    at.rules = replace(at.rules, coordination=Fastest(clients=1))
    for _ in range(4):
        tasks = at.tasks(range(5), 0.0)
        assert (tasks[0].client, len(tasks)) == (0, 2)
        at.merge(answers(tasks, 0.5), 1.0)


@dataclass(frozen=True, kw_only=True)
class Last:
    """A user's own policy: the highest numbers."""

    kind: ClassVar[str] = "last"
    repeat: bool = False

    def choose(self, free: Sequence[int], places: int, known: Known) -> list[int]:
        return [max(free)] * places if self.repeat else sorted(free)[-places:]


def test_policies_in_recipes() -> None:
    data = {"seconds": 1.0, "task": "mnist5k", "method": "fedavg"}
    given = recipe_from({**data, "participation": {"count": 2, "policy": {"kind": "oort", "penalty": 1}}})
    assert given.participation.policy == Oort(penalty=1.0)
    assert recipe_from(plain(given)) == given
    assert "policy" not in plain(recipe_from(data), defaults=False).get("participation", {})
    own = recipe_from({**data, "participation": {"count": 2, "policy": f"{__name__}:Last"}})
    assert draw(own.participation, FREE) == [8, 9]
    with pytest.raises(SettingError, match=r"participation.policy.* not trusted here"):
        foreign_recipe(plain(own))
    assert foreign_recipe(plain(own), trust=[f"{__name__}:Last"]) == own


def test_what_a_policy_cannot_do() -> None:
    with pytest.raises(ValueError, match="policy is oort and everybody is asked: give count or fraction too"):
        Participation(policy=Oort())
    with pytest.raises(ValueError, match=r"has chosen \[9, 9\]: it must choose 2 of the free clients, each once"):
        draw(Participation(count=2, policy=Last(repeat=True)), FREE)
