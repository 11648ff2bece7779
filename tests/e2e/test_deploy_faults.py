"""Real faults on a local fleet: every run completes, the books balance, and ticks go on.

Minutes each; run with `make test-slow` where the extra `flower` is installed.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from e2e.command import environment
from e2e.observed import PERIOD, Observer, deploy
from e2e.throttle import Throttle
from fedgmr.deploy.processes import Program
from fedgmr.deploy.site import Site

pytestmark = pytest.mark.slow


def test_clientapp_killed(tmp_path: Path) -> None:
    def act(fleet: Observer) -> None:
        fleet.kill_at_work(1)

    ended = deploy(tmp_path, ticks=20, acts={2: act})
    ended.check_books()
    assert ended.longest_tick() <= 2 * PERIOD
    (lost,) = [e for e in ended.events if e["event"] == "lost"]
    assert lost["client"] == 1
    assert any(e["seconds"] > lost["seconds"] for e in ended.accepted(1))  # the node takes the next task


@pytest.mark.parametrize("tls", [False, True])
def test_supernode_killed_at_work(tmp_path: Path, tls: bool) -> None:
    def act(fleet: Observer) -> None:
        fleet.kill_at_work(1)  # so that nobody finishes its task
        fleet.kill("supernode.py", f"--port {fleet.node_port(1)}")

    ended = deploy(tmp_path, ticks=20, acts={2: act}, tls=tls)
    ended.check_books()
    assert ended.longest_tick() <= 2 * PERIOD
    lost = [e for e in ended.events if e["event"] == "lost"]
    assert {e["client"] for e in lost} == {1}
    # It is the same client when it comes back, not a fourth one.
    assert {e["client"] for e in ended.events if e["event"] == "joined"} == {0, 1, 2}
    assert any(e["seconds"] > lost[-1]["seconds"] for e in ended.accepted(1))


def test_serverapp_killed(tmp_path: Path) -> None:
    ended = deploy(tmp_path, ticks=10, acts={3: lambda fleet: fleet.kill("flwr-serverapp")})
    ended.check_books()
    assert ended.longest_tick() <= 2 * PERIOD
    # Killed after the merge of tick 3, before or after its checkpoint.
    (resumed,) = [e["tick"] for e in ended.events if e["event"] == "resumed"]
    assert resumed in (2, 3)
    assert ended.seconds_until_next_tick() <= 90
    assert "the ServerApp was killed; the run goes on from its checkpoint" in ended.notes
    assert all(len([e for e in ended.accepted(c) if e["tick"] > 3]) > 0 for c in range(3))


def test_superlink_killed(tmp_path: Path) -> None:
    ended = deploy(tmp_path, ticks=12, acts={3: lambda fleet: fleet.kill("flower-superlink")})
    ended.check_books()
    assert ended.seconds_until_next_tick() <= 90
    assert "superlink died and is started again" in ended.notes
    assert all(len([e for e in ended.accepted(c) if e["tick"] > 4]) > 0 for c in range(3))


def test_a_node_at_a_tenth_of_a_megabyte_per_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    with Throttle(100_000) as slow:

        def nodes(site: Site, client: int) -> Program:
            if client != 2:
                return site.supernode(client)
            return site.supernode(client, address=slow.forward_to(site.port))

        # 2.7 MB each way: 27 s at this rate, several ticks, during which everybody else goes on.
        words = ["task=e2e.tiny:wide", "fleet.densities=[1.0,0.05,1.0]"]
        ended = deploy(tmp_path, *words, ticks=15, nodes=nodes)
        assert slow.carried > 2 * 2_600_000
    ended.check_books()
    assert ended.longest_tick() <= 2 * PERIOD
    assert len(ended.accepted(2)) >= 1
    assert all(e["took"] > 50 for e in ended.accepted(2))
    assert len(ended.accepted(0)) > 2 * len(ended.accepted(2))


def test_a_node_that_returns_after_two_minutes(tmp_path: Path) -> None:
    def nodes(site: Site, client: int) -> Program:
        return replace(site.supernode(client), restart_delay=120.0)

    def act(fleet: Observer) -> None:
        fleet.kill("supernode.py", f"--port {fleet.node_port(2)}")

    ended = deploy(tmp_path, ticks=24, acts={3: act}, nodes=nodes)
    ended.check_books()
    assert ended.longest_tick() <= 2 * PERIOD
    gone = next(e["seconds"] for e in ended.events if e["event"] == "tick" and e["tick"] == 3)
    assert any(e["seconds"] > gone + 120 for e in ended.accepted(2))
    assert not any(gone + 30 < e["seconds"] < gone + 120 for e in ended.accepted(2))


def test_a_third_of_the_nodes_gone_for_good(tmp_path: Path) -> None:
    def nodes(site: Site, client: int) -> Program:
        return replace(site.supernode(client), restart_delay=math.inf)

    def act(fleet: Observer) -> None:
        fleet.kill("supernode.py", f"--port {fleet.node_port(2)}")

    ended = deploy(tmp_path, ticks=15, acts={2: act}, nodes=nodes)
    ended.check_books()
    assert ended.longest_tick() <= 2 * PERIOD
    last = ended.metrics[-1]["tick"]
    assert all(any(e["tick"] > last - 4 for e in ended.accepted(c)) for c in (0, 1))
    assert not any(e["tick"] > 6 for e in ended.accepted(2))
