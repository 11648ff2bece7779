"""Trackers with their own packages, offline: they read back what metrics.jsonl holds. See `make test-extras`."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgmr.cli.main import main
from fedgmr.trackers.exporting import export, numbers
from fedgmr.trackers.tracker import make_tracker


def expected(rows: list[dict[str, Any]], *, clients: bool = False) -> dict[str, list[tuple[int, float]]]:
    """By name: (number of the row, value)."""
    series: dict[str, list[tuple[int, float]]] = {}
    for step, values in enumerate(numbers(rows, clients=clients)):
        for name, value in values.items():
            series.setdefault(name, []).append((step, float(value)))
    return series


def resumed(run: Path, rows: list[dict[str, Any]], to: str, output: Path, write: Any) -> None:
    """Follow a run that is cut back to its first two rows, goes on otherwise than before, and ends."""
    summary = (run / "summary.json").read_text()
    (run / "summary.json").unlink()
    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.unlink()
    write(run, [*rows[:2], *({**row, "accuracy": 0.125} for row in rows[2:4])])

    def go_on(_: float) -> None:
        write(run, rows)
        (run / "summary.json").write_text(summary)

    tracker = make_tracker(to, run, output)
    assert export(run, tracker, follow=True, wait=go_on) == []
    tracker.close()


def singly(series: dict[str, list[tuple[int, float]]]) -> dict[str, list[tuple[int, float]]]:
    """The same in single precision: all that TensorBoard's default reader shows."""
    return {name: [(step, float(np.float32(value))) for step, value in values] for name, values in series.items()}


def tensorboard_values(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    texts = ("recipe", "summary")
    assert set(texts) <= set(events.Tags()["tensors"])
    return {
        tag: [(event.step, make_ndarray(event.tensor_proto).item()) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
        if tag not in texts
    }


def test_tensorboard(run: Path, tmp_path: Path, read: Any, write: Any) -> None:
    pytest.importorskip("tensorboard")
    rows = read(run)
    for _ in range(2):  # the second export replaces the first
        assert main(["export", str(run), "--to", "tensorboard", "--clients"]) == 0
        assert tensorboard_values(run / "tensorboard" / "first") == singly(expected(rows, clients=True))
    resumed(run, rows, "tensorboard", tmp_path / "resumed", write)
    assert tensorboard_values(tmp_path / "resumed" / "first") == singly(expected(rows))


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: seven bytes, then blocks of 32 KiB as LevelDB's log has them."""
    assert content[:4] == b":W&B"
    place, record = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack("<4xHB", content[place : place + 7])
        record += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def wandb_values(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, Any], dict[str, Any]]:
    """The series, the config and the summary of the only offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    series: dict[str, list[tuple[int, float]]] = {}
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for data in wandb_records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        for item in record.run.config.update:
            config[item.key] = json.loads(item.value_json)
        for item in record.summary.update:
            summary["".join(item.nested_key) or item.key] = json.loads(item.value_json)
        if record.HasField("history"):
            values = {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            for name, value in values.items():
                if not name.startswith("_"):
                    series.setdefault(name, []).append((record.history.step.num, value))
    return series, config, summary


def test_wandb(run: Path, tmp_path: Path, read: Any, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    rows = read(run)
    assert main(["export", str(run), "--to", "wandb", "--output", str(tmp_path / "once")]) == 0
    series, config, summary = wandb_values(tmp_path / "once")
    assert series == expected(rows)
    assert config["training.steps"] == 2
    assert summary["final_accuracy"] == rows[-1]["accuracy"]
    resumed(run, rows, "wandb", tmp_path / "resumed", write)
    assert wandb_values(tmp_path / "resumed")[0] == expected(rows)


def mlflow_values(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    (experiment,) = (each for each in client.search_experiments() if each.name != "Default")
    (opened,) = client.search_runs([experiment.experiment_id])
    history = {name: client.get_metric_history(opened.info.run_id, name) for name in opened.data.metrics}
    return {name: sorted((each.step, each.value) for each in values) for name, values in history.items()}, opened


def test_mlflow(run: Path, tmp_path: Path, read: Any, write: Any) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    rows = read(run)
    for _ in range(2):  # the second export replaces the first
        assert main(["export", str(run), "--to", "mlflow", "--output", str(tmp_path / "store")]) == 0
        values, opened = mlflow_values(tmp_path / "store")
        assert values == expected(rows)
    assert opened.data.params["training.steps"] == "2"
    assert opened.data.tags["summary.status"] == "finished"
    assert (opened.info.status, opened.info.run_name, opened.info.end_time) == ("FINISHED", "first", 300_000)
    resumed(run, rows, "mlflow", tmp_path / "resumed", write)
    assert mlflow_values(tmp_path / "resumed")[0] == expected(rows)


def test_parquet(run: Path, read: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = read(run)
    assert main(["export", str(run), "--to", "parquet"]) == 0
    lines = parquet.read_table(run / "tables" / "evaluations.parquet").to_pylist()
    found = [{name: value for name, value in line.items() if name not in ("run", "row")} for line in lines]
    assert [{name: value for name, value in line.items() if value is not None} for line in found] == numbers(
        rows, clients=False
    )
    clients = parquet.read_table(run / "tables" / "clients.parquet").to_pylist()
    assert [line["density"] for line in clients[-5:]] == rows[-1]["density"]
    (about,) = parquet.read_table(run / "tables" / "runs.parquet").to_pylist()
    assert about["summary.final_accuracy"] == rows[-1]["accuracy"]
