"""StackOverflow: words, vocabulary and sequences by hand; users, and how they are split."""

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fedgmr.settings.refusals import SettingError
from fedgmr.tasks.losses import padded_cross_entropy, token_cross_entropy
from fedgmr.tasks.stackoverflow import stackoverflow
from fedgmr.tasks.words import BEGIN, END, TOKENS, UNKNOWN, Vocabulary
from tasks.test_formats import write_lines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten users; user u says u + 1 times "word<u> and so on"."""
    records = [{"user": f"u{u}", "text": f"Word{u} and so on"} for u in range(10) for _ in range(u + 1)]
    write_lines(tmp_path / "stackoverflow_users.jsonl.xz", records)
    return tmp_path


def test_words() -> None:
    assert Vocabulary.split("Don't panic: see <url>, it's C++!\n") == [
        *("don't", "panic", ":", "see", "<url>", ",", "it's", "c", "+", "+", "!")
    ]
    assert Vocabulary.split("…") == ["…"]


def test_vocabulary_is_by_frequency_then_alphabet() -> None:
    texts = [["b", "a", "c"], ["c", "b"], ["d"]]
    assert Vocabulary.of(texts).numbers == {"b": 1, "c": 2, "a": 3, "d": 4}
    assert Vocabulary.of(texts, 2).numbers == {"b": 1, "c": 2}
    assert (UNKNOWN, BEGIN, END, TOKENS) == (10_001, 10_002, 10_003, 10_004)


def test_sequences() -> None:
    vocabulary = Vocabulary({"a": 1, "b": 2})
    (row,) = vocabulary.sequences(["a", "x"], 5)
    assert row.tolist() == [BEGIN, 1, UNKNOWN, END, 0, 0]
    rows = [row.tolist() for row in vocabulary.sequences(["a", "b", "a", "b"], 2)]
    # Every token after the first is a target exactly once.
    assert rows == [[BEGIN, 1, 2], [2, 1, 2], [2, END, 0]]
    exact = [row.tolist() for row in vocabulary.sequences(["a", "b", "a"], 4)]
    assert exact == [[BEGIN, 1, 2, 1, END]]


def test_vocabulary_by_appearance() -> None:
    assert Vocabulary.split_at_blanks("Don't panic:  see C++!\n") == ["don't", "panic:", "see", "c++!"]
    vocabulary = Vocabulary.by_appearance([["c", "a", "c"], ["b"], ["d"]], 5)
    assert vocabulary.numbers == {"c": 2, "a": 3, "b": 4}  # with padding and unknown five tokens
    assert vocabulary.tokens(["d", "a"]) == [1, 3]
    assert [row.tolist() for row in vocabulary.sequences(["a", "d", "c", "b"], 3)] == [[3, 1, 2]]  # no second row
    assert [row.tolist() for row in vocabulary.sequences(["a"], 3)] == [[3, 0, 0]]


def test_samples_as_released(root: Path) -> None:
    task = stackoverflow(root=str(root), length=6, net="post_norm", head="whole", vocabulary="appearance", windows=5)
    # Five-word windows of one stream: the test users' texts have four words each, of which the first is unknown.
    words = 4 * (55 - len(task.train.inputs))
    assert task.test.inputs.shape == task.test.targets.shape == (words // 5, 4)
    stream = torch.cat([task.test.inputs, task.test.targets[:, -1:]], 1).flatten()
    assert stream[:8].tolist() == [1, 3, 4, 5, 1, 3, 4, 5]
    # The first training user's words come first; inputs are one token shorter than a text may be.
    assert task.train.inputs.shape == (len(task.train.targets), 5)
    assert task.train.inputs[0].tolist() == [2, 3, 4, 5, 0]
    assert task.train.targets[0].tolist() == [3, 4, 5, 0, 0]
    assert task.layout().size == 2_175_760
    assert task.layout().prunable_size == 1_202_784
    framed = stackoverflow(root=str(root), length=6, windows=5)
    assert framed.test.inputs[:2].tolist() == [[BEGIN, UNKNOWN, 1, 3], [END, BEGIN, UNKNOWN, 1]]
    with pytest.raises(ValueError, match=r"the test users wrote \d+ tokens, less than task\.options\.windows, 129"):
        stackoverflow(root=str(root), length=6, users=3, windows=129)


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("net", "postnorm", "did you mean post_norm"),
        ("vocabulary", "rare", "frequency"),
        ("head", 3, "ranked"),
        ("windows", 1, "give a whole number from 2 to 129"),
        ("padding_loss", "no", "give true or false"),
        ("metric", "hits", "top1"),
    ],
)
def test_wrong_options(root: Path, key: str, value: Any, fix: str) -> None:
    with pytest.raises(SettingError, match=rf"task\.options\.{key} is {value!r}: .*{fix}"):
        stackoverflow(root=str(root), **{key: value})


def test_samples_by_user(root: Path) -> None:
    task = stackoverflow(seed=0, root=str(root), length=6)
    assert (task.title, task.stand_in) == ("StackOverflow (Transformer-2L)", None)
    assert task.users is not None
    assert len(task.train.inputs) + len(task.test.inputs) == 55
    sizes = torch.bincount(task.users)
    assert len(sizes) == 8  # two of the ten are the test set
    assert int(sizes.sum()) == len(task.train.inputs)
    inputs, targets = task.train.inputs[0], task.train.targets[0]
    assert inputs.tolist()[0] == BEGIN
    assert inputs.tolist()[5] == END
    assert torch.equal(inputs[1:], targets[:5])
    assert targets.tolist()[4:] == [END, 0]
    assert (task.users.diff() >= 0).all()
    assert task.layout().size == 2_156_928


def test_the_vocabulary_is_that_of_the_training_users(root: Path) -> None:
    task = stackoverflow(seed=0, root=str(root), length=6)
    # "and", "on" and "so" are the most frequent words, in this order; then come the users' own, by frequency.
    assert task.train.targets[0, 1:4].tolist() == [1, 3, 2]
    own = task.train.inputs[:, 1]
    assert own.min() == 4
    assert own.max() == 3 + 8
    assert own[-1] == 4  # the last training user spoke most
    assert (task.test.inputs[:, 1] == UNKNOWN).all()


def test_the_seed_draws_the_users(root: Path) -> None:
    sizes = {tuple(torch.bincount(stackoverflow(seed=s, root=str(root), length=6).users)) for s in range(4)}
    assert len(sizes) > 1
    again = [stackoverflow(seed=1, root=str(root), length=6).train.inputs for _ in range(2)]
    assert torch.equal(*again)


def test_limits(root: Path) -> None:
    few = stackoverflow(root=str(root), users=5, per_user=2, length=6)
    assert few.users is not None
    assert torch.bincount(few.users).tolist() in ([2] * 4, [1, 2, 2, 2])
    pieces = stackoverflow(root=str(root), per_user=2, length=2)
    assert pieces.users is not None
    assert torch.bincount(pieces.users).tolist() == [2] * 8  # a text of six tokens has three pieces
    for key, value, complaint in (
        ("length", 129, "from 2 to 128"),
        ("per_user", 0, "of at least 1"),
        ("users", "x", "of"),
    ):
        with pytest.raises(SettingError, match=rf"task\.options\.{key} is {value!r}: give a whole number {complaint}"):
            stackoverflow(root=str(root), **{key: value})  # type: ignore[arg-type]


def test_loss_and_metric(root: Path) -> None:
    task = stackoverflow(root=str(root), length=6)
    inputs, targets = task.train.inputs[:3], task.train.targets[:3]
    perfect = torch.nn.functional.one_hot(targets, TOKENS) * 50.0
    assert float(task.loss(perfect, targets)) < 1e-6
    hits, count = task.metrics[0].measure(perfect, targets)
    assert (int(hits), count) == (15, 15)  # five of six targets are real
    outputs = task.initial_model(0)(inputs)
    assert outputs.shape == (3, 6, TOKENS)
    assert float(task.loss(outputs, targets).detach()) == pytest.approx(9.2, abs=0.4)  # ln 10,004, about


def test_padding_in_the_loss(root: Path) -> None:
    task = stackoverflow(root=str(root), length=6, padding_loss=True)
    # Two texts of three and one targets in rows of four: the fourth place is padding everywhere and does not count.
    targets = torch.tensor([[2, 1, 2, 0], [1, 0, 0, 0]])
    chosen = torch.tensor([[0.5, 0.25, 0.125, 0.5], [0.5, 0.25, 0.5, 0.5]])
    others = (1 - chosen) / 2
    outputs = others.unsqueeze(-1).repeat(1, 1, 3).scatter(-1, targets.unsqueeze(-1), chosen.unsqueeze(-1)).log()
    # In halvings: 1 + 2 + 3 and 1 + 2 + 1, over six places; without padding 1 + 2 + 3 + 1 over four.
    assert float(task.loss(outputs, targets)) == pytest.approx(math.log(2) * 10 / 6)
    assert float(stackoverflow(root=str(root)).loss(outputs, targets)) == pytest.approx(math.log(2) * 7 / 4)
    assert float(task.loss(outputs, torch.zeros(2, 4, dtype=torch.long))) == 0


def test_a_batch_without_targets_has_no_loss_and_no_gradient() -> None:
    for loss in (token_cross_entropy, padded_cross_entropy):
        outputs = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
        value = loss(outputs, torch.zeros(2, 3, dtype=torch.long))
        value.backward()
        assert outputs.grad is not None
        assert (float(value.detach()), outputs.grad.abs().max().item()) == (0, 0)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), tokens=st.integers(2, 300), padding=st.floats(0, 0.9))
def test_the_loss_is_pytorchs_where_there_are_targets(seed: int, tokens: int, padding: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    outputs = torch.randn(4, 9, tokens, generator=draws)
    targets = torch.randint(1, tokens, (4, 9), generator=draws)
    targets[:, 1:] *= torch.rand(4, 8, generator=draws) >= padding
    ours, theirs = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
    first = token_cross_entropy(ours, targets)
    second = functional.cross_entropy(theirs.flatten(0, -2), targets.flatten(), ignore_index=0)
    first.backward()
    second.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.equal(first, second)
    assert torch.equal(ours.grad, theirs.grad)


def test_top5(root: Path) -> None:
    # Ranks 1, 5 and 6, and padding with rank 1: two of three are among the five highest, one is the highest.
    outputs = torch.arange(10.0, 0, -1).repeat(1, 4, 1)
    outputs[..., 0] = 0
    outputs[0, 3, 0] = 11
    targets = torch.tensor([[1, 5, 6, 0]])
    leads = {"top1": (1, 3), "top5": (2, 3)}
    for name, expected in leads.items():
        task = stackoverflow(root=str(root), length=6, metric=name)
        hits, count = task.metrics[0].measure(outputs, targets)
        assert (int(hits), count) == expected
        assert {metric.name for metric in task.metrics} == {"top-1 accuracy", "top-5 accuracy"}
        assert task.metrics[0].name == f"top-{name[3:]} accuracy"


def test_stand_ins(tmp_path: Path) -> None:
    records = [{"user": number, "text": "a b c"} for number in range(5)]
    write_lines(tmp_path / "ubuntu_irc_users.jsonl.xz", records)
    irc = stackoverflow(root=str(tmp_path), length=8)
    assert irc.title == "Ubuntu IRC for StackOverflow (Transformer-2L)"
    assert "Ubuntu help channel stand in" in str(irc.stand_in)
    write_lines(tmp_path / "stackexchange_users.jsonl.xz", records)
    exchange = stackoverflow(root=str(tmp_path), length=8)
    assert exchange.title == "Stack Exchange for StackOverflow (Transformer-2L)"
    assert stackoverflow(root=str(tmp_path), source="ubuntu_irc", length=8).title == irc.title


def test_bad_texts(tmp_path: Path) -> None:
    path = tmp_path / "stackoverflow_users.jsonl"
    write_lines(path, [{"user": 1, "text": "a"}])
    with pytest.raises(ValueError, match=r"users\.jsonl has the texts of one user only: training and test need differ"):
        stackoverflow(root=str(tmp_path))
    write_lines(path, [{"user": 1, "text": "a"}, {"user": 2, "text": ""}])
    with pytest.raises(ValueError, match=r"users\.jsonl, line 2: the user 2 has no text; remove the line"):
        stackoverflow(root=str(tmp_path))


@pytest.mark.skipif("FEDGMR_DATA" not in os.environ, reason="FEDGMR_DATA is not set")
@pytest.mark.parametrize(("source", "users"), [("stackexchange", 3_061), ("ubuntu_irc", 6_000)])
def test_real_texts(source: str, users: int) -> None:
    task = stackoverflow(source=source)
    assert task.users is not None
    assert len(task.users.unique()) == users
    assert torch.bincount(task.users).max() == 50
    targets = task.train.targets
    assert int(targets.max()) == END
    known = (targets != 0).sum()
    assert (targets == UNKNOWN).sum() < 0.06 * known
