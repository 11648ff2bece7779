"""The workload in Flower's simulation runtime (Ray): a ServerApp of our own that averages, a ClientApp that trains.

There are as many nodes as a round has clients, and messages are polled every few milliseconds, which is faster than the
strategies that ship with Flower. Each Ray actor keeps its model and maps the data once; weights travel as one array.
"""

import os
import time
from contextlib import suppress

import numpy as np
import torch
from workload import Plan, Setting, Stopped, Turns

for _key, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # otherwise its actors give way to every other process
}.items():
    os.environ[_key] = _value

from flower_client import client_app  # noqa: E402
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

POLL = 0.003  # seconds


def run_round(grid: Grid, plan: Plan, setting: Setting, weights: np.ndarray, number: int) -> np.ndarray:
    """Send the cohort its tasks, wait for all, average."""
    config = {
        "root": str(plan.root),
        "double": plan.dtype is torch.float64,
        "layout": setting.layout,
        "threads": setting.threads,
        "round": number,
    }
    record, nodes = ArrayRecord({"flat": Array(weights)}), sorted(grid.get_node_ids())[: plan.cohort]
    messages = [
        Message(
            RecordDict({"weights": record, "config": ConfigRecord({**config, "place": place})}),
            dst_node_id=node,
            message_type="train",
        )
        for place, node in enumerate(nodes)
    ]
    waiting, mean = set(grid.push_messages(messages)), np.zeros_like(weights)
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
            mean += reply.content["weights"]["flat"].numpy()
        if waiting:
            time.sleep(POLL)
    return mean / plan.cohort


def main() -> None:
    setting = Setting.parse()
    nodes = max(setting.plan.cohort, setting.gate.cohort)
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < nodes:
            time.sleep(0.1)
        weights = setting.gate.weights.astype(np.float64)
        for number in range(len(setting.gate.clients)):
            weights = run_round(grid, setting.gate, setting, weights, number)
        setting.passed_gate(torch.from_numpy(weights))
        turns, weights = Turns("cpu"), setting.plan.weights
        with suppress(Stopped):
            turns.wait()
            for number in range(len(setting.plan.clients)):
                weights = run_round(grid, setting.plan, setting, weights, number)
                turns.after_round()

    actors = {"num_cpus": setting.threads, "num_gpus": 0.0}
    run_simulation(
        server_app,
        client_app,
        num_supernodes=nodes,
        backend_config={
            "client_resources": actors,
            "init_args": {"num_cpus": setting.processes * setting.threads, "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    main()
