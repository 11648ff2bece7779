"""Files that say when devices are there: lines `client on off`, the same as CSV, or FedScale's devices as JSON.

FedScale documents its structure as device: {active: [...], inactive: [...], finish_time: ...}, in seconds. Its own file
is a pickle, which is never loaded here, because loading one runs whatever code it holds. Every mistake is one sentence
with the line or the device.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedgmr.fleets.given_files import read_number
from fedgmr.fleets.presence import Gaps
from fedgmr.settings.refusals import SettingError, show_value

_COLUMNS = ("client", "on", "off")
_LONGEST = 1000  # characters of a line
_CONVERSION = (
    "python -c \"import json, pickle, sys; json.dump(pickle.load(open(sys.argv[1], 'rb')), open(sys.argv[2], 'w'))\" "
    "IN OUT.json"
)
_Stretch = tuple[float, float]  # on, off


def read_devices(content: bytes, told: str, every: float | None = None) -> dict[str, Gaps]:
    """Return the gaps of every device in a file, by name, in the order of the file.

    Args:
        content: of the file.
        told: the beginning of a sentence about it.
        every: seconds after which the times come again, whatever the file says.

    Raises:
        SettingError: the file cannot be understood.
    """
    if content[:1] == b"\x80":
        raise SettingError(
            f"{told}, a pickle, which is not loaded because it may run any code: if you trust it, convert it once with "
            f"`{_CONVERSION}`."
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"{told}, which is no text (byte {error.start}): give lines `client on off`.") from error
    if not text.strip():
        raise SettingError(f"{told}, which is empty: give lines `client on off`.")
    if text.lstrip()[0] in "{[":
        return {name: _device(told, name, entry, every) for name, entry in _devices(text, told)}
    found: dict[str, list[_Stretch]] = {}
    for line, name, stretch in _lines(text, told):
        _add(found.setdefault(name, []), stretch, f"{told}, line {line}")
    if not found:
        raise SettingError(f"{told}, which has no line of a client: give `client on off`.")
    return {name: _gaps(stretches, every, f"{told}, client {name}") for name, stretches in found.items()}


def _lines(text: str, told: str) -> Iterator[tuple[int, str, _Stretch]]:
    """The lines of a table: number, device, when it is there. Empty ones and those that begin with # do not count."""
    columns: Sequence[int] | None = None
    separator = None
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > _LONGEST:
            raise SettingError(f"{told}, line {number} has {len(line)} characters: give `client on off`.")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if columns is None:
            separator = "," if "," in line else None
            words = [word.strip().lower() for word in line.split(separator)]
            columns = [words.index(name) for name in _COLUMNS if name in words]
            if columns and len(columns) < len(_COLUMNS):
                missing = next(name for name in _COLUMNS if name not in words)
                raise SettingError(f"{told}, line {number} has no column {missing!r}: give client, on and off.")
            width = len(words)
            if columns:
                continue
            columns = range(len(_COLUMNS))
        words = [word.strip() for word in line.split(separator)]
        if len(words) != width or width < len(_COLUMNS) or (width > len(_COLUMNS) and isinstance(columns, range)):
            raise SettingError(f"{told}, line {number} has {len(words)} columns: give `client on off` in every line.")
        name, on, off = (words[column] for column in columns)
        place = f"{told}, line {number}"
        yield number, name, (_seconds(on, place), _seconds(off, place))


def _devices(text: str, told: str) -> Iterator[tuple[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{told}, which is not valid JSON ({error}): mend it.") from error
    if not isinstance(data, dict) or not data:
        raise SettingError(f"{told}, which holds no devices: give an object with a device under each name.")
    yield from data.items()


def _device(told: str, name: str, entry: Any, every: float | None) -> Gaps:
    """One of FedScale's devices."""
    place = f"{told}, device {show_value(name)}"
    if not isinstance(entry, Mapping) or not all(isinstance(entry.get(key), list) for key in ("active", "inactive")):
        raise SettingError(f"{place} has no lists active and inactive: give the moments at which it comes and goes.")
    active, inactive = entry["active"], entry["inactive"]
    if len(active) != len(inactive):
        raise SettingError(
            f"{place} has {len(active)} moments under active and {len(inactive)} under inactive: give as many of both."
        )
    stretches: list[_Stretch] = []
    for on, off in zip(active, inactive, strict=True):
        _add(stretches, (_seconds(on, place), _seconds(off, place)), place)
    if every is None and entry.get("finish_time") is not None:
        every = _seconds(entry["finish_time"], place)
    return _gaps(stretches, every, place)


def _seconds(word: Any, place: str) -> float:
    known = isinstance(word, int | float) and not isinstance(word, bool)
    try:
        number = float(word) if known else read_number(str(word))
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise SettingError(f"{place}: {show_value(word)} is no moment: give seconds, 0 or more.")
    return number


def _add(stretches: list[_Stretch], stretch: _Stretch, place: str) -> None:
    on, off = stretch
    if off <= on:
        raise SettingError(f"{place}: off is {off:g} and on {on:g}: give an end after its beginning.")
    if stretches and on < stretches[-1][1]:
        raise SettingError(f"{place}: on is {on:g}, before the end of the stretch before it: give them in order.")
    stretches.append(stretch)


def _gaps(stretches: Sequence[_Stretch], every: float | None, place: str) -> Gaps:
    """What is left between the stretches in which a device is there."""
    if not stretches:
        raise SettingError(f"{place} is never there: give it a stretch or leave it out.")
    last = stretches[-1][1]
    if every is not None and every < last:
        raise SettingError(f"{place} is there until {last:g}, and its times come again after {every:g}: give more.")
    end = math.inf if every is None else every
    bounds = [0.0, *(moment for stretch in stretches for moment in stretch), end]
    pairs = [(off, on) for off, on in zip(bounds[::2], bounds[1::2], strict=True) if off < on]
    return Gaps(edges=tuple(moment for pair in pairs for moment in pair), period=end)
