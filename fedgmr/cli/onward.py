"""How to go on after an interruption: the exact command, in words that can be pasted into a shell."""

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedgmr.files import RECIPE
from fedgmr.recipe import Recipe
from fedgmr.settings.schema import plain
from fedgmr.settings.trust import import_paths


@contextmanager
def goes_on(how: Callable[[], str]) -> Iterator[None]:
    """Let whatever ends the work within say how to go on; `main` prints it for interruptions and lost memory."""
    try:
        yield
    except BaseException as error:
        error.add_note(how())
        raise


def spoken(words: Sequence[str]) -> str:
    """A command of this program for a shell, called as it was called this time."""
    return shlex.join([*_program(), *words])


def resuming(directory: Path, recipe: Recipe, words: Sequence[str], verb: Sequence[str] = ("resume",)) -> str:
    """How a run goes on that is in `directory`, by which `verb`; `words` have begun it."""
    if not (directory / RECIPE).is_file():
        return f"nothing was recorded yet: `{spoken(words)}` starts again."
    packages = dict.fromkeys(path.partition(":")[0].partition(".")[0] for path in import_paths(plain(recipe)))
    trust = [word for package in packages for word in ("--trust", package)]
    return f"`{spoken([*verb, str(directory), *trust])}` goes on from the last checkpoint."


def repeating(words: Sequence[str]) -> str:
    """How runs go on that the same command takes up."""
    return f"`{spoken(words)}` goes on from the last checkpoints."


def _program() -> list[str]:
    called = Path(sys.argv[0])
    if called.parts[-2:] == ("fedgmr", "__main__.py"):
        return [_shortest(sys.executable, "python"), "-m", "fedgmr"]
    return [_shortest(sys.argv[0], "fedgmr") if called.name == "fedgmr" else "fedgmr"]


def _shortest(path: str, name: str) -> str:
    """The name of a program where a shell finds it by its name, else its path."""
    found = shutil.which(name)
    return name if "/" not in path or (found is not None and Path(found).absolute() == Path(path).absolute()) else path
