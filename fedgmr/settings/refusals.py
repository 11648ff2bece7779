"""The sentence about a setting that cannot be used: its key, its value and the fix, the same words everywhere.

``SettingError`` carries the sentence and ``Place`` begins it. Read next: ``build.py``, which refuses most settings.
"""

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any

_DEEPEST = 100  # dots in a path


class SettingError(ValueError):
    """A setting that cannot be used, said in one sentence: its key, its value and the fix."""


class Place(str):
    """The dotted path of a key in the whole settings; empty at the top level."""

    __slots__ = ()

    def below(self, name: Any) -> "Place":
        """Return the place of a key or an entry below this one, of which there are no more than a few levels."""
        if self.count(".") > _DEEPEST:
            raise SettingError(f"{show_value(str(self))} is nested too deep: settings have a few levels.")
        return Place(f"{self}.{name}" if self else name)

    def index_below(self, name: str, length: int) -> int:
        """Read a name as an index into the list of this length that stands here."""
        if name.isdecimal() and int(name) < length:
            return int(name)
        fix = f"use an index from 0 to {length - 1}" if length else "the list is empty, give it whole"
        raise SettingError(f"{self.below(name)} is not an entry of the list {self}: {fix}.")

    def check_names(self, names: Iterable[Any]) -> None:
        """Refuse keys of the mapping that stands here if they are no text, which YAML admits and JSON does not."""
        for name in names:
            if not isinstance(name, str):
                raise SettingError(f"{self} has the key {show_value(name)}, which is no text: put it in quotes.")

    def refusal(self, value: Any, wish: str, choices: Iterable[str] = ()) -> SettingError:
        """Refuse the value that stands here: ``wish`` says what to give, and a choice like the value is offered."""
        near = _nearest(value, choices) if isinstance(value, str) else None
        hint = "" if near is None else f" (did you mean {near}?)"
        return SettingError(f"{self or 'The top level'} is {show_value(value)}: give {wish}{hint}.")


def suggestion(word: str, known: Sequence[str], prefix: str = "") -> str:
    """End a sentence about an unknown word: with the nearest known word, or with all of them where none is near.

    ``prefix`` is the part of the dotted path before the word, with the dot.
    """
    near = _nearest(word, known)
    if near is not None:
        return f"did you mean {prefix}{near}?"
    return f"choose one of {', '.join(known)}." if known else "remove it, nothing is known here."


def _nearest(word: str, known: Iterable[str]) -> str | None:
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def show_value(value: Any) -> str:
    """Write a value as a recipe's author would, short enough for a sentence."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


def say_in_one_line(error: Exception) -> str:
    """Return the message of an error without line breaks, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
