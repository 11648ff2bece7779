"""Training that blows up: exit code 3, the client and the tick by name, and everything recorded stays readable."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from e2e.command import Command, write_recipe
from e2e.recipes import recipe
from fedgmr.exchange import Diverged
from fedgmr.reporting import read_run


def _strict(text: str) -> Any:
    """JSON as other programs read it, without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def _rows(run: Path) -> list[dict[str, Any]]:
    rows = [_strict(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "wall"} for row in rows]


# Six good ticks, then a rate that no weight survives.
JUMPING = {"learning_rate": 0.5, "batch_size": 10, "steps": 2, "schedule": {"kind": "steps", "at": [6], "by": 1e18}}


@pytest.mark.parametrize("method", ["fedgmr", "fedasync", "fedavg"])
def test_divergence_is_told_and_recorded(method: str, fedgmr: Command) -> None:
    seconds = 3000.0 if method == "fedavg" else 600.0
    data = recipe("dense", method, seconds=seconds, training=JUMPING, evaluation={"every_seconds": 1.0})
    write_recipe(fedgmr.folder / "r.json", data)
    ended = fedgmr("run", "r.json", "output=run")
    assert ended.code == 3
    assert "Traceback" not in ended.err
    sentence = ended.err.splitlines()[-1]
    told = re.fullmatch(r"fedgmr: The training of client (\d+) diverged .* at tick (\d+): lower .*", sentence)
    assert told is not None, sentence
    assert int(told[2]) > 6

    run = fedgmr.folder / "run"
    rows = _rows(run)
    assert len(rows) >= 6
    assert rows[-1]["tick"] < int(told[2])
    summary = _strict((run / "summary.json").read_text())
    assert summary["status"] == "diverged"
    assert summary["problem"] == sentence.removeprefix("fedgmr: ")
    assert summary["final_accuracy"] == rows[-1]["accuracy"]
    assert not (run / "model.safetensors").exists()
    assert read_run(run).status == "diverged"
    assert len(read_run(run).history.seconds) == len(rows)

    again = fedgmr("resume", "run")
    assert again.code == 3
    assert again.err.splitlines()[-1] == sentence
    assert _rows(run) == rows
    assert _strict((run / "summary.json").read_text())["status"] == "diverged"


def test_divergence_in_the_first_task(fedgmr: Command) -> None:
    training = {"learning_rate": 1e38, "batch_size": 10, "steps": 4}
    write_recipe(fedgmr.folder / "r.json", recipe("dense", training=training))
    ended = fedgmr("run", "r.json", "output=run")
    assert ended.code == 3
    assert "at tick 1:" in ended.err
    (row,) = _rows(fedgmr.folder / "run")
    assert row["tick"] == 0


def test_a_loss_that_is_not_finite_is_null(fedgmr: Command) -> None:
    """The weights may be finite where the loss of the global model is not."""
    training = {"learning_rate": 1e19, "batch_size": 10, "steps": 1}
    data = recipe("dense", "fedasync", seconds=60.0, training=training, evaluation={"every_seconds": 0.1})
    write_recipe(fedgmr.folder / "r.json", data)
    # Recovery would go back to finite weights before most clients are out of bounds.
    assert fedgmr("run", "r.json", "method.recovery.times=0", "output=run").code == 3
    assert None in [row["loss"] for row in _rows(fedgmr.folder / "run")]
    assert read_run(fedgmr.folder / "run").history.loss.shape


def test_it_crosses_to_another_process() -> None:
    error = Diverged(3, 14, "of most clients")
    again = pickle.loads(pickle.dumps(error))
    assert (again.client, again.tick, str(again)) == (3, 14, str(error))
