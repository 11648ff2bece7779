"""The bytes a simulated run is charged for are the lengths of the objects that would really travel."""

from collections.abc import Sequence
from typing import Any

import pytest
from e2e import tiny

from equivalence.delivery import Mailroom, encoded_update, submodel
from equivalence.runs import BRISK, drive, objects, same
from fedgmr.exchange import ClientTask, Update
from fedgmr.methods import BUILT_IN

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedgmr": ("fedgmr", BRISK),
    "fedgmr without ims": ("fedgmr", {**BRISK, "ims": False}),
    "fedgmr synchronous": ("fedgmr", {**BRISK, "coordination": "synchronous"}),
    "fedavg": ("fedavg", {}),
    "fedavg with ims": ("fedavg", {"ims": True}),
    "fedasync": ("fedasync", {}),
    "fjord with ims": ("fjord", {"ims": True}),
    **{method: (method, {}) for method in BUILT_IN if not method.startswith(("fedgmr", "fedavg", "fedasync"))},
}


@pytest.mark.parametrize("validation", ["server", "clients"])
@pytest.mark.parametrize("case", CASES)
def test_charged_bytes_are_encoded_bytes(case: str, validation: str) -> None:
    method, rules = CASES[case]
    run = objects(tiny.normed(), method, rules, seconds=260.0, evaluation={"validation": validation})
    network, executor = run.fleet.network, run.fleet.executor
    mailroom = Mailroom(ims=run.recipe.method.ims)
    uploads: dict[int, int] = {}
    seen = {"tasks": 0, "updates": 0}
    send, train = network.send, executor.train

    def checked_send(tasks: Sequence[ClientTask], now: float) -> Any:
        trips = send(tasks, now)
        arrived = mailroom.deliver(tasks) if tasks else {}
        assert {trip.client: trip.down for trip in trips} == (mailroom.down if tasks else {})
        assert network.server_bytes == mailroom.server_bytes
        assert all(same(arrived[task.client], submodel(task)) for task in tasks)
        uploads.update((trip.client, trip.up) for trip in trips)
        seen["tasks"] += len(tasks)
        return trips

    def checked_train(tasks: Sequence[ClientTask]) -> list[Update]:
        updates = train(tasks)
        for task, update in zip(tasks, updates, strict=True):
            assert len(encoded_update(task, update)) == uploads[task.client]
        seen["updates"] += len(updates)
        return updates

    network.send, executor.train = checked_send, checked_train  # type: ignore[method-assign]
    drive(run)
    assert seen["updates"] > 5
    assert seen["tasks"] >= seen["updates"]
    if method == "fedgmr":
        assert mailroom.objects > 2 * run.server.tick  # several levels in use, maps among them
