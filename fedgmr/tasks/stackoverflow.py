"""StackOverflow: the next word in what users wrote; Transformer-2L (A41) or a post-norm one, accuracy over tokens.

A fifth of the users is the test set; the vocabulary is that of the others. Without StackOverflow's own texts, posts of
small Stack Exchange sites or messages of the Ubuntu help channel stand in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgmr.seeding import generator
from fedgmr.settings.refusals import SettingError
from fedgmr.tasks.formats.arrays import DataError
from fedgmr.tasks.formats.lines import TextLines
from fedgmr.tasks.losses import PAD, padded_cross_entropy, token_cross_entropy
from fedgmr.tasks.metrics import Among, Metric, top_k
from fedgmr.tasks.models.post_norm import PostNormTransformer
from fedgmr.tasks.models.transformer import HEAD, Transformer2L
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.sources import Source, check_whole, check_word, kept_head
from fedgmr.tasks.task import Task
from fedgmr.tasks.words import TOKENS, WORDS, Tokens, Vocabulary, shifted

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
METRICS = {
    "top1": Metric(measure=Among(ignore=PAD), name="top-1 accuracy"),
    "top5": top_k(5, ignore=PAD),
}
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
    net: str = "pre_norm",
    head: str = "ranked",
    vocabulary: str = "frequency",
    windows: int | None = None,
    padding_loss: bool = False,
    metric: str = "top1",
) -> Task:
    """The next word in questions, answers and comments, by user; other forums stand in.

    `root` and `source` (auto, stackoverflow, stackexchange or ubuntu_irc) say where the data is, see `Source.find`. The
    seed draws the users, and those of the test set: at most `users` together, at most `per_user` sequences of `length`
    tokens of each. With the `head` whole (ranked or whole) every sub-model has the whole last layer. The `net` is
    pre_norm or post_norm, the `vocabulary` by frequency or appearance. With `windows` the test is one stream of tokens,
    cut into windows of so many. With `padding_loss` padding is trained too. Both metrics are recorded; `metric` (top1
    or top5) leads.
    """
    check_whole("users", users, 2)
    check_whole("per_user", per_user, 1)
    check_whole("length", length, 2, _POSITIONS)
    if windows is not None:
        check_whole("windows", windows, 2, _POSITIONS + 1)
    if not isinstance(padding_loss, bool):
        raise SettingError(f"task.options.padding_loss is {padding_loss!r}: give true or false.")
    check_word("metric", metric, list(METRICS))
    fields = model_fields(net, head, vocabulary)
    chosen, place = Source.find("stackoverflow", SOURCES, root, source)
    reading = _Reading(seed=seed, users=users, per_user=per_user, length=length, vocabulary=vocabulary, windows=windows)
    train, test, owners = _samples(place, reading)
    return Task(
        name="stackoverflow",
        title=chosen.title,
        **fields,
        train=train,
        test=test,
        loss=padded_cross_entropy if padding_loss else token_cross_entropy,
        metric=METRICS[metric],
        also=tuple(other for name, other in METRICS.items() if name != metric),
        users=owners,
        evaluation_batch=_EVALUATION_BATCH,
        stand_in=chosen.stand_in,
    )


def model_fields(net: str = "pre_norm", head: str = "ranked", vocabulary: str = "frequency") -> dict[str, Any]:
    """The fields of the Task that its options decide without data."""
    check_word("net", net, ("pre_norm", "post_norm"))
    check_word("vocabulary", vocabulary, ("frequency", "appearance"))
    model = Transformer2L if net == "pre_norm" else PostNormTransformer
    tokens = TOKENS if vocabulary == "frequency" else WORDS
    return {"model": partial(model, tokens), "keep": kept_head(head, HEAD)}


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The task options that say how texts become samples."""

    seed: int
    users: int
    per_user: int
    length: int
    vocabulary: str
    windows: int | None

    def words(self, text: str) -> list[str]:
        if self.vocabulary == "frequency":
            return Vocabulary.split(text)
        return Vocabulary.split_at_blanks(text)[: self.length]


def _samples(path: Path, reading: _Reading) -> tuple[Samples, Samples, torch.Tensor]:
    """Training and test samples, and the user of each training sample."""
    texts, per_user = list(TextLines().read(path).values()), reading.per_user
    if len(texts) < 2:
        raise DataError(f"{path} has the texts of one user only: training and test need different ones.")
    drawn = generator(reading.seed, "split").permutation(len(texts))[: reading.users]
    held = max(1, round(_TEST_SHARE * len(drawn)))
    # Only what can become a sequence is split into words: a text gives at least one.
    chosen = {int(user): [reading.words(text) for text in texts[user][:per_user]] for user in np.sort(drawn)}
    testers = set(drawn[:held].tolist())
    learners = [user for user in chosen if user not in testers]
    count = Vocabulary.of if reading.vocabulary == "frequency" else Vocabulary.by_appearance
    vocabulary = count(words for user in learners for words in chosen[user])

    def rows(people: Iterable[int]) -> list[list[Tokens]]:
        length = reading.length
        return [
            list(islice((row for words in chosen[user] for row in vocabulary.sequences(words, length)), per_user))
            for user in people
        ]

    train, test = rows(learners), rows(sorted(testers))
    if reading.windows is not None:
        spoken = [vocabulary.tokens(words) for user in sorted(testers) for words in chosen[user]]
        test = [_windows(path, np.fromiter(chain.from_iterable(spoken), np.int64), reading.windows)]
    owners = np.repeat(np.arange(len(train)), [len(own) for own in train])
    return shifted(chain.from_iterable(train)), shifted(chain.from_iterable(test)), torch.from_numpy(owners)


def _windows(path: Path, stream: Tokens, size: int) -> list[Tokens]:
    """The stream in windows of `size` tokens; what is left over goes."""
    if len(stream) < size:
        raise DataError(
            f"{path}: the test users wrote {len(stream)} tokens, less than task.options.windows, {size}; lower it."
        )
    return list(stream[: len(stream) // size * size].reshape(-1, size))
