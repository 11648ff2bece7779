"""Files of traces, read: Mahimahi's packets, two columns of seconds and rates, tables with a header.

Which of them a file is follows from its first line. A file that cannot be read is refused in one sentence with its
line. docs/links.md describes the formats. Read next: `traces.py`, which deals what is read here to clients.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from fedgmr.fleets.curves import Curve
from fedgmr.fleets.given_files import read_number
from fedgmr.settings.refusals import SettingError, show_value

Unit = Literal["MiB/s", "KiB/s", "B/s", "MB/s", "kB/s", "bit/s", "kbit/s", "Mbit/s", "Gbit/s"]
Pair = tuple[Curve, Curve | None]  # down and up

_MIB = 2**20
_RATES: Mapping[str, float] = {
    **{"MiB/s": 1.0, "KiB/s": 1 / 1024, "B/s": 1 / _MIB, "MB/s": 1e6 / _MIB, "kB/s": 1e3 / _MIB},
    **{"bit/s": 0.125 / _MIB, "kbit/s": 125 / _MIB, "Mbit/s": 125e3 / _MIB, "Gbit/s": 125e6 / _MIB},
}
_ALIASES = {"bps": "bit/s", "kbps": "kbit/s", "Kbps": "kbit/s", "mbps": "Mbit/s", "Mbps": "Mbit/s", "Gbps": "Gbit/s"}
_ROLES = {
    **dict.fromkeys(("seconds", "second", "time", "timestamp", "milliseconds", "ms"), "time"),
    **dict.fromkeys(("rate", "throughput", "bandwidth"), "rate"),
    **dict.fromkeys(("down", "download", "downlink"), "down"),
    **dict.fromkeys(("up", "upload", "uplink"), "up"),
}
_LONGEST = 1000  # characters of a line
_LATEST = 1e15  # seconds, or milliseconds where a column says so
_FASTEST = 1e9  # MiB/s
_SHORTEST = 0.001  # seconds of a trace
_PACKET = 1500 / _MIB
_LAST_PACKET = 10**9  # milliseconds, more than eleven days


class _Line(NamedTuple):
    """A line of a file, for its sentence."""

    file: str
    number: int
    text: str

    def refusal(self, reason: str) -> SettingError:
        return SettingError(f"{self.file}, line {self.number}: {reason}.")


def read_trace(content: bytes, name: str, *, unit: str | None = None, repeats: bool = True) -> Pair:
    """Read a trace at its own rates.

    Args:
        content: the file.
        name: the file's, for messages.
        unit: of the rates, where the file does not say it.
        repeats: whether the trace begins again at its end.

    Returns:
        The curves down and up; None for up where the file has rates of one direction.

    Raises:
        SettingError: the file cannot be read; one sentence with the line and the fix.
    """
    lines = list(_lines(content, name))
    if not lines:
        raise SettingError(f"{name} is empty: give a file with at least two lines of a trace.")
    fields = _fields(lines[0].text)
    try:
        if not any(map(_is_number, fields)):
            return _read_table(lines, unit, repeats)
        if len(fields) == 1:
            return _read_packets(lines, unit, repeats), None
        if len(fields) == 2:
            return _read_columns(lines, unit, repeats), None
    except SettingError:
        raise
    except ValueError as error:  # no line is wrong, but they do not make a curve
        raise SettingError(f"{name} holds no trace: {error}") from error
    raise lines[0].refusal(
        f"{len(fields)} columns without a header: name them in a first line, such as seconds,down,up"
    )


def _lines(content: bytes, name: str) -> Iterator[_Line]:
    """The lines that say something; a comment begins with #."""
    if b"\0" in content:
        number = content[: content.index(b"\0")].count(b"\n") + 1
        raise _Line(name, number, "").refusal("a null byte, so this is no text: give a trace as text")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise _Line(name, number, "").refusal("this is no text in UTF-8: give a trace as text") from error
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = _Line(name, number, raw.strip())
        if len(raw) > _LONGEST:
            raise line.refusal(f"a line of {len(raw)} characters: give one moment per line")
        if line.text and not line.text.startswith("#"):
            yield line


def _fields(text: str) -> list[str]:
    """The fields of a line: at commas, semicolons or tabs; where there are none, at spaces."""
    separator = next((mark for mark in ",;\t" if mark in text), None)
    return [field.strip().strip('"').strip() for field in text.split(separator)]


def _is_number(field: str) -> bool:
    """Whether a field is meant as a number, though it may be none that is admitted."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def _number(line: _Line, field: str, what: str, most: float) -> float:
    value = read_number(field)
    if not 0 <= value <= most:
        raise line.refusal(f"{what} {show_value(field)}: give a number from 0 to {most:g}")
    return value


def _read_packets(lines: Sequence[_Line], unit: str | None, repeats: bool) -> Curve:
    """Mahimahi: every line is a millisecond at which a packet of 1,500 bytes may leave; rates are those of seconds.

    A packet of millisecond t leaves by then, so it belongs to the second that ends at t or later. The last line is
    the period.
    """
    if unit is not None:
        raise lines[0].refusal(f"unit is {unit}, and a file of one column has Mahimahi's packets: leave the unit out")
    packets: Counter[int] = Counter()
    last = 0
    for line in lines:
        if not (line.text.isascii() and line.text.isdecimal() and len(line.text) < 20):
            raise line.refusal(f"millisecond {show_value(line.text)}: give one whole number per line, as Mahimahi does")
        moment = int(line.text)
        if moment < last:
            raise line.refusal(f"millisecond {moment} after {last}: give ascending ones")
        if moment > _LAST_PACKET:
            raise line.refusal(f"millisecond {moment}: give one up to {_LAST_PACKET}")
        packets[max(moment - 1, 0) // 1000] += 1
        last = moment
    end = last / 1000
    seconds = range(-(-last // 1000))
    rates = [packets[second] * _PACKET / (min(second + 1, end) - second) for second in seconds]
    return _curve(lines, [float(second) for second in seconds], rates, end, repeats)


def _read_columns(lines: Sequence[_Line], unit: str | None, repeats: bool) -> Curve:
    """Two columns: the second from which on there is a rate."""
    return _read_rates(lines, [0, 1], 2, 1.0, [_factor(lines[0], unit)], repeats)[0]


def _read_table(lines: Sequence[_Line], unit: str | None, repeats: bool) -> Pair:
    """A header that names the columns; those of other names are left alone."""
    header, *rows = lines
    names = _fields(header.text)
    found: dict[str, tuple[int, str]] = {}
    for place, name in enumerate(names):
        word, *rest = re.split(r"[\s_()\[\]]+", name.strip("()[]")) or [""]
        role, given = _ROLES.get(word.lower()), "".join(rest)
        if role is None or (role != "time" and given and _ALIASES.get(given, given) not in _RATES):
            continue
        if role in found:
            raise header.refusal(f"two columns for {role}: leave one of them out")
        found[role] = (place, given)
    if "time" not in found:
        raise header.refusal(f"no column seconds or time in {show_value(header.text)}: give a header that names one")
    directions = sorted(found.keys() & {"down", "up"}) or sorted(found.keys() & {"rate"})
    if not directions:
        units = ", ".join(_RATES)
        raise header.refusal(f"no column rate, down or up, with a unit among {units} or none: name one so")
    places = [found[role][0] for role in ("time", *directions)]
    factors = [_factor(header, found[role][1] or unit) for role in directions]
    if not rows:
        raise header.refusal("a header without rows: give at least two")
    milliseconds = re.search(r"(?i)milliseconds|(?<![a-z])ms(?![a-z])", names[places[0]])
    curves = _read_rates(rows, places, len(names), 1e-3 if milliseconds else 1.0, factors, repeats)
    return curves[0], curves[1] if len(curves) > 1 else None


def _factor(line: _Line, unit: str | None) -> float:
    """MiB/s of a unit."""
    if unit is None:
        raise line.refusal(f"a rate without a unit: set unit to one of {', '.join(_RATES)}")
    return _RATES[_ALIASES.get(unit, unit)]


def _read_rates(
    lines: Sequence[_Line], places: Sequence[int], width: int, clock: float, factors: Sequence[float], repeats: bool
) -> list[Curve]:
    """Curves from rows: the moment, then a rate per direction; the last row lasts as long as the one before it."""
    moments: list[float] = []
    rates: list[list[float]] = [[] for _ in factors]
    for line in lines:
        fields = _fields(line.text)
        if len(fields) != width:
            raise line.refusal(f"{len(fields)} columns, and the first line has {width}: give as many in every line")
        moment, *given = (fields[place] for place in places)
        moments.append(_number(line, moment, "moment", _LATEST) * clock)
        if len(moments) > 1 and moments[-1] <= moments[-2]:
            raise line.refusal(f"moment {show_value(moment)} is not after the one before it: give ascending ones")
        for column, field, factor in zip(rates, given, factors, strict=True):
            column.append(_number(line, field, "rate", _FASTEST) * factor)
    if len(moments) < 2:
        raise lines[0].refusal("the only row, which does not say how long it lasts: give at least two")
    starts = [moment - moments[0] for moment in moments]
    end = starts[-1] + (starts[-1] - starts[-2])
    return [_curve(lines, starts, column, end, repeats) for column in rates]


def _curve(lines: Sequence[_Line], starts: Sequence[float], rates: Sequence[float], end: float, repeats: bool) -> Curve:
    if end < _SHORTEST:
        raise lines[-1].refusal(f"the trace ends after {end:g} seconds: give at least {_SHORTEST:g}")
    if not any(rates):
        raise lines[-1].refusal("every rate of the trace is 0: give one that carries something")
    return Curve(starts=starts, rates=rates, end=end, repeats=repeats)
