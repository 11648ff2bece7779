"""Numbers and tables as people read them."""

from fedgmr.reporting.quantities import (
    align_table,
    format_bytes,
    format_clock,
    format_duration,
    format_percent,
    format_seconds,
)


def test_numbers_for_people() -> None:
    assert [format_seconds(value) for value in (0.5, 42.5, 1240.4)] == ["0.5 s", "42.5 s", "1,240 s"]
    counts = (0, 52_000, 9_940_000, 12_345_678, 999_400_000, 1_240_000_000)
    shown = ["0.00 MB", "0.05 MB", "9.94 MB", "12.3 MB", "999.4 MB", "1,240 MB"]
    assert [format_bytes(count) for count in counts] == shown
    assert format_percent(0.9344) == "93.4 %"


def test_durations_are_rough() -> None:
    assert [format_duration(seconds) for seconds in (0.2, 40, 89, 91, 720, 5300, 5500, 12600)] == [
        "1 s",
        "40 s",
        "89 s",
        "2 min",
        "12 min",
        "88 min",
        "1.5 h",
        "3.5 h",
    ]


def test_clocks_are_exact_to_the_second() -> None:
    assert [format_clock(seconds) for seconds in (0.4, 59.6, 245, 3723)] == ["0:00", "1:00", "4:05", "1:02:03"]


def test_words_are_aligned_left_and_numbers_right() -> None:
    lines = align_table([["key", "method", "runs"], ["0.15", "A", "3"], ["2", "FedAvg", "10"]], words=2)
    assert lines == ["key   method  runs", "-" * 18, "0.15  A          3", "2     FedAvg    10"]
