"""Label-aware averaging: rows of the output layer from the clients that have the class, by hand and against masks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from e2e import tiny
from equivalence.runs import LINKS, objects
from torch import Tensor, nn

from fedgmr.server.aggregation import MaskAware, Merge
from fedgmr.server.buffer import Contribution
from fedgmr.server.label_aware import LabelAware, Labels
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.widths import width_levels
from server.dense import mask_aware_mean

# One input, two hidden units, three classes. Coordinates: 0, 1 the hidden weights; 2 .. 7 the output weights, two per
# class; 8 .. 10 the output biases.
NET = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 3))
LAYOUT, PLAN = Layout.of(NET), follow_channels(NET, torch.zeros(2, 1))
CPU = torch.device("cpu")
NOBODY = Labels.of(LAYOUT, PLAN.heads, clients=3, device=CPU)
OUTPUT, CLASSES = NOBODY.coordinates, NOBODY.classes
# Level 0 has unit 0; its order is 0, 2, 4, 6, 8, 9, 10, then 1, 3, 5, 7.
HALVES = width_levels(PLAN, LAYOUT, (0.5, 1.0))
OLD = [100.0 + n for n in range(11)]


def labels(*owned: Sequence[int]) -> Labels:
    """The classes of each client."""
    table = torch.tensor([[label in classes for label in range(3)] for classes in owned])
    return Labels(owned=table, coordinates=OUTPUT, classes=CLASSES)


def contribution(
    client: int, flat: Sequence[float], level: int, levels: LevelMap = HALVES, version: int = 0
) -> Contribution:
    """An update given in the order of the coordinates; what is outside the sub-model is left out."""
    return Contribution(
        client=client,
        version=0,
        level=level,
        levels=levels,
        map_version=version,
        values=levels.pack(torch.tensor(flat), level),
        buffers=torch.tensor([float(client)]),
    )


def merge_of(contributions: Sequence[Contribution], weights: Sequence[float], known: Labels | None) -> Merge:
    return Merge(
        model=torch.tensor(OLD),
        buffers=torch.tensor([7.0]),
        fresh=contributions,
        held=contributions,
        starts={},
        weights={c.client: w for c, w in zip(contributions, weights, strict=True)},
        clients=3,
        fleet_weight=lambda: 4.0,
        labels=known,
    )


def test_the_coordinates_of_the_output_layer() -> None:
    assert {name: (dim, rows.tolist()) for name, (dim, rows) in PLAN.heads.items()} == {
        "1.weight": (0, [0, 1, 2]),
        "1.bias": (0, [0, 1, 2]),
    }
    assert OUTPUT.tolist() == list(range(2, 11))
    assert CLASSES.tolist() == [0, 0, 1, 1, 2, 2, 0, 1, 2]
    assert NOBODY.owned.tolist() == [[False] * 3] * 3


def test_rows_of_a_convolution_that_gives_the_classes() -> None:
    net = nn.Sequential(nn.Conv1d(1, 2, 1), nn.Conv1d(2, 3, 2), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    known = Labels.of(Layout.of(net), follow_channels(net, torch.zeros(2, 1, 4)).heads, clients=2, device=CPU)
    assert known.coordinates.tolist() == list(range(4, 19))
    assert known.classes.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [0, 1, 2]


def test_rows_of_a_transposed_convolution_and_of_tied_weights() -> None:
    net = nn.Sequential(nn.Conv1d(1, 2, 1), nn.ConvTranspose1d(2, 3, 1))  # its weight is [2, 3, 1]
    known = Labels.of(Layout.of(net), follow_channels(net, torch.zeros(2, 1, 4)).heads, clients=2, device=CPU)
    assert known.coordinates.tolist() == list(range(4, 13))
    assert known.classes.tolist() == [0, 1, 2] * 3
    tied = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 5, bias=False))
    tied[1].weight = tied[0].weight
    heads = follow_channels(tied, torch.zeros(2, 3, dtype=torch.int64)).heads
    known = Labels.of(Layout.of(tied), heads, clients=2, device=CPU)
    assert known.classes.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_three_clients_by_hand() -> None:
    """Client 0: all, classes 0 and 1. Client 1: unit 0 only, class 0. Client 2: all, class 1. Nobody has class 2."""
    contributions = [
        contribution(0, [1.0] * 11, 1),
        contribution(1, [4.0] * 11, 0),
        contribution(2, [7.0] * 11, 1),
    ]
    model, buffers = LabelAware().merge(merge_of(contributions, [1, 1, 1], labels([0, 1], [0], [1])))
    assert model.tolist() == [
        4.0,  # hidden unit 0: (1 + 4 + 7) / 3
        4.0,  # hidden unit 1: (1 + 7) / 2
        *(2.5, 1.0),  # class 0: (1 + 4) / 2, and in unit 1 client 0 alone
        *(4.0, 4.0),  # class 1: (1 + 7) / 2
        *(106.0, 107.0),  # class 2: nobody, so as it was
        *(2.5, 4.0, 110.0),  # biases
    ]
    assert buffers.tolist() == [1.0]


def test_a_share_of_the_arrivals_alone() -> None:
    """Client 1 waits in the buffer; the other two weigh 2 of 4, so all goes half of the way to their mean."""
    contributions = [contribution(client, [value] * 11, 1) for client, value in enumerate((1.0, 4.0, 7.0))]
    held = merge_of(contributions, [1, 1, 1], labels([0, 1], [0], [1]))
    merge = replace(held, fresh=[contributions[0], contributions[2]])
    model, _ = LabelAware(over="arrivals", mix=True).merge(merge)
    means = [4.0, 4.0, 1.0, 1.0, 4.0, 4.0, 106.0, 107.0, 1.0, 4.0, 110.0]
    assert model.tolist() == [(old + mean) / 2 for old, mean in zip(OLD, means, strict=True)]


def test_weights_count() -> None:
    contributions = [
        contribution(0, [1.0] * 11, 1),
        contribution(1, [4.0] * 11, 0),
        contribution(2, [8.0] * 11, 1),
    ]
    model, _ = LabelAware().merge(merge_of(contributions, [1, 0.5, 0.25], labels([0, 2], [0, 1], [0, 1])))
    assert model.tolist() == pytest.approx(
        [
            5 / 1.75,  # (1 + 2 + 2) / 1.75
            3 / 1.25,  # (1 + 2) / 1.25
            *(5 / 1.75, 3 / 1.25),  # everybody has class 0
            *(4 / 0.75, 8.0),  # class 1: (2 + 2) / 0.75, and in unit 1 client 2 alone
            *(1.0, 1.0),  # class 2: client 0 alone
            *(5 / 1.75, 4 / 0.75, 1.0),
        ]
    )


def test_an_owner_without_the_coordinate_leaves_it_as_it_was() -> None:
    # Class 2 belongs to client 1 alone, who holds unit 0 only.
    contributions = [contribution(0, [1.0] * 11, 1), contribution(1, [4.0] * 11, 0)]
    model, _ = LabelAware().merge(merge_of(contributions, [1, 1], labels([0, 1], [2])))
    assert model[6:8].tolist() == [4.0, 107.0]
    assert model[10] == 4.0


def test_the_old_model_stays() -> None:
    merge = merge_of([contribution(0, [1.0] * 11, 1)], [1], labels([0]))
    LabelAware().merge(merge)
    assert merge.model.tolist() == OLD
    empty = merge_of([], [], labels())
    model, buffers = LabelAware().merge(empty)
    assert model.tolist() == OLD
    assert buffers.tolist() == [7.0]


def test_switched_off_it_is_the_mask_aware_mean() -> None:
    contributions = [contribution(0, [1.0] * 11, 1), contribution(1, [5.0] * 11, 0), contribution(2, [9.0] * 11, 1)]
    merge = merge_of(contributions, [1, 0.3, 0.7], None)
    off, plain = LabelAware(label_aware=False).merge(merge), MaskAware().merge(merge)
    assert all(map(torch.equal, off, plain))
    on = LabelAware().merge(replace(merge, labels=labels([0], [1], [2])))
    assert not torch.equal(on[0], plain[0])
    assert torch.equal(on[1], plain[1])
    everybody = LabelAware().merge(replace(merge, labels=labels(*[[0, 1, 2]] * 3)))
    assert torch.allclose(everybody[0], plain[0], rtol=1e-6)


def test_full_models() -> None:
    whole = LevelMap.full(11)
    contributions = [contribution(0, [1.0] * 11, 0, whole), contribution(1, [4.0] * 11, 0, whole)]
    model, _ = LabelAware().merge(merge_of(contributions, [1, 1], labels([0], [0, 1])))
    assert model.tolist() == [2.5, 2.5, 2.5, 2.5, 4, 4, 106, 107, 2.5, 4, 110]


def dense_answer(merge: Merge, known: Labels) -> Tensor:
    """The same by masks [clients, coordinates]."""
    values, masks = [], []
    for c in merge.held:
        values.append(c.levels.spread(c.values, torch.zeros(11)))
        mask = c.levels.mask(c.level).clone()
        mask[OUTPUT] &= known.owned[c.client][CLASSES]
        masks.append(mask)
    weights = torch.tensor([merge.weights[c.client] for c in merge.held])
    return mask_aware_mean(torch.stack(values), torch.stack(masks), weights, merge.model)


@pytest.mark.parametrize("seed", range(20))
def test_rolled_windows_of_different_ticks_and_levels(seed: int) -> None:
    """Every client has its own level and its own level map; the answer is that of the masks."""
    draw = np.random.default_rng(seed)
    maps = [width_levels(PLAN, LAYOUT, (0.5, 1.0), shift) for shift in (0, 1)]
    versions = draw.integers(0, 2, 5)
    contributions = [
        contribution(client, draw.standard_normal(11).tolist(), int(draw.integers(2)), maps[version], int(version))
        for client, version in enumerate(versions)
    ]
    known = labels(*([label for label in range(3) if draw.random() < 0.4] for _ in range(5)))
    merge = merge_of(contributions, draw.random(5).tolist(), known)
    assert torch.allclose(LabelAware().merge(merge)[0], dense_answer(merge, known), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_a_run_knows_who_has_which_class(method: str) -> None:
    skewed = {"kind": "dirichlet", "alpha": 0.1, "min_samples": 5}
    run = objects(tiny.normed(), method, partition=skewed, execution={"executor": "sequential"})
    known = run.server.labels
    assert known is not None
    work = run.fleet.executor.work  # type: ignore[attr-defined]
    targets = run.task.train.targets
    expected = [sorted(set(targets[part].tolist())) for part in work.order.parts]
    assert [row.nonzero().view(-1).tolist() for row in known.owned] == expected
    assert any(len(classes) < 4 for classes in expected)
    # The last layer: 144 features to four classes, at the end of the vector.
    size = run.server.layout.size
    assert known.coordinates.tolist() == list(range(size - 4 * 144 - 4, size))
    assert len(LINKS) == len(expected)
    off = objects(tiny.normed(), method, {"aggregation": {"label_aware": False}}, partition=skewed)
    assert off.server.labels is None
