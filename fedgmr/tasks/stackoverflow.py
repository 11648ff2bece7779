"""StackOverflow: the next word in what users wrote; Transformer-2L (A41), accuracy over tokens.

A fifth of the users is the test set; the vocabulary is that of the others. Without StackOverflow's own texts, posts of
small Stack Exchange sites or messages of the Ubuntu help channel stand in.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgmr.seeding import generator
from fedgmr.tasks.formats.arrays import DataError
from fedgmr.tasks.formats.lines import TextLines
from fedgmr.tasks.losses import token_cross_entropy, token_top1
from fedgmr.tasks.models.transformer import HEAD, Transformer2L
from fedgmr.tasks.sources import Source, check_whole, kept_head
from fedgmr.tasks.task import Samples, Task
from fedgmr.tasks.words import Tokens, Vocabulary

SOURCES = (
    Source(
        name="stackoverflow",
        title="StackOverflow (Transformer-2L)",
        paths=("stackoverflow_users.jsonl", "stackoverflow_users.jsonl.xz"),
        contents="stackoverflow_users.jsonl or .jsonl.xz (a user and a text per line)",
        format=TextLines(),
    ),
    Source(
        name="stackexchange",
        title="Stack Exchange for StackOverflow (Transformer-2L)",
        paths=("stackexchange_users.jsonl.xz", "stackexchange_users.jsonl"),
        contents="stackexchange_users.jsonl.xz (a stand-in)",
        format=TextLines(),
        stand_in="Posts of small Stack Exchange sites stand in for StackOverflow; numbers are not StackOverflow's",
    ),
    Source(
        name="ubuntu_irc",
        title="Ubuntu IRC for StackOverflow (Transformer-2L)",
        paths=("ubuntu_irc_users.jsonl.xz", "ubuntu_irc_users.jsonl"),
        contents="ubuntu_irc_users.jsonl.xz (a stand-in)",
        format=TextLines(),
        stand_in="Messages of the Ubuntu help channel stand in for StackOverflow; numbers are not StackOverflow's",
    ),
)
_POSITIONS = 128
_EVALUATION_BATCH = 32  # whose logits are 164 MB
_TEST_SHARE = 0.2  # of the users: the paper has 6,000 and 1,500


def stackoverflow(
    seed: int = 0,
    root: str | None = None,
    source: str = "auto",
    users: int = 7500,
    per_user: int = 50,
    length: int = _POSITIONS,
    head: str = "ranked",
) -> Task:
    """The next word in questions, answers and comments, by user; other forums stand in.

    `root` and `source` (auto, stackoverflow, stackexchange or ubuntu_irc) say where the data is, see `Source.find`. The
    seed draws the users, and those of the test set: at most `users` together, at most `per_user` sequences of `length`
    tokens of each. With the `head` whole (ranked or whole) every sub-model has the whole last layer.
    """
    check_whole("users", users, 2)
    check_whole("per_user", per_user, 1)
    check_whole("length", length, 2, _POSITIONS)
    chosen, place = Source.find("stackoverflow", SOURCES, root, source)
    train, test, owners = _samples(place, seed, users, per_user, length)
    return Task(
        name="stackoverflow",
        title=chosen.title,
        **model_fields(head),
        train=train,
        test=test,
        loss=token_cross_entropy,
        metric=token_top1,
        users=owners,
        evaluation_batch=_EVALUATION_BATCH,
        stand_in=chosen.stand_in,
    )


def model_fields(head: str = "ranked") -> dict[str, Any]:
    """The fields of the Task that its options decide without data."""
    return {"model": Transformer2L, "keep": kept_head(head, HEAD)}


def _samples(path: Path, seed: int, users: int, per_user: int, length: int) -> tuple[Samples, Samples, torch.Tensor]:
    """Training and test samples, and the user of each training sample."""
    texts = list(TextLines().read(path).values())
    if len(texts) < 2:
        raise DataError(f"{path} has the texts of one user only: training and test need different ones.")
    drawn = generator(seed, "split").permutation(len(texts))[:users]
    held = max(1, round(_TEST_SHARE * len(drawn)))
    # Only what can become a sequence is split into words: a text gives at least one.
    chosen = {int(user): [Vocabulary.split(text) for text in texts[user][:per_user]] for user in np.sort(drawn)}
    testers = set(drawn[:held].tolist())
    learners = [user for user in chosen if user not in testers]
    vocabulary = Vocabulary.of(words for user in learners for words in chosen[user])

    def rows(people: Iterable[int]) -> list[list[Tokens]]:
        return [
            list(islice((row for words in chosen[user] for row in vocabulary.sequences(words, length)), per_user))
            for user in people
        ]

    train, test = rows(learners), rows(sorted(testers))
    owners = np.repeat(np.arange(len(train)), [len(own) for own in train])
    return _stacked(train), _stacked(test), torch.from_numpy(owners)


def _stacked(by_user: Sequence[Sequence[Tokens]]) -> Samples:
    """(inputs, targets): the same tokens, one place apart."""
    tokens = torch.from_numpy(np.stack([row for rows in by_user for row in rows]))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
