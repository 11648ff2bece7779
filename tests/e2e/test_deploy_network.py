"""Interruptions between nodes and SuperLink, with certificates and keys: all nodes are back within a minute.

Minutes each; run with `make test-slow` where the extra `flower` is installed.
"""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from e2e.doors import Crowd, Gate, nginx
from e2e.observed import PERIOD, Ended, Observer, deploy
from fedgmr.deploy.processes import Program, Supervisor
from fedgmr.deploy.site import Site, free_ports

pytestmark = pytest.mark.slow


def check_return(ended: Ended, tick: int, lasted: float) -> None:
    """Every client is given and finishes a task within a minute of the end of what began at a tick."""
    ended.check_books()
    began = next(e["seconds"] for e in ended.events if e["event"] == "tick" and e["tick"] >= tick)
    for client in range(3):
        back = [e["seconds"] - e["took"] for e in ended.accepted(client)]
        assert any(began + lasted < sent <= began + lasted + 60.0 + PERIOD for sent in back), (client, began, back)


def test_a_peer_that_accepts_and_closes_for_ten_seconds(tmp_path: Path) -> None:
    with Gate() as gate:

        def nodes(site: Site, client: int) -> Program:
            return site.supernode(client, address=gate.forward_to(site.port))

        ended = deploy(tmp_path, ticks=20, acts={3: lambda fleet: gate.shut(10.0)}, nodes=nodes, tls=True)
        assert gate.refused > 0
    check_return(ended, 3, 10.0)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_six_hundred_slow_connections(tmp_path: Path) -> None:
    """They come from another address, without a key, and hold out for a minute."""
    door, crowds = free_ports(20)[-1], list[Crowd]()  # the first of them are the site's own
    (tmp_path / "door").mkdir()
    with Supervisor(tmp_path / "door", tmp_path / "door", {}) as crew:

        def nodes(site: Site, client: int) -> Program:
            if client == 0:
                crew.start(nginx(tmp_path / "door", door=door, port=site.port, tls=site.folder / "tls"))
            return site.supernode(client, address=f"127.0.0.1:{door}")

        def come(fleet: Observer) -> None:
            crowds.append(Crowd(door, size=600))

        def go(fleet: Observer) -> None:
            crowds[0].leave()

        ended = deploy(tmp_path, ticks=24, acts={3: come, 9: go}, nodes=nodes, tls=True)
        assert crew.check() == []
        assert crowds[0].cut > 600, "each of them at least once"
    check_return(ended, 3, 6 * PERIOD)
