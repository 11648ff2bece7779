"""A grid is every combination, each with the settings it says."""

import pytest
from e2e.recipes import recipe

from fedgmr.experiments.sweep.grid import grid_points, split_values
from fedgmr.server.restoration import Saturation
from fedgmr.settings.refusals import SettingError


def test_every_combination_in_order() -> None:
    axes = ["training.learning_rate=0.1,0.2", "partition=iid,{kind: dirichlet, alpha: 0.3}"]
    points = grid_points(recipe(), ["seconds=77"], axes=axes, methods=["fedgmr", "fedavg"], seeds=2)
    assert len(points) == 2 * 2 * 2 * 2
    seen = [(p.recipe.training.learning_rate, p.recipe.partition.kind, p.method, p.recipe.seed) for p in points]
    assert seen[:5] == [
        (0.1, "iid", "fedgmr", 3),
        (0.1, "iid", "fedgmr", 4),
        (0.1, "iid", "fedavg", 3),
        (0.1, "iid", "fedavg", 4),
        (0.1, "dirichlet", "fedgmr", 3),
    ]
    assert seen[-1] == (0.2, "dirichlet", "fedavg", 4)
    assert points[-1].values == (("training.learning_rate", "0.2"), ("partition", "{kind: dirichlet, alpha: 0.3}"))
    assert {point.recipe.seconds for point in points} == {77.0}


def test_without_methods_the_recipes_own_with_its_settings() -> None:
    (one, two) = grid_points(recipe(), axes=["method.restoration.patience=1,9"])
    assert [one.method, two.method] == ["fedgmr", "fedgmr"]
    assert [point.recipe.method.restoration for point in (one, two)] == [Saturation(patience=1), Saturation(patience=9)]
    assert [point.recipe.method.interval for point in (one, two)] == [3, 3]  # from the section `methods`
    named = grid_points(recipe(), axes=["method=fedgmr,fedavg", "seed=0,5"])
    assert [(point.method, point.recipe.seed) for point in named] == [
        ("fedgmr", 0),
        ("fedgmr", 5),
        ("fedavg", 0),
        ("fedavg", 5),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"axes": ["seconds"]}, "write key=value,value"),
        ({"axes": ["seconds=1,"]}, "write key=value,value"),
        ({"axes": ["=1,2"]}, "write key=value,value"),
        ({"axes": ["seconds=1,2", "seconds=3"]}, "each key once"),
        ({"axes": ["seconds=1,1"]}, "each of its values once"),
        ({"axes": ["device=cpu,cuda"]}, "does not change what a run gives"),
        ({"axes": ["checkpoint.every=1,2"]}, "set it as checkpoint.every=value"),
        ({"axes": ["method=fedgmr,fedavg"], "methods": ["fedavg"]}, "use --methods alone"),
        ({"methods": ["fedavg", "fedavg"]}, "name each method once"),
        ({"seeds": 0}, "--seeds is 0"),
        ({"axes": ["training.learning_rte=1,2"]}, "training.learning_rate"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError) as refused:
        grid_points(recipe(), **arguments)  # type: ignore[arg-type]
    assert words in str(refused.value)


def test_commas_inside_brackets_and_quotes_stay() -> None:
    assert split_values("1, 2,[3,4],{a: (5,6)}, 'x,y'") == ["1", "2", "[3,4]", "{a: (5,6)}", "'x,y'"]
    assert split_values("") == [""]
