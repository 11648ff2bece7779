import json
import time
from pathlib import Path

import netns
import pytest
import replay
from digits import digits
from link_records import Prediction, Task
from netns import Cables, Count

from fedgmr.fleets.curves import Curve

MIB = 2**20
TRACE = "seconds,down MiB/s,up MiB/s\n0,1,0.25\n10,0,0\n20,1,0.25\n"  # and again from second 30 on


def predict(folder: Path, **parts: float) -> Prediction:
    (folder / "trace.csv").write_text(TRACE)
    recipe = replay.recipe_of(folder / "trace.csv", seconds=60.0, period=20.0)
    return Prediction(recipe, digits().layout(), recipe.fleet.resolved_links(), overhead=7.0, **parts)


@pytest.mark.parametrize(("sent", "silent"), [(0.0, 10.0), (12.0, 8.0), (20.0, 0.0), (60_000_000.0, 10.0)])
def test_a_task_is_predicted_from_the_moment_at_which_it_was_sent(tmp_path: Path, sent: float, silent: float) -> None:
    """A twentieth of Conv-2 takes 1.27 s down and 5.07 s up, and 7 s in between.

    Sent at 0 s its upload begins at 8.27 s and waits for the whole silence; sent at 12 s its download waits for the
    rest of it; sent at 20 s it ends at 33.3 s, in the next round of the trace.
    """
    mib = 4 * (6_601_504 * 0.05 + 2_206) / MIB
    seconds, _, _ = predict(tmp_path).task(0, 0, level_map=False, sent=sent)
    assert seconds == pytest.approx(mib + 7.0 + 4 * mib + silent, abs=0.01)


def test_the_cost_of_a_task_lies_where_it_was_measured(tmp_path: Path) -> None:
    """Of the 7 s, 2 come before the download and 3 after the upload: sent at 12 s, it waits for 6 s more at 14 s."""
    mib = 4 * (6_601_504 * 0.05 + 2_206) / MIB
    seconds, _, _ = predict(tmp_path, before=2.0, after=3.0).task(0, 0, level_map=False, sent=12.0)
    assert seconds == pytest.approx(2 + 6 + mib + 2 + 4 * mib + 3, abs=0.01)


def test_the_moments_at_which_a_task_crosses_its_link() -> None:
    """It is sent at 10 s and takes 9 s; half of its download is over at 12.5 s, half of its upload at 17 s."""

    def counts(down: int, up: int) -> list[Count]:
        other = Count(down=9_000, down_packets=0, up=9_000, up_packets=0)
        return [other, Count(down=500 + down, down_packets=0, up=500 + up, up_packets=0)]

    counters = replay.Counters(Cables(2), Path())
    cases = ((9.5, 900, 0), (10.0, 1000, 20), (12.4, 1499, 20), (12.5, 1500, 20), (17.0, 2000, 420), (18.0, 2000, 820))
    counters.seen = [(now, counts(down, up)) for now, down, up in cases]
    task = Task(client=1, level=0, sent=10.0, down=1000, up=800, took=9.0, training=1.0)
    assert counters.crossed(task) == (2.5, 2.0)


class Steady:
    """Tasks that take 13 s, and one of the second client, sent at 30 s or at 60 s, that takes 25 s."""

    def task(self, client: int, level: int, *, level_map: bool, sent: float) -> tuple[float, int, int]:
        return (25.0 if client == 1 and sent in (30.0, 60.0) else 13.0), 0, 0


@pytest.mark.parametrize(("ticks", "period"), [(1, 20.0), (2, 20.0), (3, 20.0), (4, 25.0)])
def test_a_period_in_which_every_task_ends_with_a_fifth_to_spare(ticks: int, period: float) -> None:
    # 13 s fit 20 s. Of four ticks 20 s apart the last is at 60 s, which takes 25 s; 25 s apart none is at 30 or 60 s.
    assert replay.calm_period(Steady(), [0, 0], ticks) == period  # type: ignore[arg-type]


class Recorded:
    """Cables that note what they are set to."""

    def __init__(self) -> None:
        self.rates: list[tuple[int, float, float, bool]] = []

    def vary(self, node: int, *, down: float, up: float, first: bool = False) -> None:
        self.rates.append((node, round(down, 9), round(up, 9), first))


def test_the_rates_of_every_second_from_the_start_of_the_run(tmp_path: Path) -> None:
    down = Curve(starts=range(100), rates=[float(second) for second in range(100)], end=100.0)
    up = Curve(starts=(0.0, 0.5), rates=(0.0, 3.0), end=1.0)  # 1.5 MiB in every second
    cables = Recorded()
    with replay.Replay(cables, [(down, up)] * 2, tmp_path):  # type: ignore[arg-type]
        time.sleep(0.1)
        assert cables.rates == [(0, 0.0, 1.5, True), (1, 0.0, 1.5, True)], "the trace waits for the run"
        lines = [{"event": "joined", "seconds": 0.0}, {"event": "dispatched", "seconds": 4.7}]
        (tmp_path / "updates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        deadline = time.monotonic() + 20
        while len(cables.rates) < 6 and time.monotonic() < deadline:
            time.sleep(0.05)
    changed = cables.rates[2:]
    assert len(changed) >= 4
    assert changed[0][1] >= 4.0, "4.7 s of the run were over"
    assert [rate for _, rate, _, _ in changed] == sorted(rate for _, rate, _, _ in changed)
    assert {(node, up, first) for node, _, up, first in changed} == {(0, 1.5, False), (1, 1.5, False)}


def test_shapers_get_frames_for_payload_and_never_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(netns, "_call", lambda *command: calls.append(" ".join(command)))
    cables = Cables(1, prefix="x")
    cables.vary(0, down=1.0, up=0.0)
    # 8 x 1,048,576 x 1514 / 1448 bits of frames per second; ten milliseconds of them are a burst. Silence: one frame.
    assert calls == [
        "tc class change dev xh0 parent 1: classid 1:1 htb rate 8770962bit burst 10963 cburst 10963 quantum 1514",
        "tc -n x-0 class change dev xn0 parent 1: classid 1:1 htb rate 12112bit burst 3028 cburst 3028 quantum 1514",
    ]
    calls.clear()
    cables.vary(0, down=1.0, up=1.0, first=True)
    assert [call.split()[1] for call in calls if "xh0" in call] == ["link", "qdisc", "class", "qdisc"]
    assert "ip -n x-0 link set dev xn0 gso_max_segs 1" in calls
