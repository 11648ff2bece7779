"""Traces of links: what a file gives, what clients share, and how their curves differ."""

from pathlib import Path

import pytest

from fedgmr.fleets.curves import Curve
from fedgmr.fleets.presets import FleetSettings
from fedgmr.fleets.traces import FileTrace, deal_traces
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "both.csv").write_text("seconds,down MiB/s,up MiB/s\n0,4,1\n10,2,3\n")
    (tmp_path / "one.txt").write_text("0 5\n1 6\n")
    monkeypatch.setenv("FEDGMR_DATA", str(tmp_path))
    return tmp_path


def rates(trace: FileTrace) -> list[list[float]]:
    ((down, up),) = trace.load(0)
    return [list(down.rates), list(up.rates)]


def test_directions_of_files(files: Path) -> None:
    assert rates(FileTrace(down="both.csv")) == [[4, 2], [1, 3]]
    assert rates(FileTrace(down="one.txt", unit="MiB/s")) == [[5, 6], [5, 6]]
    assert rates(FileTrace(down="both.csv", up="one.txt", unit="MiB/s")) == [[4, 2], [5, 6]]
    assert rates(FileTrace(down="one.txt", up="both.csv", unit="MiB/s")) == [[5, 6], [1, 3]]
    ((stops, _),) = FileTrace(down="both.csv", at_end="stop").load(0)
    assert (stops.repeats, stops.end) == (False, 20)


def test_clients_share_pieces_and_differ_in_their_shift(files: Path) -> None:
    trace = FileTrace(down="both.csv")
    dealt = deal_traces([trace, None, trace, FileTrace(down="both.csv", shift=3.0)], 7)
    curves: list[tuple[Curve, Curve]] = [pair for pair in dealt if pair is not None]
    assert dealt[1] is None
    assert curves[0][0].starts is curves[1][0].starts
    assert [up.shift for _, up in curves] == [down.shift for down, _ in curves]
    assert len({down.shift for down, _ in curves}) == 3
    assert all(0 <= down.shift < 20 for down, _ in curves)
    assert curves[2][0].shift == 3
    assert deal_traces([trace], 7) == [dealt[0]]
    assert deal_traces([trace], 8) != [dealt[0]]


def test_a_sealed_trace_knows_its_files(files: Path) -> None:
    sealed = FileTrace(down="both.csv", up="one.txt", unit="MiB/s").sealed()
    assert len(sealed.digests) == len(set(sealed.digests)) == 2
    assert sealed.sealed() is sealed
    assert rates(sealed) == [[4, 2], [5, 6]]
    (files / "one.txt").write_text("0 5\n1 7\n")
    with pytest.raises(SettingError, match=r"^trace.up is 'one.txt', whose content is not the one"):
        sealed.load(0)


def test_a_trace_for_all_links(files: Path) -> None:
    trace = FileTrace(down="both.csv")
    own = FileTrace(down="one.txt", unit="MiB/s")
    named = FleetSettings(name="low", trace=trace).resolved_links()
    assert [(link.down, link.trace) for link in named[:3]] == [(20.0, trace), (20.0, trace), (10.0, trace)]
    links = ({"down": 2, "up": 1}, {"trace": plain(own)})
    custom = FleetSettings(name="custom", links=links, trace=trace)  # type: ignore[arg-type]
    assert [link.trace for link in custom.resolved_links()] == [trace, own]
    sealed = custom.sealed()
    assert [len(link.trace.digests) for link in sealed.resolved_links() if isinstance(link.trace, FileTrace)] == [1, 1]
    assert FleetSettings().sealed() == FleetSettings()
