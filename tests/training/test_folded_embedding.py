"""Embeddings of many clients against torch; without a GPU in Triton's interpreter: `make test-kernels`."""

import pytest
import torch
from torch import Tensor

from fedgmr.training.execution import TRITON
from training.folded_clients import DEVICE, RUNS, draw, far, in_rows, outside

if TRITON:
    from fedgmr.training.folded import embedding


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few positions have groups of several."""
    if TRITON:
        monkeypatch.setattr(embedding, "_CHUNK", 8)


def numbers_of(clients: int, positions: int, numbers: int) -> Tensor:
    """Numbers of which small ones come often and some do not come."""
    drawn = torch.rand((clients, positions), generator=torch.Generator().manual_seed(2)) ** 3
    return (drawn * numbers).long().to(DEVICE)


def gradient(ids: Tensor, dy: Tensor, numbers: int, padding: int | None) -> Tensor:
    """Of the tables."""
    dtable = in_rows(torch.full((len(dy), numbers, dy.shape[-1]), float("nan"), device=DEVICE))
    embedding.backward(ids, dy, dtable, padding)
    assert bool((outside(dtable) == 7.0).all())
    return dtable


def wanted_gradient(ids: Tensor, dy: Tensor, numbers: int, padding: int | None) -> Tensor:
    """The same in float64."""
    added = torch.zeros((len(dy), numbers, dy.shape[-1]), dtype=torch.float64, device=DEVICE)
    for client, to in enumerate(added):
        to.index_add_(0, ids[client], dy[client].double())
        if padding is not None:
            to[padding] = 0.0
    return added


@RUNS
@pytest.mark.parametrize("padding", [None, 0, 4])
@pytest.mark.parametrize(("positions", "numbers", "width"), [(7, 12, 5), (50, 5, 40), (30, 20, 150)])
def test_tables_agree_with_torch(positions: int, numbers: int, width: int, padding: int | None) -> None:
    ids, dy = numbers_of(3, positions, numbers), draw(3, positions, width, seed=1)
    found = gradient(ids, dy, numbers, padding)
    wanted = wanted_gradient(ids, dy, numbers, padding)
    assert far(found, wanted) <= 1e-6
    assert torch.equal(found == 0, wanted == 0)
    table = in_rows(draw(3, numbers, width, seed=3))
    assert torch.equal(
        embedding.forward(ids, table), torch.stack([one[own] for one, own in zip(table, ids, strict=True)])
    )


@RUNS
@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4], [3, 0, 3, 3, 1]])
def test_numbers_that_all_samples_share(ids: list[int]) -> None:
    shared = torch.tensor(ids, device=DEVICE)
    dy = draw(3, 4, 5, 6, seed=1)
    wanted = wanted_gradient(shared.expand(3, 4, 5).flatten(1), dy.flatten(1, 2), 8, None)
    assert far(gradient(shared, dy, 8, None), wanted) <= 1e-6
    table = in_rows(draw(3, 8, 6, seed=3))
    assert torch.equal(embedding.forward(shared.expand(3, 5), table), table[:, shared])


@RUNS
def test_a_client_does_not_depend_on_its_company() -> None:
    ids, dy = numbers_of(3, 40, 4), draw(3, 40, 20, seed=1)
    together = gradient(ids, dy, 4, None)
    for client in range(3):
        part = slice(client, client + 1)
        assert torch.equal(gradient(ids[part], dy[part], 4, None)[0], together[client])
