from collections.abc import Sequence

import attacks
import pytest
import torch

from fedgmr.exchange import ClientTask, Report, Update
from fedgmr.submodels.levels import LevelMap

# Level order is 2, 0, 3, 1.
LEVELS = LevelMap(torch.tensor([1, 2, 0, 1], dtype=torch.uint8), (0.25, 0.75, 1.0))
MODEL = torch.tensor([10.0, 20.0, 30.0, 40.0])


class Trained:
    """An executor that adds one everywhere."""

    ahead = False

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        def update(task: ClientTask) -> Update:
            values = task.levels.pack(task.model, task.level) + 1
            return Update(client=task.client, version=0, values=values, buffers=task.buffers, loss=0.5)

        return [update(task) for task in tasks]


def sent(attack: str, model: torch.Tensor = MODEL, *, hostile: attacks.Hostile | None = None) -> tuple[Update, Update]:
    """The updates of client 0, which is hostile, and of client 1."""
    cell = attacks.Cell(client=0, attack=attack, column="default", setting="", seed=0, ticks=1)
    tasks = [
        ClientTask(
            client=client,
            level=1,
            levels=LEVELS,
            map_version=0,
            first_batch=0,
            version=0,
            model=model,
            buffers=torch.zeros(0),
            learning_rate=0.1,
        )
        for client in range(2)
    ]
    one, two = (hostile or attacks.Hostile(Trained(), cell)).train(tasks)
    return one, two


@pytest.mark.parametrize(
    ("attack", "values"),
    [
        ("values x 100", [3100.0, 1100.0, 4100.0]),
        ("sign of the change flipped", [29.0, 9.0, 39.0]),
        ("1e38", [1e38] * 3),
        ("forged reports", [31.0, 11.0, 41.0]),
    ],
)
def test_what_the_hostile_client_sends(attack: str, values: list[float]) -> None:
    one, two = sent(attack)
    assert one.values.tolist() == torch.tensor(values).tolist()
    assert two.values.tolist() == [31.0, 11.0, 41.0]
    assert one.report == (Report(metric=-1e308, samples=2**63) if attack == "forged reports" else None)


def test_noise_is_some_times_as_long_as_the_change() -> None:
    one, _ = sent(attacks.WITHIN[2])
    change = one.values - LEVELS.pack(MODEL, 1)
    assert change.norm().item() == pytest.approx(5 * 3**0.5, rel=1e-4)
    assert change.std().item() > 1


def test_the_first_update_comes_again() -> None:
    cell = attacks.Cell(client=0, attack="old update again", column="default", setting="", seed=0, ticks=1)
    hostile = attacks.Hostile(Trained(), cell)
    assert sent("", hostile=hostile)[0].values.tolist() == [31.0, 11.0, 41.0]
    assert sent("", MODEL + 5, hostile=hostile)[0].values.tolist() == [31.0, 11.0, 41.0]


def test_a_few_ticks() -> None:
    cell = attacks.Cell(client=0, attack="values x 100", column="default", setting="", seed=3, ticks=2)
    value, refused = attacks.accuracy(cell)
    left_out, _ = attacks.accuracy(attacks.replace(cell, attack=attacks.LEFT_OUT))
    assert refused == {"change": 2}
    assert value == left_out
    assert attacks.cost({cell: (80.0, {}), attacks.replace(cell, attack=attacks.LEFT_OUT): (82.0, {})}, cell) == 2.0


def test_the_short_table_is_part_of_the_whole() -> None:
    cells = list(attacks.cells([3, 4], 1))
    assert len(cells) == len(set(cells)) == 2 * 47
    assert sum(cell.brief for cell in cells) == 2 * 31
