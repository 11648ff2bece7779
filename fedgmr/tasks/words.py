"""Text as numbers for next-word prediction: words, a vocabulary, sequences of one length.

By frequency, tokens are padding 0, words 1 to 10,000, then unknown, begin and end. A text is begin, its words, end; one
that is longer than a sequence goes on in the next, which starts with the last token the one before had to predict.
By appearance, tokens are padding 0, unknown 1, then the first 9,998 words met, and a text is its first words alone.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray

from fedgmr.tasks.losses import PAD
from fedgmr.tasks.samples import Samples

WORDS = 10_000
UNKNOWN, BEGIN, END = WORDS + 1, WORDS + 2, WORDS + 3
TOKENS = WORDS + 4

Tokens = NDArray[np.int64]

_WORD = re.compile(r"<url>|\w+(?:'\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Vocabulary:
    """The numbers of the words that have one, and how a text becomes tokens."""

    numbers: Mapping[str, int]
    unknown: int = UNKNOWN
    framed: bool = True  # a text has begin and end around it, and goes on in a second sequence

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]], size: int = WORDS) -> "Vocabulary":
        """The most frequent words of texts; of equally frequent ones the first in the alphabet comes first."""
        counts = Counter(chain.from_iterable(texts))
        ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return cls({word: number for number, (word, _) in enumerate(ranked[:size], 1)})

    @classmethod
    def by_appearance(cls, texts: Iterable[Sequence[str]], size: int = WORDS) -> "Vocabulary":
        """The first words met, so many that there are `size` tokens with padding and unknown."""
        met = dict.fromkeys(chain.from_iterable(texts))
        return cls({word: number for number, word in enumerate(islice(met, size - 2), 2)}, unknown=1, framed=False)

    @staticmethod
    def split(text: str) -> list[str]:
        """Lower-case words, and punctuation marks by themselves."""
        return _WORD.findall(text.lower())

    @staticmethod
    def split_at_blanks(text: str) -> list[str]:
        """Lower-case words with the punctuation marks that touch them."""
        return text.lower().split()

    def tokens(self, words: Sequence[str]) -> list[int]:
        """The tokens of a text."""
        numbers = [self.numbers.get(word, self.unknown) for word in words]
        return [BEGIN, *numbers, END] if self.framed else numbers

    def sequences(self, words: Sequence[str], length: int) -> Iterator[Tokens]:
        """Rows of tokens, each the input of the next: `length` + 1 where texts are framed, else one row of `length`."""
        tokens = self.tokens(words)
        size = length + 1 if self.framed else length
        for start in range(0, len(tokens) - 1, length) if self.framed else (0,):
            row = np.full(size, PAD, np.int64)
            part = tokens[start : start + size]
            row[: len(part)] = part
            yield row


def shifted(rows: Iterable[Tokens]) -> Samples:
    """Inputs and targets are the same tokens, one place apart."""
    tokens = torch.from_numpy(np.stack(list(rows)))
    return Samples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
