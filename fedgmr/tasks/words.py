"""Text as numbers for next-word prediction: words, a vocabulary of the 10,000 most frequent, sequences of one length.

Tokens are padding 0, words 1 to 10,000 by frequency, then unknown, begin and end. A text is begin, its words, end; one
that is longer than a sequence goes on in the next, which starts with the last token the one before had to predict.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from fedgmr.tasks.losses import PAD

WORDS = 10_000
UNKNOWN, BEGIN, END = WORDS + 1, WORDS + 2, WORDS + 3
TOKENS = WORDS + 4

Tokens = NDArray[np.int64]

_WORD = re.compile(r"<url>|\w+(?:'\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Vocabulary:
    """The numbers of the most frequent words, from 1."""

    numbers: Mapping[str, int]

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]], size: int = WORDS) -> "Vocabulary":
        """The most frequent words of texts; of equally frequent ones the first in the alphabet comes first."""
        counts = Counter(chain.from_iterable(texts))
        ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return cls({word: number for number, (word, _) in enumerate(ranked[:size], 1)})

    @staticmethod
    def split(text: str) -> list[str]:
        """Lower-case words, and punctuation marks by themselves."""
        return _WORD.findall(text.lower())

    def sequences(self, words: Sequence[str], length: int) -> Iterator[Tokens]:
        """Rows of `length` + 1 tokens: the first `length` are inputs, the last `length` their targets."""
        tokens = [BEGIN, *(self.numbers.get(word, UNKNOWN) for word in words), END]
        for start in range(0, len(tokens) - 1, length):
            row = np.full(length + 1, PAD, np.int64)
            part = tokens[start : start + length + 1]
            row[: len(part)] = part
            yield row
