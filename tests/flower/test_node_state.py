"""What a node keeps in files, and that anything wrong with them counts as forgotten."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fedgmr import wire
from fedgmr.flower.client.node_state import HeldMap, NodeState
from fedgmr.flower.terms import checksum

LEVELS = np.array([0, 1, 2, wire.ABOVE, 0, 2], np.uint8)


def test_the_client_id_stays(tmp_path: Path) -> None:
    first = NodeState(tmp_path / "a").client_id()
    assert first == NodeState(tmp_path / "a").client_id()
    assert first != NodeState(tmp_path / "b").client_id()
    assert len(first) == 32
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0, "nobody else's business"
    for damaged in (b"", b"\xff\xfe\0", first.encode()[:20]):
        (tmp_path / "a" / "client-id").write_bytes(damaged)
        another = NodeState(tmp_path / "a").client_id()
        assert len(another) == 32
        assert another == NodeState(tmp_path / "a").client_id() != first


def test_only_the_very_recipe_is_found(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    assert state.recipe(checksum("one")) is None
    state.keep_recipe("one")
    assert state.recipe(checksum("one")) == "one"
    assert state.recipe(checksum("two")) is None


def test_a_map_comes_back(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    assert state.level_map(run=7, total=6) is None
    state.keep_level_map(HeldMap(version=3, last=2, levels=LEVELS), run=7)
    held = state.level_map(run=7, total=6)
    assert held is not None
    assert (held.version, held.last) == (3, 2)
    assert np.array_equal(held.levels, LEVELS)
    assert state.level_map(run=8, total=6) is None, "of another run"
    assert state.level_map(run=7, total=5) is None, "of another model"
    assert [path.name for path in tmp_path.iterdir()] == ["level-map.bin"], "no draft is left"


@pytest.mark.parametrize("position", [0, 10, 55, -1])
def test_a_damaged_map_is_forgotten(position: int, tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    state.keep_level_map(HeldMap(version=3, last=2, levels=LEVELS), run=7)
    data = bytearray((tmp_path / "level-map.bin").read_bytes())
    data[position] ^= 255
    (tmp_path / "level-map.bin").write_bytes(data)
    assert state.level_map(run=7, total=6) is None
    (tmp_path / "level-map.bin").write_bytes(bytes(data[:20]))
    assert state.level_map(run=7, total=6) is None


def test_the_default_directory_is_the_nodes_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert NodeState.of({}, 12).directory == tmp_path / "fedgmr" / "nodes" / "12"
    assert NodeState.of({"state-dir": str(tmp_path / "own")}, 12).directory == tmp_path / "own"


def test_velocities_come_back(tmp_path: Path) -> None:
    state, like = NodeState(tmp_path), torch.zeros(6)
    before, behind = torch.arange(6.0), -torch.arange(6.0)
    assert state.memory(run=2**63 + 7, client=1, batch=5, like=like) is None
    state.keep_memory({5: before, 10: behind}, run=2**63 + 7, client=1)

    def found(batch: int, *, run: int = 2**63 + 7, client: int = 1, size: int = 6) -> Any:
        return state.memory(run=run, client=client, batch=batch, like=torch.zeros(size))

    assert torch.equal(found(5), before)
    assert torch.equal(found(10), behind)
    assert found(15) is None
    assert found(5, run=7) is None, "of another run"
    assert found(5, client=2) is None, "of another client"
    assert found(5, size=5) is None, "of another model"
    state.keep_memory({10: None, 15: before}, run=2**63 + 7, client=1)
    assert [found(batch) is None for batch in (5, 10, 15)] == [True, True, False]
    assert [path.name for path in tmp_path.iterdir()] == ["memory.safetensors"], "no draft is left"
    path = tmp_path / "memory.safetensors"
    for damaged in (path.read_bytes()[:-3], path.read_bytes()[:20], b""):
        path.write_bytes(damaged)
        assert found(15) is None
