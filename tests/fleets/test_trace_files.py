"""Files of traces: the three formats by hand, and units."""

import pytest

from fedgmr.fleets.curves import Curve
from fedgmr.fleets.trace_files import read_trace
from fedgmr.settings.refusals import SettingError

MIB = 2**20


def read(text: str, **given: str) -> tuple[Curve, Curve | None]:
    return read_trace(text.encode(), "file", **given)  # type: ignore[arg-type]


def pieces(curve: Curve | None) -> list[tuple[float, float]]:
    assert curve is not None
    return list(zip(curve.starts, curve.rates, strict=True))


def test_mahimahi() -> None:
    # 3 packets by 1000 ms, none in the second second, 2 by 2500 ms, after which the trace begins again.
    down, up = read("10\n10\n1000\n2001\n2500\n")
    assert up is None
    assert down.end == 2.5
    assert pieces(down) == [(0, 3 * 1500 / MIB), (1, 0), (2, 2 * 1500 / MIB / 0.5)]
    steady, _ = read("\n".join(map(str, range(1, 3001))))
    assert steady.constant, "12 Mbit/s"
    assert steady.mean * MIB * 8 == pytest.approx(12e6)
    assert read("0\n5\n")[0].carried(0, 0.005) * MIB == pytest.approx(3000)


def test_two_columns() -> None:
    text = "# a drive\r\n\r\n100.5\t8\r\n101.5 , 0\r\n104.5;16\r\n"
    down, up = read(text, unit="Mbit/s")
    assert up is None
    assert down.end == 7, "the last row lasts as long as the one before it"
    assert pieces(down) == [(0, 1e6 / MIB), (1, 0), (4, 2e6 / MIB)]
    assert pieces(read("0 1\n1 3e-1\n", unit="MiB/s")[0]) == [(0, 1), (1, 0.3)]


def test_a_table() -> None:
    down, up = read("place,seconds,up_kbps,down (Mbit/s),down_quality\nA,5,80,8,x\nB,6,0,16,y\n")
    assert pieces(down) == [(0, 1e6 / MIB), (1, 2e6 / MIB)]
    assert pieces(up) == [(0, 1e4 / MIB), (1, 0)]
    assert read('"time [ms]";"rate"\n1700000000000;1\n1700000000250;2\n', unit="MiB/s")[0].end == 0.5
    assert read("Milliseconds Throughput_MB/s\n0 1\n500 1\n")[0].mean == 1e6 / MIB
    only, none = read("time,up KiB/s\n0,512\n1,1024\n", unit="Gbit/s")
    assert none is None
    assert pieces(only) == [(0, 0.5), (1, 1)], "the unit in the header goes before the key"


UNITS = {"MiB/s": MIB, "KiB/s": 1024, "B/s": 1, "MB/s": 1e6, "kB/s": 1e3}
UNITS |= {"bit/s": 1 / 8, "kbit/s": 125, "Mbit/s": 125_000, "Gbit/s": 125e6}


@pytest.mark.parametrize("unit", UNITS)
def test_units(unit: str) -> None:
    assert read("0 1\n1 1\n", unit=unit)[0].mean * MIB == pytest.approx(UNITS[unit])


def test_a_unit_is_needed_and_never_guessed() -> None:
    with pytest.raises(SettingError, match="file, line 1: a rate without a unit: set unit to one of MiB/s, "):
        read("0 1\n1 1\n")
    with pytest.raises(SettingError, match="a rate without a unit"):
        read("seconds,rate\n0,1\n1,1\n")
    with pytest.raises(SettingError, match="no column rate, down or up"):
        read("seconds,rate Mb/s\n0,1\n1,1\n")
    with pytest.raises(SettingError, match="leave the unit out"):
        read("1\n2\n", unit="Mbit/s")
