"""The clients' time, by hand."""

from fedgmr.experiments.time_use import time_use

# client, level, moments of leaving, ready, computed and the end, bytes down and up
ROWS = [
    {"seconds": 0.0, "updates": [0, 0], "trips": [], "away": []},
    {
        "seconds": 6.0,
        "updates": [1, 0],
        "trips": [[0, 0, 0.0, 2.0, 3.0, 5.0, 10, 1], [1, 0, 0.0, 2.0, 5.0, 10.0, 10, 1]],
        "away": [[1, 4.0, 6.0]],
    },
    {
        "seconds": 20.0,
        "updates": [1, 1],
        # Client 0 is lost at 9.5, and its last task ends after the run.
        "trips": [[0, 0, 6.0, 9.0, None, 9.5, 10, None], [0, 0, 18.0, 19.0, 21.0, 25.0, 10, 1]],
        "away": [[0, 9.5, 14.0], [1, 6.0, 8.0]],
    },
]


def test_every_second_of_a_client_counts_once() -> None:
    expected = {
        "receiving": [2 + 1, 2],
        "training": [1 + 1, 3],
        "sending": [2, 5],  # of client 1, in part while it is away
        "waiting": [1 + 4, 10],
        "away": [4.5, 0],
        "lost": [3.5, 0],
    }
    assert time_use(ROWS, resumes=False) == {"time": expected}
    expected |= {"training": [2, 2], "sending": [2, 2], "away": [4.5, 4]}
    assert time_use(ROWS, resumes=True) == {"time": expected}


def test_rows_without_trips_say_nothing() -> None:
    assert time_use([{"seconds": 0.0, "updates": [0]}], resumes=False) == {}
