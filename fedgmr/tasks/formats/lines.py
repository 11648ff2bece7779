"""Texts by user: JSON lines with `user` and `text`, plain or compressed with xz; other keys are ignored."""

import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from fedgmr.tasks.formats.arrays import Counts, DataError

_EXAMPLE = '{"user": "7", "text": "how do I ..."}'


class TextLines:
    """A file of texts by user."""

    def read(self, path: Path, seed: int = 0) -> dict[str, list[str]]:
        """The texts of every user, users and texts in the order of the file."""
        texts: dict[str, list[str]] = {}
        for user, text in _records(path):
            texts.setdefault(user, []).append(text)
        if not texts:
            raise DataError(f"{path} is empty: write one line per text, {_EXAMPLE}.")
        return texts

    def count(self, path: Path) -> Counts:
        """The number of texts and users."""
        users = Counter(user for user, _ in _records(path))
        return Counts(train=users.total(), users=len(users))


def _records(path: Path) -> Iterator[tuple[str, str]]:
    opened: Callable[..., IO[str]] = lzma.open if path.suffix == ".xz" else open
    with DataError.reading(path, "JSON lines"), opened(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                user, text = record["user"], record["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}, line {number} is no record with user and text: write {_EXAMPLE}.") from error
            if not isinstance(user, str | int):
                raise DataError(f"{path}, line {number}: the user is {user!r}; give a name or a number.")
            if not isinstance(text, str) or not text.strip():
                raise DataError(
                    f"{path}, line {number}: the user {user!r} has no text; remove the line or give it one."
                )
            yield str(user), text
