"""A sub-model is the sum of its increments, and IMS changes times, never values."""

import torch
from e2e import tiny

from equivalence.delivery import Mailroom, submodel
from equivalence.runs import BRISK, drive, objects, same
from fedgmr.experiments.assembly import Assembly
from fedgmr.server.state import restore_state, save_state


def test_sum_of_increments_is_the_submodel() -> None:
    run = objects(tiny.normed(), "fedgmr", BRISK)
    maps = set()

    def compare() -> None:
        server = run.server
        levels, model = server.levels, server.model
        maps.add(server.map_version)
        gathered = torch.zeros_like(model)
        held = torch.zeros_like(model, dtype=torch.int32)
        for level in range(len(server.ladder)):
            increment = levels.levels == level
            gathered += torch.where(increment, model, 0.0)
            held += increment.int()
            assert same(gathered, torch.where(levels.mask(level), model, 0.0))
            assert same(gathered, levels.spread(levels.pack(model, level), torch.zeros_like(model)))
            assert int(held.max()) == 1  # increments do not overlap
            assert int(held.sum()) == levels.sizes[level]
        assert same(gathered, model)  # the ladder ends at 1

    compare()
    drive(run, ticks=10, watch=compare)
    assert maps == {0, 1, 2, 3}


def test_increments_in_level_order_are_slices_of_the_submodel() -> None:
    run = objects(tiny.dense(), "fedgmr", BRISK)
    drive(run, ticks=4)
    levels, model = run.server.levels, run.server.model
    slices = [model[levels.levels == level] for level in range(len(levels.ladder))]
    for level in range(len(levels.ladder)):
        assert same(torch.cat(slices[: level + 1]), levels.pack(model, level))


def test_ims_leaves_a_synchronous_run_as_it_is() -> None:
    rules, network = {**BRISK, "coordination": "synchronous"}, {"server_rate": 1.0}  # an uplink that is felt
    with_ims, without = (
        drive(objects(tiny.dropped(), "fedgmr", {**rules, "ims": ims}, network=network), ticks=14)
        for ims in (True, False)
    )
    assert [moment.learned() for moment in with_ims] == [moment.learned() for moment in without]
    assert len({moment.levels for moment in with_ims}) > 1  # clients were restored on the way
    assert all(a.seconds < b.seconds for a, b in zip(with_ims, without, strict=True))


def test_ims_delivers_the_same_submodels() -> None:
    """One server state, two fleets: what the clients put together from multicast increments is what they get alone."""
    run = objects(tiny.normed(), "fedgmr", BRISK)
    for ticks in (1, 4, 7):
        drive(run, ticks=ticks)
        twin = _twin(run)
        everyone = range(len(run.server.profiles))
        tasks = run.server.tasks(everyone, run.fleet.now)
        twins = twin.server.tasks(everyone, run.fleet.now)
        multicast, unicast = Mailroom(ims=True), Mailroom(ims=False)
        by_increments, alone = multicast.deliver(tasks), unicast.deliver(twins)
        for task in tasks:
            assert same(by_increments[task.client], submodel(task))
            assert same(by_increments[task.client], alone[task.client])
        assert multicast.server_bytes < unicast.server_bytes


def _twin(run: Assembly) -> Assembly:
    """The same server state under the rules without IMS."""
    twin = objects(tiny.normed(), "fedgmr", {**BRISK, "ims": False})
    restore_state(twin.server, *save_state(run.server))
    return twin
