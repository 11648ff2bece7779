"""The simulated fleet: the clock, the order of arrivals, absences, and taking up where it was cut."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedgmr.exchange import ClientProfile, ClientTask, Update, Verdict
from fedgmr.federation import federate
from fedgmr.fleets.availability import Absence, make_presence
from fedgmr.fleets.links import Link
from fedgmr.fleets.network import Network, NetworkSettings, Trip
from fedgmr.fleets.simulated import OnLeaving, SimulatedFleet
from fedgmr.fleets.sizes import WireSizes
from fedgmr.server import Server, ServerRules
from fedgmr.server.coordination import Asynchronous, Coordination, Fastest, SemiAsynchronous, Synchronous
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap

LEVELS = LevelMap.full(4)


class Timetable:
    """A network in which each trip takes what the table says; 10 bytes down, 1 byte up."""

    varies = False

    def __init__(self, seconds: dict[int, float], merge_seconds: float) -> None:
        self.seconds, self.settings = seconds, NetworkSettings(merge_seconds=merge_seconds)
        self.server_bytes, self.uplink_free = 0, 0.0
        self.known_maps: dict[int, tuple[int, int]] = {}
        self.lost = Counter[int]()

    def send(self, tasks: Sequence[ClientTask], now: float) -> list[Trip]:
        self.server_bytes += 10 * len(tasks)
        ends = {task.client: now + self.seconds[task.client] for task in tasks}
        return [Trip(client=c, ready=now, computed=end, arrival=end, down=10, up=1) for c, end in ends.items()]


class Echo:
    """Sends every model back as it came, and remembers what was trained together."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    ahead = False

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        if tasks:
            self.batches.append([task.client for task in tasks])
        return [
            Update(
                client=task.client,
                version=task.version,
                values=task.levels.pack(task.model, task.level),
                buffers=task.buffers,
                loss=0.0,
            )
            for task in tasks
        ]


def task(client: int, first_batch: int = 0) -> ClientTask:
    return ClientTask(
        client=client,
        version=0,
        level=0,
        levels=LEVELS,
        map_version=0,
        model=torch.zeros(4),
        buffers=torch.empty(0),
        learning_rate=0.1,
        first_batch=first_batch,
    )


def fleet(
    *seconds: float,
    absences: Sequence[Absence] = (),
    merge_seconds: float = 0.0,
    on_leaving: OnLeaving = "finish",
    stops: Mapping[int, float] | None = None,
) -> SimulatedFleet:
    network = Timetable(dict(enumerate(seconds)), merge_seconds)
    presence = make_presence(None, absences, len(seconds), seed=0, stops=stops)
    return SimulatedFleet(
        network,  # type: ignore[arg-type]
        Echo(),
        len(seconds),
        presence=presence,
        on_leaving=on_leaving,
        records=True,
    )


def clients(updates: Sequence[Update]) -> list[int]:
    return [update.client for update in updates]


def test_updates_arrive_in_the_order_of_time() -> None:
    at = fleet(5.0, 1.0, 3.0)
    at.dispatch([task(0), task(1), task(2)], tick=0)
    assert at.free() == []
    assert at.in_flight == 3
    assert clients(at.collect(until=4.0)) == [1, 2]
    assert at.now == 4.0
    assert at.free() == [1, 2]
    assert at.in_flight == 1
    assert clients(at.collect(until=5.0)) == [0], "an arrival at the very moment counts"
    assert at.collect(until=9.0) == []
    assert at.now == 9.0


def test_ties_go_by_dispatch_order() -> None:
    at = fleet(2.0, 2.0, 1.0, 2.0)
    at.dispatch([task(3), task(0)], tick=0)
    at.dispatch([task(1)], tick=0)
    assert clients(at.collect(until=2.0)) == [3, 0, 1]


def test_collect_stops_at_the_number_of_arrivals() -> None:
    at = fleet(5.0, 1.0, 3.0, 1.0)
    at.dispatch([task(c) for c in range(4)], tick=0)
    assert clients(at.collect(until=math.inf, arrivals=1)) == [1]
    assert at.now == 1.0
    assert clients(at.collect(until=math.inf, arrivals=2)) == [3, 2]
    assert at.now == 3.0
    assert at.collect(until=4.0, arrivals=1) == [], "the moment comes first"
    assert at.now == 4.0
    assert clients(at.collect(until=8.0, arrivals=2)) == [0]
    assert at.now == 8.0, "the second arrival never comes"


def test_collect_waits_for_the_fastest_and_a_little_longer() -> None:
    at = fleet(5.0, 6.0, 3.0, 6.25, 7.0)
    at.dispatch([task(c) for c in range(5)], tick=0)
    assert clients(at.collect(until=math.inf, fastest=2, grace=0.5)) == [2, 0, 1, 3]
    assert at.now == 6.5
    at.dispatch([task(0, 5)], tick=1)
    assert clients(at.collect(until=10.0, fastest=1, grace=0.5)) == [4]
    assert at.now == 10.0, "the moment comes first"
    at.dispatch([task(3, 5), task(2, 5)], tick=1)
    assert clients(at.collect(until=math.inf, fastest=1, grace=0.0)) == [0]
    assert at.now == 11.5
    assert clients(at.collect(until=math.inf, fastest=1, grace=0.5)) == [2]
    assert at.now == 13.5, "client 0 is not at work: the first arrival takes its place"


def test_tasks_are_trained_together_when_they_are_collected() -> None:
    at = fleet(1.0, 2.0, 3.0)
    at.dispatch([task(c) for c in range(3)], tick=0)
    echo = at.executor
    assert isinstance(echo, Echo)
    assert echo.batches == []
    at.collect(until=2.5)
    at.collect(until=3.5)
    assert echo.batches == [[0, 1], [2]]


def test_bytes_are_counted_down_at_dispatch_and_up_at_arrival() -> None:
    at = fleet(1.0, 5.0)
    at.dispatch([task(0), task(1)], tick=0)
    assert (at.bytes_down, at.bytes_up, at.bytes_server) == ([10, 10], [0, 0], 20)
    at.collect(until=2.0)
    assert at.bytes_up == [1, 0]
    at.dispatch([task(0, 5)], tick=0)
    at.collect(until=9.0)
    assert (at.bytes_down, at.bytes_up, at.bytes_server) == ([20, 10], [2, 1], 30)


def test_tasks_leave_later_by_the_time_of_the_merge_before_them() -> None:
    at = fleet(4.0, 9.0, merge_seconds=0.5)
    at.dispatch([task(0), task(1)], tick=0)
    assert clients(at.collect(until=math.inf, arrivals=1)) == [0]
    assert at.now == 4.0, "no merge comes before the first dispatch"
    at.dispatch([task(0, 5)], tick=1)
    assert clients(at.collect(until=math.inf, arrivals=1)) == [0]
    assert at.now == 4.0 + 0.5 + 4.0


def test_absent_clients_take_no_task_and_finish_what_they_have() -> None:
    at = fleet(4.0, 9.0, absences=[Absence(clients=(0,), start=3.0, end=6.0)])
    assert at.free() == [0, 1]
    at.dispatch([task(0)], tick=0)
    assert clients(at.collect(until=5.0)) == [0], "it finishes"
    assert at.free() == [1], "and is away"
    at.collect(until=6.0)
    assert at.free() == [0, 1], "and back at the very end"


def test_absences_of_the_same_client_add_up() -> None:
    away = [Absence(clients=(0, 1), start=0.0, end=2.0), Absence(clients=(1, 2), start=1.0, end=3.0)]
    at = fleet(1.0, 1.0, 1.0, absences=away)
    seen = []
    for now in (0.0, 1.0, 2.0, 3.0):
        at.collect(until=now)
        seen.append(at.free())
    assert seen == [[2], [], [0], [0, 1, 2]]


def test_an_absence_is_a_gap_once_or_again_and_again() -> None:
    once, often = (Absence(clients=(0,), start=3.0, end=6.0, every=every).gaps for every in (None, 10.0))
    assert [once.away(t) for t in (0.0, 2.99, 3.0, 5.99, 6.0, 13.0)] == [False, False, True, True, False, False]
    assert [once.back(t) for t in (0.0, 5.0, 6.0, 7.0)] == [6.0, 6.0, math.inf, math.inf]
    assert (often.edges, often.period, often.shift) == ((3.0, 6.0), 10.0, 0.0)


@pytest.mark.parametrize(("every", "end"), [(0.4, 0.1), (141.64, 107.17), (0.3, 0.3), (7.7, 2.2), (1e4 / 3, 1e3 / 7)])
def test_a_client_is_back_when_its_absence_ends_whatever_the_rounding(every: float, end: float) -> None:
    # 0.5 % 0.4 is 0.0999...8, still before 0.1.
    away = Absence(clients=(0,), start=end / 2, end=end, every=every).gaps
    now = 0.0
    for period in range(300):
        back = away.back(now)
        assert back == pytest.approx(period * every + end)
        assert not away.away(back)
        assert away.away(back - end / 4), "and away before"
        now = back + (every - end) / 2 + 1e-6
    now = 1e9
    for _ in range(300):
        back = away.back(now)
        assert now < back <= now + every * (1 + 1e-6)
        assert not away.away(back)
        now = back + every / 1000


@pytest.mark.parametrize(
    ("start", "end", "every", "complaint"),
    [
        (3.0, 3.0, None, r"end is 3\.0: give a moment after start \(3\.0\)"),
        (3.0, 6.0, 5.0, r"every is 5\.0: give a period of at least end \(6\.0\)"),
    ],
)
def test_impossible_absences(start: float, end: float, every: float | None, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Absence(clients=(0,), start=start, end=end, every=every)


def test_when_nobody_is_at_work_the_clock_goes_to_the_next_return() -> None:
    away = [Absence(clients=(0,), start=0.0, end=7.0), Absence(clients=(1,), start=0.0, end=5.0)]
    at = fleet(1.0, 1.0, absences=away)
    assert at.collect(until=100.0, arrivals=0) == []
    assert at.now == 5.0
    assert at.free() == [1]
    assert at.collect(until=6.0, arrivals=0) == []
    assert at.now == 6.0, "never past the moment"
    at.collect(until=100.0, arrivals=0)
    assert at.now == 7.0
    at.collect(until=100.0, arrivals=0)
    assert at.now == 100.0, "nobody left to come back"


def loop(
    coordination: Coordination,
    absences: Sequence[Absence],
    last: float = 10.0,
    on_leaving: OnLeaving = "finish",
    stops: Mapping[int, float] | None = None,
) -> tuple[Server, list[float]]:
    """Ten seconds of a loop in which a trip takes one second, or until `last`; the moments after each tick."""
    at = fleet(1.0, 1.0, absences=absences, on_leaving=on_leaving, stops=stops)
    server = Server(
        rules=ServerRules(coordination=coordination),
        layout=Layout.of(nn.Linear(4, 1, bias=False)),
        model=torch.zeros(4),
        buffers=torch.empty(0),
        clients=[ClientProfile(density=1.0, samples=1)] * 2,
        steps=1,
        learning_rate=lambda _: 0.1,
        seconds=10.0,
    )
    moments: list[float] = []
    federate(server, at, seconds=10.0, after_tick=lambda: moments.append(at.now), stop=lambda: at.now >= last)
    return server, moments


def test_the_loop_stops_after_the_tick_at_which_it_is_told_to() -> None:
    server, moments = loop(Synchronous(), [], last=3.0)
    assert moments == [1, 2, 3]
    assert (server.tick, server.updates, len(server.dispatched)) == (3, [3, 3], 2)


def test_the_loop_outlasts_a_moment_when_everybody_is_away() -> None:
    away = [Absence(clients=(0, 1), start=2.5, end=6.0)]
    server, moments = loop(Synchronous(), away)
    assert moments == [1, 2, 3, 6, 7, 8, 9, 10]
    assert (server.tick, server.updates) == (7, [7, 7])
    server, moments = loop(Asynchronous(), away)
    assert moments == [1, 1, 2, 2, 3, 3, 6, 7, 7, 8, 8, 9, 9, 10]
    assert server.updates == [7, 6], "the second arrival at the end of the budget is not waited for"
    server, moments = loop(SemiAsynchronous(period=2.0), away)
    assert moments == [2, 4, 6, 8, 10]
    assert server.updates == [4, 4], "dispatched at 0, 2, 6 and 8"


def test_a_task_is_lost_when_its_client_leaves() -> None:
    away = [Absence(clients=(1, 2), start=5.0, end=7.0)]
    at = fleet(4.0, 9.0, 5.0, absences=away, on_leaving="lose")
    at.network.known_maps = {1: (0, 0), 2: (0, 0)}
    at.dispatch([task(0), task(1), task(2)], tick=0)
    assert clients(at.collect(until=math.inf, arrivals=3)) == [0, 2], "an arrival at the moment of leaving counts"
    assert at.now == 5.0, "and nobody waits for the lost one"
    assert [(news.client, news.seconds, news.lost) for news in at.news()] == [
        *((0, 4.0, False), (1, None, True), (2, 5.0, False))
    ]
    assert (at.refused, at.bytes_down, at.bytes_up) == ({"left": 1}, [10, 10, 10], [1, 0, 1])
    assert at.network.known_maps == {2: (0, 0)}, "it may have lost its level map"
    assert (at.free(), at.in_flight) == ([0], 0)
    at.collect(until=7.0)
    assert at.free() == [0, 1, 2]
    assert at.executor.batches == [[0, 2]], "a lost task is not trained"  # type: ignore[attr-defined]


def test_a_lost_task_is_sent_with_noise_of_its_own() -> None:
    """A trip takes 10 s and noise, and its client is there for 10 of every 20 s; an equal draw would fail each time."""

    def make() -> SimulatedFleet:
        link = Link(down=1.0, up=88 / 10 / 2**20)  # an update has 88 bytes
        network = Network(NetworkSettings(compute_seconds=0.0), [link], WireSizes(buffers=0), ims=True, seed=0)
        away = make_presence(None, [Absence(clients=(0,), start=10.0, end=20.0, every=20.0)], 1, seed=0)
        return SimulatedFleet(network, Echo(), 1, presence=away, on_leaving="lose")

    def arrivals(at: SimulatedFleet, until: float) -> list[float]:
        moments = []
        while at.now < until:
            at.dispatch([task(client) for client in at.free()], tick=0)
            if at.collect(until=until, arrivals=min(1, at.in_flight)):
                moments.append(at.now)
        return moments

    whole = arrivals(make(), 800.0)
    assert 10 < len(whole) < 30, "in about half of the 40 stretches"
    cut, resumed = make(), make()
    first = arrivals(cut, 350.0)
    resumed.restore(json.loads(json.dumps(cut.state())), {}, tick=1)
    assert first + arrivals(resumed, 800.0) == whole


def test_the_loop_goes_on_without_lost_tasks() -> None:
    one, both = ([Absence(clients=of, start=2.5, end=6.0)] for of in ((1,), (0, 1)))
    server, moments = loop(Synchronous(), one, on_leaving="lose")
    assert moments == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert server.updates == [10, 6], "client 1 at 1, 2, 7, 8, 9 and 10"
    assert server.batches == [11, 7], "its lost mini-batch came again, and one more is in flight"
    server, moments = loop(Synchronous(), both, on_leaving="lose")
    assert moments == [1, 2, 2.5, 6, 7, 8, 9, 10], "at 2.5 both are lost"
    assert (server.tick, server.updates) == (6, [6, 6])
    server, moments = loop(Asynchronous(), both, on_leaving="lose")
    assert moments == [1, 1, 2, 2, 2.5, 6, 7, 7, 8, 8, 9, 9, 10]
    server, moments = loop(SemiAsynchronous(period=2.0), both, on_leaving="lose")
    assert moments == [2, 4, 6, 8, 10]
    assert server.updates == [3, 3], "dispatched at 0, 6 and 8; what left at 2 was lost"
    fastest = [Absence(clients=(0,), start=2.0, end=6.5)]
    server, moments = loop(Fastest(grace=0.5), fastest, on_leaving="lose")
    assert moments == [1.5, 2.5, 4, 5.5, 7, 8.5], "client 0 is lost at 2, and half a second later client 1 arrives"
    assert server.updates == [2, 6]


def test_a_client_whose_link_has_stopped_gets_no_further_task() -> None:
    at = fleet(4.0, math.inf, stops={1: 6.0})
    at.dispatch([task(0), task(1)], tick=0)
    assert clients(at.collect(until=math.inf, arrivals=2)) == [0]
    assert (at.now, at.free(), at.refused) == (6.0, [0], {"left": 1})
    at.collect(until=1e9)
    assert at.free() == [0]
    away = [Absence(clients=(0,), start=1.0, end=2.0, every=5.0)]
    at = fleet(math.inf, absences=away, stops={0: 8.0})
    at.dispatch([task(0)], tick=0)
    at.collect(until=math.inf, arrivals=1)
    assert at.now == 8.0, "it has come back twice before"
    _, moments = loop(Synchronous(), [], stops={0: 4.5, 1: 4.5}, on_leaving="lose")
    assert moments == [1, 2, 3, 4, 4.5], "nobody is left, so nothing happens until the end"


def test_rows_have_the_trips_and_who_was_away() -> None:
    away = [Absence(clients=(1,), start=3.0, end=5.0, every=10.0)]
    at = fleet(4.0, 2.0, absences=away, on_leaving="lose", merge_seconds=0.5)
    at.dispatch([task(0), task(1)], tick=0)
    at.collect(until=2.0)
    at.dispatch([task(1, 5)], tick=1)
    assert at.record(0.0, 2.0) == {
        "trips": [
            [0, 0, 0.0, 0.0, 4.0, 4.0, 10, 1],
            [1, 0, 0.0, 0.0, 2.0, 2.0, 10, 1],
            [1, 0, 2.5, 2.5, None, 3.0, 10, None],
        ],
        "away": [],
    }
    resumed = fleet(4.0, 2.0, absences=away, on_leaving="lose")
    at.collect(until=2.9)
    resumed.restore(json.loads(json.dumps(at.state())), {0: task(0), 1: task(1, 5)}, tick=1)
    for each in (at, resumed):
        assert clients(each.collect(until=8.0)) == [0]
        each.dispatch([task(1, 5)], tick=0)
        assert each.record(2.0, 8.0) == {"trips": [[1, 0, 8.0, 8.0, 10.0, 10.0, 10, 1]], "away": [[1, 3.0, 5.0]]}
        assert each.record(8.0, 14.0) == {"trips": [], "away": [[1, 13.0, 14.0]]}
        assert each.refused == {"left": 1}


def test_the_fastest_client_sets_the_pace() -> None:
    server, moments = loop(Fastest(grace=0.5), [])
    assert moments == [1.5, 3, 4.5, 6, 7.5, 9], "and the next merge would come at 10.5"
    assert server.updates == [6, 6]
    server, moments = loop(Fastest(grace=0.5), [Absence(clients=(0,), start=2.0, end=6.5)])
    assert moments == [1.5, 3, 4.5, 6, 7.5, 9], "at 3, 4.5 and 6 client 1 alone gets a task"
    assert server.updates == [3, 6]
    server, moments = loop(Fastest(grace=0.5), [Absence(clients=(0, 1), start=2.5, end=6.0)])
    assert moments == [1.5, 3, 6, 7.5, 9], "nobody is at work at 3: no merge at 6"
    assert (server.tick, server.updates) == (4, [4, 4])


def test_the_budget_ends_before_a_merge_that_would_come_later() -> None:
    server, moments = loop(SemiAsynchronous(period=3.0), [])
    assert moments == [3, 6, 9]
    assert server.tick == 3


def test_state_is_plain_data_and_restores_the_fleet() -> None:
    def make() -> SimulatedFleet:
        settings = NetworkSettings(noise=0.2, server_rate=0.001)
        links = [Link(down=1.0, up=0.01 * (c + 1)) for c in range(3)]
        network = Network(settings, links, WireSizes(buffers=0), ims=False, seed=1)
        away = [Absence(clients=(1,), start=0.0, end=1.0, every=2.0)]
        return SimulatedFleet(network, Echo(), 3, presence=make_presence(None, away, 3, seed=0))

    def play(at: SimulatedFleet, from_batch: int) -> list[tuple[float, list[int]]]:
        seen = []
        for n in range(from_batch, from_batch + 6):
            at.dispatch([task(c, n) for c in at.free()], tick=0)
            seen.append((at.now, clients(at.collect(until=1000.0, arrivals=1))))
        return [*seen, (at.now, [*at.bytes_down, *at.bytes_up, at.bytes_server])]

    original = make()
    play(original, 0)
    original.dispatch([task(c, 7) for c in original.free()], tick=0)
    saved = json.loads(json.dumps(original.state()))
    in_flight = {entry[2]: task(entry[2], 7) for entry in saved["queue"]}
    assert len(in_flight) == original.in_flight >= 2

    resumed = make()
    resumed.restore(saved, in_flight, tick=0)
    assert resumed.state() == original.state()
    assert resumed.in_flight == original.in_flight
    assert resumed.free() == original.free()
    # The queue, the uplink, the maps known and the counters all go on as they were.
    assert play(resumed, 8) == play(original, 8)
    assert resumed.network.uplink_free == original.network.uplink_free
    assert resumed.network.known_maps == original.network.known_maps != {}


class Counting(Echo):
    """Trains ahead; a client remembers how many tasks it has done."""

    ahead = True

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        known = [0.0 if task.memory is None else task.memory.item() for task in tasks]
        updates = super().train(tasks)
        return [replace(update, memory=torch.tensor(n + 1)) for update, n in zip(updates, known, strict=True)]


def test_a_client_remembers_what_was_collected() -> None:
    at = fleet(1.0, 5.0)
    at.executor = Counting()
    at.dispatch([task(0), task(1)], tick=0)
    at.collect(until=9.0, arrivals=1)
    assert at.memories == {0: 1.0}, "client 1 is trained and has not arrived"
    at.dispatch([task(0)], tick=1)
    at.collect(until=9.0, arrivals=1)
    assert at.memories == {0: 2.0}

    lost = fleet(1.0, 5.0, absences=[Absence(clients=(1,), start=3.0, end=9.0)], on_leaving="lose")
    lost.executor = Counting()
    lost.dispatch([task(0), task(1)], tick=0)
    lost.collect(until=2.0)
    assert lost.executor.batches == [[0]], "what will be lost is not trained ahead"

    resumed = fleet(1.0, 5.0)
    resumed.executor = Counting()
    resumed.memories |= at.memories
    resumed.restore(at.state(), {1: task(1)}, tick=2)
    for each in (at, resumed):
        each.dispatch([task(0)], tick=2)
        each.collect(until=9.0, arrivals=2)
        assert each.memories == {0: 3.0, 1: 1.0}


def test_a_client_forgets_what_was_refused() -> None:
    at = fleet(1.0, 1.0)
    at.executor = Counting()
    for tick, (verdicts, known) in enumerate(
        [
            ([Verdict(client=0, reason="change")], {1: 1.0}),
            ([Verdict(client=0, reason="clipped", merged=True)], {0: 1.0, 1: 2.0}),
            ([Verdict(client=0, reason="client-diverged"), Verdict(client=1, reason="repeat")], {0: 1.0, 1: 2.0}),
        ]
    ):
        at.dispatch([task(0), task(1)], tick=tick)
        at.collect(until=99.0, arrivals=2)
        at.told(verdicts)
        assert at.memories == known
    assert at.refused == {"change": 1, "clipped": 1, "client-diverged": 1, "repeat": 1}
