"""StackOverflow: words, vocabulary and sequences by hand; users, and how they are split."""

import os
from pathlib import Path

import pytest
import torch

from fedgmr.settings.refusals import SettingError
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


def test_samples_by_user(root: Path) -> None:
    task = stackoverflow(seed=0, root=str(root), length=6)
    assert (task.title, task.stand_in) == ("StackOverflow (Transformer-2L)", None)
    assert task.users is not None
    assert len(task.train[0]) + len(task.test[0]) == 55
    sizes = torch.bincount(task.users)
    assert len(sizes) == 8  # two of the ten are the test set
    assert int(sizes.sum()) == len(task.train[0])
    inputs, targets = task.train[0][0], task.train[1][0]
    assert inputs.tolist()[0] == BEGIN
    assert inputs.tolist()[5] == END
    assert torch.equal(inputs[1:], targets[:5])
    assert targets.tolist()[4:] == [END, 0]
    assert (task.users.diff() >= 0).all()
    assert task.layout().size == 2_156_928


def test_the_vocabulary_is_that_of_the_training_users(root: Path) -> None:
    task = stackoverflow(seed=0, root=str(root), length=6)
    # "and", "on" and "so" are the most frequent words, in this order; then come the users' own, by frequency.
    assert task.train[1][0, 1:4].tolist() == [1, 3, 2]
    own = task.train[0][:, 1]
    assert own.min() == 4
    assert own.max() == 3 + 8
    assert own[-1] == 4  # the last training user spoke most
    assert (task.test[0][:, 1] == UNKNOWN).all()


def test_the_seed_draws_the_users(root: Path) -> None:
    sizes = {tuple(torch.bincount(stackoverflow(seed=s, root=str(root), length=6).users)) for s in range(4)}
    assert len(sizes) > 1
    again = [stackoverflow(seed=1, root=str(root), length=6).train[0] for _ in range(2)]
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
    inputs, targets = task.train[0][:3], task.train[1][:3]
    perfect = torch.nn.functional.one_hot(targets, TOKENS) * 50.0
    assert float(task.loss(perfect, targets)) < 1e-6
    hits, count = task.metrics[0].measure(perfect, targets)
    assert (int(hits), count) == (15, 15)  # five of six targets are real
    outputs = task.initial_model(0)(inputs)
    assert outputs.shape == (3, 6, TOKENS)
    assert float(task.loss(outputs, targets).detach()) == pytest.approx(9.2, abs=0.4)  # ln 10,004, about


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
    targets = task.train[1]
    assert int(targets.max()) == END
    known = (targets != 0).sum()
    assert (targets == UNKNOWN).sum() < 0.06 * known
