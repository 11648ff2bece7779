import math
from collections.abc import Sequence
from pathlib import Path

import attacks
import numpy as np
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


def cell(
    attack: str = "", *, column: str = "default", setting: str = "", seed: int = 0, ticks: int = 1
) -> attacks.Cell:
    return attacks.Cell(hostile=(0,), attack=attack, column="default", setting="", seed=seed, ticks=ticks)


def sent(
    attack: str, model: torch.Tensor = MODEL, *, hostile: attacks.Hostile | None = None, version: int = 0
) -> tuple[Update, Update]:
    """The updates of client 0, which is hostile, and of client 1."""
    tasks = [
        ClientTask(
            client=client,
            level=1,
            levels=LEVELS,
            map_version=0,
            first_batch=0,
            version=version,
            model=model,
            buffers=torch.zeros(0),
            learning_rate=0.1,
        )
        for client in range(2)
    ]
    one, two = (hostile or attacks.Hostile(Trained(), cell(attack))).train(tasks)
    return one, two


@pytest.mark.parametrize(
    ("attack", "values"),
    [
        ("values x 100", [3100.0, 1100.0, 4100.0]),
        ("sign of the change flipped", [29.0, 9.0, 39.0]),
        ("its change x 10", [40.0, 20.0, 50.0]),
        ("trained with labels flipped", [31.0, 11.0, 41.0]),  # it sends what it has trained
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
    one, _ = sent(attacks.NOISY)
    change = one.values - LEVELS.pack(MODEL, 1)
    assert change.norm().item() == pytest.approx(5 * 3**0.5, rel=1e-4)
    assert change.std().item() > 1


def test_the_first_update_comes_again() -> None:
    hostile = attacks.Hostile(Trained(), cell(attacks.OLD))
    assert sent("", hostile=hostile)[0].values.tolist() == [31.0, 11.0, 41.0]
    assert sent("", MODEL + 5, hostile=hostile)[0].values.tolist() == [31.0, 11.0, 41.0]


def test_the_sign_is_flipped_later() -> None:
    assert sent(attacks.LATER, version=99)[0].values.tolist() == [31.0, 11.0, 41.0]
    assert sent(attacks.LATER, version=100)[0].values.tolist() == [29.0, 9.0, 39.0]


def test_labels_are_flipped_for_some_samples() -> None:
    labels = torch.tensor([0, 1, 2, 7, 9])
    attacks.flip_labels(labels, [np.array([0, 3]), np.array([4])])
    assert labels.tolist() == [9, 1, 2, 2, 0]


@pytest.mark.parametrize(("attack", "refused"), [("values x 100", {"change": 2}), (attacks.OLD, {"repeat": 1})])
def test_a_few_ticks(attack: str, refused: dict[str, int]) -> None:
    tried = attacks.outcome(cell(attack, seed=3, ticks=2))
    assert tried.refused == refused
    if attack == "values x 100":
        assert tried.accuracy == attacks.outcome(cell(attacks.LEFT_OUT, seed=3, ticks=2)).accuracy


def test_the_cost_of_an_attack() -> None:
    def ended(accuracy: float) -> attacks.Outcome:
        return attacks.Outcome(accuracy=accuracy, refused={})

    found = {
        cell(attacks.LEFT_OUT): ended(80.0),
        cell(attacks.OLD): ended(79.0),
        cell(attacks.LEFT_OUT, seed=1): ended(90.0),
        cell(attacks.OLD, seed=1): ended(87.0),
        cell("NaN"): ended(math.nan),
        cell("1e38", seed=2): ended(10.0),  # nothing to compare with
    }
    assert [attacks.cost(found, attack) for attack in (attacks.OLD, "NaN", "1e38")] == [2.0, 100.0, 0.0]
    (row,) = (row for row in attacks.rows(found) if row["sends"] == attacks.OLD)
    assert row["default"] == "83.00 (2)"
    assert "clip" not in row


def test_runs_are_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "attacks.csv"
    one, two = cell(attacks.NOISY, seed=3), attacks.replace(cell("NaN"), hostile=(8, 9))
    attacks.append(path, one, attacks.Outcome(accuracy=12.5, refused={"change": 3}))
    attacks.append(path, two, attacks.Outcome(accuracy=math.nan, refused={}))
    found = attacks.read_found(path)
    assert list(found) == [one, two]
    assert (found[one].accuracy, found[one].refused) == (12.5, {"change": 3})
    assert math.isnan(found[two].accuracy)


def test_every_run_is_made_once() -> None:
    cells = list(attacks.cells([3, 4], 1))
    # 14 by default, 8 with clip, 10 with each of the other merges.
    assert len(cells) == len(set(cells)) == 2 * (14 + 8 + 3 * 10)
    several = list(attacks.cells_of_several([3, 4], 1))
    # Nobody hostile with each of four merges; for each of four groups without it, and four attacks with each merge.
    assert len(several) == len(set(several)) == 2 * (4 + 4 * (1 + 4 * 4))
    assert not set(cells) & set(several)
