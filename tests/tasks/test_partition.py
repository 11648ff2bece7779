"""Who has which samples, and in which order a client walks them."""

import itertools
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmr.tasks.partition import IID, ByUser, Dirichlet, Indices, Partition, Pool, SampleOrder


def pool(
    size: int = 1000,
    *,
    clients: int = 10,
    seed: int = 0,
    classes: int | None = 10,
    users: np.ndarray | None = None,
) -> Pool:
    """Every other sample is held out, so that positions and indices differ."""
    return Pool(
        indices=np.arange(0, 2 * size, 2),
        labels=None if classes is None else np.arange(size) % classes,
        users=users,
        clients=clients,
        seed=seed,
    )


def same(a: list[Indices], b: list[Indices]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


PARTITIONS = [IID(), Dirichlet(), ByUser()]
USERS = np.repeat(np.arange(50), 20)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_sample_belongs_to_exactly_one_client(partition: Partition) -> None:
    parts = partition.deal(pool(users=USERS))
    assert len(parts) == 10
    assert sorted(np.concatenate(parts).tolist()) == list(range(0, 2000, 2))
    assert all((np.diff(part) > 0).all() for part in parts), "in ascending order"


@pytest.mark.parametrize("partition", [IID(), Dirichlet()])
def test_a_partition_belongs_to_its_seed(partition: Partition) -> None:
    assert same(partition.deal(pool(seed=3)), partition.deal(pool(seed=3)))
    assert not same(partition.deal(pool(seed=3)), partition.deal(pool(seed=4)))


def test_iid_parts_are_equal() -> None:
    assert [len(part) for part in IID().deal(pool(1000))] == [100] * 10
    assert [len(part) for part in IID().deal(pool(13, clients=5))] == [3, 3, 3, 2, 2]
    # Shuffled: no client has a stretch of neighbours.
    assert all(np.ptp(part) > 1000 for part in IID().deal(pool(1000)))


def test_the_papers_tasks_in_numbers() -> None:
    # What is left after 5 % are held out, for ten clients: CIFAR-10, EMNIST for FEMNIST, Tiny-ImageNet.
    for size, classes, each in ((47_500, 10, 4_750), (95_000, 62, 9_500), (23_750, 100, 2_375)):
        dealt = pool(size, classes=classes)
        assert [len(part) for part in IID().deal(dealt)] == [each] * 10
        parts = Dirichlet(alpha=0.6, min_samples=100).deal(dealt)
        assert sum(map(len, parts)) == size
        assert min(map(len, parts)) >= 100
        by_class = np.stack([np.bincount(part // 2 % classes, minlength=classes) for part in parts])
        assert np.array_equal(by_class.sum(0), np.bincount(np.arange(size) % classes))
        # Shares of Dirichlet(0.6, ..., 0.6) over ten clients: mean 0.1, variance 0.1 · 0.9 / (6 + 1).
        shares = by_class / by_class.sum(0)
        assert shares.mean() == pytest.approx(0.1)
        assert shares.std() == pytest.approx((0.09 / 7) ** 0.5, rel=0.25)
    # Stack Exchange for StackOverflow: 3,061 training users, so 306 each and 307 for the last client.
    users = np.repeat(np.arange(3_061), np.arange(3_061) % 5 + 1)
    parts = ByUser().deal(pool(len(users), users=users))
    assert [len(np.unique(users[part // 2])) for part in parts] == [306] * 9 + [307]


def test_iid_with_too_few_samples() -> None:
    assert [len(part) for part in IID(min_samples=2).deal(pool(13, clients=5))] == [3, 3, 3, 2, 2]
    with pytest.raises(ValueError, match=r"partition\.min_samples is 3: the iid partition leaves a client 2 samples"):
        IID(min_samples=3).deal(pool(13, clients=5))


def skew(alpha: float) -> float:
    """Mean share of a client's largest class."""
    parts = Dirichlet(alpha=alpha, min_samples=5).deal(pool())
    largest = [max(Counter((part // 2 % 10).tolist()).values()) / len(part) for part in parts]
    return float(np.mean(largest))


def test_a_small_alpha_is_skewed() -> None:
    assert skew(0.1) > 0.4
    assert skew(1000.0) < 0.15


def test_dirichlet_shuffles_within_a_class() -> None:
    one, two = Dirichlet(alpha=1000.0).deal(pool(clients=2, classes=1))
    assert one.min() < two.min() + 40
    assert one.max() > two.max() - 40


def test_dirichlet_redraws_until_everybody_has_enough() -> None:
    for seed in range(5):
        loose = Dirichlet(alpha=0.3, min_samples=1).deal(pool(300, seed=seed))
        strict = Dirichlet(alpha=0.3, min_samples=12).deal(pool(300, seed=seed))
        assert min(len(part) for part in strict) >= 12
        if min(len(part) for part in loose) >= 12:
            assert same(loose, strict), "the first draw that will do"
    assert min(len(part) for part in Dirichlet(alpha=0.3, min_samples=1).deal(pool(300))) < 12


def test_dirichlet_with_more_samples_asked_for_than_there_are() -> None:
    with pytest.raises(
        ValueError,
        match=r"partition\.min_samples is 11: 10 clients need 110 samples, there are 100; lower it or use fewer",
    ):
        Dirichlet(min_samples=11).deal(pool(100))


def test_dirichlet_that_never_deals_enough() -> None:
    with pytest.raises(
        ValueError,
        match=r"partition\.alpha is 0\.01: after 1000 draws some of 10 clients still had under 10 samples; raise alpha",
    ):
        Dirichlet(alpha=0.01, min_samples=10).deal(pool(100, classes=2))


def test_dirichlet_without_end() -> None:
    with pytest.raises(ValueError, match=r"partition\.alpha is inf: give a finite number; for equal shares use .*iid"):
        Dirichlet(alpha=float("inf")).deal(pool())


def test_dirichlet_needs_labels() -> None:
    with pytest.raises(ValueError, match="no integer label per sample; use iid or by_user"):
        Dirichlet().deal(pool(classes=None))


def test_users_stay_together_and_the_last_client_takes_the_rest() -> None:
    # 193 writers for ten clients: 19 each, 22 for the last. Writer u has u % 3 + 1 samples, in no order.
    users = np.repeat(np.arange(193) * 7, np.arange(193) % 3 + 1)
    shuffled = np.random.default_rng(0).permutation(users)
    parts = ByUser().deal(pool(len(users), classes=None, users=shuffled))
    writers = [sorted(set((shuffled[part // 2] // 7).tolist())) for part in parts]
    assert [len(w) for w in writers] == [19] * 9 + [22]
    assert [n for w in writers for n in w] == list(range(193)), "consecutive"


def test_as_many_users_as_clients() -> None:
    users = np.array([5, 5, 9, 1])
    parts = ByUser().deal(pool(4, clients=3, users=users))
    assert [part.tolist() for part in parts] == [[6], [0, 2], [4]]


def test_users_that_do_not_suffice() -> None:
    with pytest.raises(ValueError, match=r"fleet\.clients is 10: the task has 9 users; use at most that many"):
        ByUser().deal(pool(18, users=np.arange(18) % 9))
    with pytest.raises(ValueError, match="it needs a user id per sample, which this task does not have"):
        ByUser().deal(pool(18))
    with pytest.raises(
        ValueError, match=r"partition\.min_samples is 30: the by_user partition leaves a client 20 samples"
    ):
        ByUser(min_samples=30).deal(pool(40, clients=2, users=np.arange(40) // 20))


def order(*sizes: int, seed: int = 0, batch_size: int = 4) -> SampleOrder:
    starts = np.cumsum([0, *sizes])
    parts = [np.arange(a, b) for a, b in itertools.pairwise(starts)]
    return SampleOrder(parts, seed=seed, batch_size=batch_size)


def test_epochs_are_permutations_and_no_batch_is_short() -> None:
    # Seven samples, batches of four: seven batches are four epochs.
    batches = order(7).batches(0, 0, 7)
    assert batches.shape == (7, 4)
    epochs = batches.reshape(4, 7)
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(7))] * 4
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 4, "each shuffled anew"


def test_a_batch_longer_than_the_clients_data() -> None:
    (batch,) = order(3, batch_size=10).batches(0, 0, 1)
    assert Counter(batch.tolist()) in [Counter({0: 3, 1: 3, 2: 3}) + Counter([extra]) for extra in range(3)]


def test_clients_and_seeds_have_their_own_order() -> None:
    both = order(20, 20, batch_size=20)
    assert sorted(both.batches(1, 0, 1)[0].tolist()) == list(range(20, 40))
    assert (both.batches(1, 0, 1) - 20).tolist() != both.batches(0, 0, 1).tolist()
    assert order(20, batch_size=20, seed=1).batches(0, 0, 1).tolist() != both.batches(0, 0, 1).tolist()


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    first=st.integers(0, 40),
    n=st.integers(1, 10),
    m=st.integers(1, 10),
)
def test_batches_continue_where_the_last_ones_ended(size: int, batch_size: int, first: int, n: int, m: int) -> None:
    one = order(9, size, batch_size=batch_size)
    apart = np.concatenate([one.batches(1, first, n), one.batches(1, first + n, m)])
    together = order(9, size, batch_size=batch_size).batches(1, first, n + m)
    assert together.shape == (n + m, batch_size)
    assert np.array_equal(apart, together)


def test_the_order_of_calls_does_not_matter() -> None:
    forward, backward = order(7, 5), order(7, 5)
    calls = [(client, first) for client in (0, 1) for first in range(0, 60, 3)]
    seen = {call: forward.batches(*call, 3) for call in calls}
    for call in reversed(calls):
        assert np.array_equal(backward.batches(*call, 3), seen[call])


def test_forgotten_epochs_come_back_the_same() -> None:
    at = order(4)
    first = at.batches(0, 0, 2).copy()
    at.batches(0, 2, 600)  # one epoch per batch: more than are kept
    assert np.array_equal(at.batches(0, 0, 2), first)


def test_threads_may_ask_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgmr.tasks.partition._CACHED_EPOCHS", 1)  # so that each drives out what others have drawn
    shared = order(*[2] * 40, batch_size=2)

    def ask(thread: int) -> None:
        for number in range(8000):
            shared.batches((7 * number + thread) % 40, number // 40, 1)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(4)))
    finally:
        sys.setswitchinterval(before)


# The split of the paper's released code for CIFAR-10: samples per class of every client.
RELEASED = """
8 2 827 84 682 1 19 425 56 3
240 311 988 37 218 596 383 16 46 228
259 304 103 70 145 121 1018 0 201 979
1 560 399 6 121 308 678 563 783 239
297 31 873 697 50 860 389 600 409 315
146 44 104 759 186 862 528 371 2316 4
609 3028 65 241 387 261 38 89 79 731
2636 203 838 250 1044 19 44 383 9 857
156 395 205 2376 956 402 1677 411 348 1046
648 122 598 480 1211 1570 226 2142 753 598
"""


def test_the_legacy_draw_in_ascending_order_is_the_released_split() -> None:
    dealt = pool(50_000)
    parts = Dirichlet(alpha=0.6, draw="legacy", order="ascending").deal(dealt)
    assert [len(part) for part in parts] == [2107, 3063, 3200, 3658, 4521, 5320, 5528, 6283, 7972, 8348]
    assert dealt.labels is not None
    counts = [np.bincount(dealt.labels[part // 2], minlength=10).tolist() for part in parts]
    assert counts == [[int(count) for count in row.split()] for row in RELEASED.split("\n") if row]
    drawn = Dirichlet(alpha=0.6, draw="legacy").deal(dealt)
    assert sorted(map(len, drawn)) == [len(part) for part in parts] != [len(part) for part in drawn]


def test_the_legacy_draw_deals_consecutive_samples_of_a_class() -> None:
    # RandomState(0).dirichlet([1, 1]) gives the first client the share 0.388: samples 0 to 2 of ten.
    parts = Dirichlet(alpha=1.0, min_samples=1, draw="legacy").deal(pool(10, clients=2, classes=1))
    assert [part.tolist() for part in parts] == [[0, 2, 4], [6, 8, 10, 12, 14, 16, 18]]
    with pytest.raises(ValueError, match="min_samples is 5: the dirichlet partition leaves a client 3 samples; lower"):
        Dirichlet(alpha=1.0, min_samples=5, draw="legacy").deal(pool(10, clients=2, classes=1))


def test_the_legacy_draw_takes_small_seeds() -> None:
    with pytest.raises(ValueError, match=r"seed is 4294967296: partition\.draw is legacy, which takes seeds below 429"):
        Dirichlet(draw="legacy").deal(pool(seed=1 << 32))


def test_ascending_order_sorts_the_clients_of_the_seeded_draw() -> None:
    drawn, ascending = Dirichlet().deal(pool()), Dirichlet(order="ascending").deal(pool())
    assert [len(part) for part in ascending] == sorted(len(part) for part in drawn) != [len(part) for part in drawn]
    assert {tuple(part) for part in ascending} == {tuple(part) for part in drawn}
