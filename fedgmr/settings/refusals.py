"""What is said about a setting that cannot be used: one sentence with its key, its value and the fix.

``SettingError`` carries the sentence; the functions here put its parts into words, the same ones wherever a setting
is refused. Used by ``settings.py`` (read that next), by ``settings_text.py``, and by whoever knows what a key means.
"""

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any


class SettingError(ValueError):
    """A setting that cannot be used, said in one sentence: its key, its value and the fix."""


def suggestion(word: str, known: Sequence[str], prefix: str = "") -> str:
    """Ends a sentence about an unknown word.

    Args:
        word: What was given.
        known: What is known in its place.
        prefix: What comes before the word in its dotted path, with the dot.

    Returns:
        A question with the nearest known word, or all known words where none is near.
    """
    near = nearest_word(word, known)
    if near is not None:
        return f"did you mean {prefix}{near}?"
    return f"choose one of {', '.join(known)}." if known else "remove it, nothing is known here."


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word most like the given one, whatever its case, or None where none is near."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def list_index(name: str, length: int, path: str) -> int:
    """Reads a name in a dotted path as an index into the list at ``path``; SettingError where it is none."""
    if name.isdecimal() and int(name) < length:
        return int(name)
    fix = f"use an index from 0 to {length - 1}" if length else "the list is empty, give it whole"
    raise SettingError(f"{join_path(path, name)} is not an entry of the list {path}: {fix}.")


def join_path(path: str, name: Any) -> str:
    """The dotted path of a name below ``path``, which is empty at the top level."""
    return f"{path}.{name}" if path else str(name)


def show_value(value: Any) -> str:
    """A value as a recipe's author would write it, short enough for a sentence."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


def say_in_one_line(error: Exception) -> str:
    """The message of an error without line breaks, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
